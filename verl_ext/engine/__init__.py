"""CPU platform, CPU FSDP2 engines and the Hugging Face rollout engine (`actor_rollout_ref.rollout.name=hf`).

What touches verl:
    platform_cpu    verl's platform "cpu", chosen by VERL_PLATFORM=cpu only
    fsdp_cpu        actor, reference and critic on it
    registration    makes rollout.name=hf known
    replica         launches servers, ships weights to them
    server          the Ray actor: verl's server interface over an EngineLoop
    sharing         which rows share a prompt, and which go together
    shared_prompts  a forward pass in which they do (CPU engines)
Adapters per agent (`actor_rollout_ref.model.lora.adapters`), in training and in the rollout engine:
    adapters         options, names of tensors
    routed_lora      the layers, in training
    fsdp_adapters    verl's FSDP2 engine with them; fsdp_cuda registers it for CUDA
    adapter_files    peft folders, and what a checkpoint says of its adapters
    served_adapters  the layers and the SlotEngine, in the rollout engine
    adapter_server   its server
The engine itself knows torch and transformers only, and runs on any torch device:
    loop          a SlotEngine in a thread of its own: futures, waves, pauses, errors
    slots         SlotEngine: requests join and leave the running batch
    admission     which request goes into which slot, and what is prefilled for it
    cache         keys and values in slots, and the attention over them
    table         per-slot state, as tensors
    sampler       logits -> tokens, noise by counter
    params        what a request may ask for
    options       rollout.engine_kwargs.hf
    weights       does a state dict fit the model
    selfcheck     does the model fit the engine
"""
