"""Smurfs: plan, execute, answer, verify, roll back (recipe/smurfs/README.md), and its baselines.

workflow.py   the agents around search.py, the rule-based depth-first search with stable rollback, which is pure
baselines.py  ReAct, and DFSDT over tree.py, the decision tree, pure; turns.py reads their outputs
base.py       what these systems share
grammar.py    the JSON that agents write
scoring.py    what a question's work is worth
prompts.py, prompts_tiny.py, prompts_baselines.py
"""

from verl_ext.recipe.smurfs.baselines import DFSDT, ReAct
from verl_ext.recipe.smurfs.workflow import Smurfs

__all__ = ["DFSDT", "ReAct", "Smurfs"]
