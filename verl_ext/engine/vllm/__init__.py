"""verl's vLLM with one LoRA adapter per agent. Not run: no GPU was there.

sender   in every trainer rank: sends the base once, then all adapters
server   loads several adapters; a request names one
worker   vLLM's worker: turns one update into one LoRA per adapter
"""
