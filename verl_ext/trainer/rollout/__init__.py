"""Samples the questions of a training step: takes the place of verl's agent loops.

agent_loop      MultiAgentLoopManager: verl's agent-loop manager; deals questions to workers, collects statistics
remote_workers  RemoteWorkers: rollout workers in other processes and on other nodes; replaces one that dies
node_tools      NodeTool: a tool that is in one process a node, for all rollout workers there
worker          RolloutWorker: samples trajectories of its questions with a strategy of verl_ext.sampling
question_forest the forest of a question, with what a worker brings to it
cutting         ends the sampling of questions whose step has enough others
llm             ServedLLM: the LLM that agents call, over verl's rollout servers
chat_tokens     ChatTokens: chats with tools as tokens, by verl's builders and parsers
waves           WaveLLM: the same with a fixed schedule, for bit-identical runs
watchdog        says what a run waits for when nothing happens, and ends it when that lasts
phases          knows which phase the trainer is in, says when it takes much longer than before, and ends it
models          the model of each agent: one of the run, or of its policy
tracing         sends sampled questions to OpenTelemetry; verl_trace: to the backends of verl's rollout trace
forest_to_rows  from the calls of a question to training rows
garbage         when Python's garbage collector works
row_writer      writes rows into TransferQueue
"""
