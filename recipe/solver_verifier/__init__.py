"""A solver computes a sum step by step, a verifier checks it; they alternate until the verifier accepts.

workflow      SolveAndVerify, the system
prompts_tiny  the prompts of the tiny model
parsers       the values of the agents' outputs
cold_start/   how the tiny model was trained
"""

from verl_ext.recipe.solver_verifier.workflow import SolveAndVerify

__all__ = ["SolveAndVerify"]
