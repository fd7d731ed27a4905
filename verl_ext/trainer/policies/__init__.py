"""Several policies in one run (`mas.policies`): each its own model, tokenizer, optimiser, reference, critic and engine.

settings      which settings may differ, and the configuration of one policy
refusals      what does not go with several policies
policy        PolicyTrainer: verl's trainer without its loop is one policy
trainers      both in each mode: synchronous, colocated asynchronous, rollouts on ranks of their own
fan           one call to the worker groups, or the weight managers, of all policies; which weights are sent
coordinator   MultiPolicyTrainer: one loop, one forest, one credit and one advantage over all of them
checkpoints   the folders of the policies in a checkpoint, and what is recorded of them
"""
