"""The data of JoyAgents-R1 for instruction-tuned models.

rl_questions         the command that writes the questions for RL
sft_conversations    the command that writes the conversations for supervised fine-tuning
generated_questions  generates questions to a customer service; platform_rules: the rules that they ask about
toolbench_chats      conversations from ToolBench's training dialogues
thoughts             thoughts of the conversations: left out, or of a served model
chat_tools           the searches and calls in the conversations
agent_chats          from questions to conversations of each agent
"""
