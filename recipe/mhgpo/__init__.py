"""The three-agent search system of MHGPO: Rewriter -> (search) -> Reranker -> Answerer.

workflow     SearchQA, the system
prompts      the prompts for instruction-tuned models; prompts_tiny: for the tiny model
parsers      the values of the agents' outputs
penalties    the agent-specific rewards
single       the single-agent baseline
cold_start/  how the tiny model was trained
"""

from verl_ext.recipe.mhgpo.workflow import SearchQA

__all__ = ["SearchQA"]
