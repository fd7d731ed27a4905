"""JoyAgents-R1: joint evolution of a master and four specialists (recipe/joyagents/README.md).

workflow.py     the master
specialists.py  question answering, function calls (of the shop, of any catalogue), math
react.py        what they share: think, call, answer, remember
grammar.py      what they write, and R_F
accuracy.py     R_A
prompts.py, prompts_tiny.py
"""

from verl_ext.recipe.joyagents.workflow import JoyAgents

__all__ = ["JoyAgents"]
