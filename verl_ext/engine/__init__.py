"""Model engines for verl: training on the CPU, a rollout engine on Hugging Face models, and LoRA adapters per agent.

platform_cpu    verl's platform "cpu", used only under VERL_PLATFORM=cpu
preload/        starts Ray's workers of a CPU run as forks of a process that has imported torch already
fsdp/           training: verl's FSDP engines on the CPU, and what is added to them
hf/             rollouts: `actor_rollout_ref.rollout.name=hf`
lora/           one LoRA adapter per agent, in training and in rollouts
vllm/           verl's vLLM: the same adapters, and a check of its weights
freed_memory    goes back to the system between training and rollouts
precision       the float type of trainer and rollout engine, by measurement
policy_names    keep the engines of several policies apart
policy_replica  replicas on ranks of their own, named by policy
object_store    weights to rollouts on ranks of their own, over Ray's object store; mailbox: its post office
fingerprints    of weights, to compare those of trainer and rollout engine
registration    makes hf/ and vllm/ known to verl
replaced        sets attributes for the time of a block
"""
