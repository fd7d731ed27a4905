"""Policy heads: small policies on frozen embeddings, for agents that decide among given texts (`Agent.choices`).

PolicyHead(similarity)    answers in the place of a language model: chooses, and knows the choice's probability
Learner(similarity, …)    trains the weights by REINFORCE; the only module of this room that needs torch

docs/puppeteer.md says when to use one, verl_ext/trainer/state/decision_heads.py how it trains beside the policy.
"""

from verl_ext.heads.policy import PolicyHead, Weights

__all__ = ["PolicyHead", "Weights"]
