"""Smurfs: plan, execute, answer, verify, roll back (recipe/smurfs/README.md).

search.py    the rule-based depth-first search with stable rollback, pure
workflow.py  the agents around it
grammar.py   the JSON that agents write
scoring.py   what a question's work is worth
prompts.py, prompts_tiny.py
"""

from verl_ext.recipe.smurfs.workflow import Smurfs

__all__ = ["Smurfs"]
