"""Puppeteer: an orchestrator that learns who acts next (recipe/puppeteer/README.md).

workflow.py  the orchestrated system: explorations, budgets, vote, reward
puppets.py   the agents of the pool: what each asks its model for, and what it makes of the answer
orders.py    who acts next without learning: random, a fixed order, an oracle
scoring.py   how right an answer is, by data set
prompts.py, prompts_tiny.py
"""

from verl_ext.recipe.puppeteer.workflow import Puppeteer

__all__ = ["Puppeteer"]
