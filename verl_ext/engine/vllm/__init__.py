"""verl's vLLM with checked weights, and with one LoRA adapter per agent. What has run, and where: docs/gpu.md.

sender   in every trainer rank: sends the weights, and compares what vLLM then holds
server   asks its workers; with adapters, a request names one
worker   vLLM's worker: turns one update into one LoRA per adapter, and says what it holds
served   finds the tensors that serve in vLLM's model
"""
