"""verl's FSDP training engines on the CPU, and what is added to them on the CPU and on CUDA.

cpu              actor, reference model and critic on the CPU; imports the other modules of this folder
cuda             actor and reference model on CUDA, with adapters per agent and decisions
shared_prefixes  mixin: common prefixes of rows are computed once
packed_attention packed rows one by one, by PyTorch alone: attn_implementation=packed_sdpa
copies           the weights from before a step, where it trains in parts
memory           how much a micro-batch may hold
batching         which rows form a tree of prefixes, and which trees a batch; no tensors
layout           trees as inputs of a model, and its output where rows predict
tree_attention   attention of a tree without the pairs of tokens that its mask would hide
lighter_layers   norms and gated MLPs that keep less for the backward pass
masked_logits    mixin: the log-probabilities of decisions, among their allowed tokens only
"""
