"""verl's FSDP training engines on the CPU, and what is added to them on the CPU and on CUDA.

cpu              actor, reference model and critic on the CPU; imports the other modules of this folder
cuda             actor and reference model on CUDA, with adapters per agent and decisions
shared_prompts   mixin: rows with the same prompt compute it once
memory           how much a micro-batch may hold
batching         which rows share a prompt, and which sequences form a batch; no tensors
masked_logits    mixin: the log-probabilities of decisions, among their allowed tokens only
"""
