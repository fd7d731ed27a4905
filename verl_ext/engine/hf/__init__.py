"""The rollout engine `rollout.name=hf`: continuous batching on any Hugging Face causal LM.

replica      verl's side: starts a server per replica, sends it weights
server       the Ray actor: verl's server interface over an EngineLoop
hardware     what the machine has: idle cores, memory
options      the settings `rollout.engine_kwargs.hf`
params       what a request may ask for, and what it gets: SamplingParams, Request, Finished

These modules know torch and transformers but not verl, and run on any torch device:

loop         EngineLoop: a SlotEngine in a thread of its own
slots        SlotEngine: requests join and leave the running batch between two tokens
admission    which request goes into which slot, and what is prefilled for it
prefixes     which prefixes of prompts are in slots already
passes       the forward passes over slots
cache        the KV cache in slots, and the attention over it
slot_table   what else the engine keeps of each slot, as tensors
sampler      from logits to tokens
stops        ends requests at stop strings
stats        counters
packed_weights  weights in the order that a CPU's kernels read, for decode steps
weights      checks a state dict against the model before it is copied
selfcheck    checks at start-up that the engine can run the model
"""
