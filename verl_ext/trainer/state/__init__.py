"""What a run keeps from step to step and saves beside verl's own state.

run_state              RunState: all of the following, from start or resume to each checkpoint
checkpoint             which checkpoint a run continues from; marks complete ones
best                   keeps the checkpoint with the best validation (`trainer.keep_best`)
run_settings           the settings that must not change when a run continues
contents               fingerprints of the files of a user's own system, and of data
tool_caches            what the caches of tools held at a checkpoint
agent_memory           the agents' memories (`mas.memory`)
waiting                questions that wait in the queue of an asynchronous run
oversampling           questions that were cut, and which questions a step begins (`mas.sampling.oversample`)
decision_heads         the policy heads (`mas.agents.<name>.head`)
trajectory_recorder    chooses the questions that the trajectory log gets, and adds their advantages
"""
