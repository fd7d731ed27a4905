"""JoyAgents-R1: a master that calls four specialists, each with a memory (recipe/joyagents/README.md).

workflow     JoyAgents, the system: the master and the rewards
specialists  the four agents: question answering, the shop's APIs, other functions, math
react        the loop that master and specialists share: think, call a tool, answer, remember
grammar      reads an output; the format reward R_F
accuracy     the accuracy reward R_A; scoring: what a finished work earns
shop         the twelve APIs of the shop; shop_records: the data behind them
single       SingleAgent, Table 1's baseline: one agent with all tools
decision     a second workflow: one decision of the function agent, for ToolBench's static evaluation
prompts      the prompts for instruction-tuned models, made of prompt_texts; prompts_tiny: for the tiny model
data/        writes the questions for RL and the conversations for fine-tuning
cold_start/  how the tiny model was trained
assets/      the tiny model, and the specialists' descriptions for the master
"""

from verl_ext.recipe.joyagents.single import SingleAgent
from verl_ext.recipe.joyagents.workflow import JoyAgents

__all__ = ["JoyAgents", "SingleAgent"]
