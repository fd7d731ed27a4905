"""CPU platform, CPU FSDP2 engines and the Hugging Face rollout engine (`actor_rollout_ref.rollout.name=hf`).

platform_cpu    verl's platform "cpu", chosen by VERL_PLATFORM=cpu only
registration    makes rollout.name=hf known to verl
replaced        attributes replaced for the time of a block
preload/        Ray's workers of a CPU run as forks of one process that has imported torch
fsdp/           actor, reference and critic on the CPU; rows that share a prompt; decisions among allowed tokens
lora/           adapters per agent, in training and in the rollout engine
hf/             the rollout engine
    replica     launches servers, ships weights to them
    server      the Ray actor: verl's server interface over an EngineLoop
  What follows knows torch and transformers only, and runs on any torch device:
    loop        a SlotEngine in a thread of its own: futures, waves, pauses, errors
    slots       SlotEngine: requests join and leave the running batch
    admission   which request goes into which slot, and what is prefilled for it
    cache       keys and values in slots, and the attention over them
    table       state of each slot, as tensors
    sampler     logits -> tokens, noise by counter
    params      what a request may ask for
    options     rollout.engine_kwargs.hf
    weights     does a state dict fit the model
    selfcheck   does the model fit the engine
vllm/           verl's vLLM with several adapters
"""
