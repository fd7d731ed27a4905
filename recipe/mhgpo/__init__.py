"""The three-agent search system of MHGPO: Rewriter -> (search) -> Reranker -> Answerer.

workflow     SearchQA, the system; SingleQA, the single-agent baseline
prompts      the prompts for instruction-tuned models; prompts_tiny: for the tiny model
parsers      the values of the agents' outputs
penalties    the agent-specific rewards
cold_start/  how the tiny model was trained
"""

from verl_ext.recipe.mhgpo.workflow import SearchQA, SingleQA

__all__ = ["SearchQA", "SingleQA"]
