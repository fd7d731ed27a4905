"""Puppeteer: an orchestrator that learns which agent acts next (recipe/puppeteer/README.md).

workflow     Puppeteer, the system: explorations, budgets, vote, reward
puppets      the agents of the pool: what each is asked, and how its output is read
orders       fixed rules for who acts next, to compare with: random, a fixed order, an oracle
scoring      scores an answer, by data set
prompts      the prompts for instruction-tuned models; prompts_tiny: for the tiny model
cold_start/  how the tiny model was trained
"""

from verl_ext.recipe.puppeteer.workflow import Puppeteer

__all__ = ["Puppeteer"]
