"""Puppeteer: an orchestrator that learns which agent acts next (recipe/puppeteer/README.md).

workflow     Puppeteer, the system: its agents, vote, reward
explorer     who acts after whom: chains, a tree or a graph of steps, and their budgets
puppets      the agents of the pool: their steps, and how their output is read
served       served models of a mixed pool
orders       fixed rules for who acts next, to compare with: random, a fixed order, an oracle
scoring      scores an answer, by data set
quality      what is measured of an open task's answer, by rules and by a judge
prompts      the prompts for instruction-tuned models; prompts_tiny: for the tiny model
cold_start/  how the tiny model was trained
"""

from verl_ext.recipe.puppeteer.workflow import Puppeteer

__all__ = ["Puppeteer"]
