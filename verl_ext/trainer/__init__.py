"""Connects multi-agent rollouts with verl's trainer. No other folder overrides verl's trainer or agent loop.

run_callback    Hydra calls it before and after a run: checks, progress, summary; interrupt: what Ctrl-C does
modes           `trainer.v1.trainer_mode`: what follows from it, and what is refused
config          the section `mas`, typed and checked; sections: its parts
build           builds the workflow and its tools from `mas`
checkpoint_chat a checkpoint that judges, in the process of the rollouts
lora_setup      `mas.policy`: one policy for all agents, or one LoRA adapter each
preflight/      checks before a run starts
trainer         subclasses of verl's V1 trainers; begin here, its docstring lists the ten parts of a training step
first_to_end    the synchronous mode in which a step begins more questions than it trains on
separate_async  the mode in which rollouts go on beside the training
step            what a step does between rollouts and the first forward pass
row             Row: what a call carries from the rollout to the optimiser, as columns and tag of TransferQueue
batch           TransferQueue's tags as the tensors that algorithms take
resting         rows without an advantage, which an update leaves out
updates         a policy's part of a step: pads and balances rows, updates actor and critic
policies/       several policies in one run (`mas.policies`)
doctor          Doctor: asserts and logs at every step that what was sampled is what trains
row_checks      what the doctor asserts of the rows
checksums       numbers by which the trainer and the training processes compare rows
row_selection   drops rows, forms groups across questions, weighs rows
advantage       makes our algorithms known to verl as advantage estimators
loss            verl's PPO loss with a weight per row
budget          `mas.budget`: ends a run after so many tokens or questions
ranks           ends a run in which a phase hangs or a process that it needs dies, and shows what they do
nodes           a run on a Ray cluster: what stays on the driver's node, and who notices that another one dies
rollout/        samples the questions of a step
state/          what a run keeps from step to step and in checkpoints
"""
