"""Policy heads: small policies on frozen text embeddings, for agents that choose among given texts (`Agent.choices`).

A policy head is no head of the language model: it never sees its hidden states.

policy     PolicyHead answers in place of a language model: it chooses a text and knows the probability of its choice
learner    Learner trains the weights of a head by REINFORCE; the only module here that needs torch

docs/puppeteer.md says when to use a head. verl_ext/trainer/state/decision_heads.py trains heads during a run.
"""

from verl_ext.heads.policy import PolicyHead, Weights

__all__ = ["PolicyHead", "Weights"]
