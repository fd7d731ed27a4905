"""A solver and a verifier that send each other round in circles until the verifier is content."""

from verl_ext.recipe.solver_verifier.workflow import SolveAndVerify

__all__ = ["SolveAndVerify"]
