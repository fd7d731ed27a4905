"""One LoRA adapter per agent on one frozen base, in training and in rollouts.

adapters          AdapterOptions: the settings of adapters, and the names of their tensors
routed_lora       training: a forward pass in which each row goes through its own adapter
fsdp_adapters     mixin of verl's FSDP engine that trains such adapters
served_adapters   rollouts: a SlotEngine whose requests name an adapter
hf_server         the server of engine/hf with adapters
adapter_files     adapters in checkpoints, as folders that peft reads
"""
