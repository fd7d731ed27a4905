"""Baselines: published single agents and small systems on the tools and rewards of the systems they are compared with.

One file each, all of them on `Baseline` (recipe/smurfs/baselines.py, where ReAct and DFSDT are); docs/baselines.md says
what each does and where it differs from its paper.

cot             chain of thought, without tools
plan_and_solve  a plan first, then ReAct along it
reflexion       ReAct, again after a reflection on what went wrong
rewoo           all calls planned at once, then one answer from their results
codeact         Python programs that call the tools, in the sandbox
self_refine     ReAct's answer, criticised and rewritten
single_agent    one agent that searches for its tools itself
debate          several ReAct agents that read each other's answers, and vote
prompts         the prompts of all of them
cold_start/     demonstrations of some of them, for small real models
"""

from verl_ext.recipe.baselines.codeact import CodeAct
from verl_ext.recipe.baselines.cot import CoT
from verl_ext.recipe.baselines.debate import Debate
from verl_ext.recipe.baselines.plan_and_solve import PlanAndSolve
from verl_ext.recipe.baselines.reflexion import Reflexion
from verl_ext.recipe.baselines.rewoo import ReWOO
from verl_ext.recipe.baselines.self_refine import SelfRefine
from verl_ext.recipe.baselines.single_agent import SingleAgent
from verl_ext.recipe.smurfs.baselines import DFSDT, ReAct

__all__ = [
    "DFSDT",
    "CoT",
    "CodeAct",
    "Debate",
    "PlanAndSolve",
    "ReAct",
    "ReWOO",
    "Reflexion",
    "SelfRefine",
    "SingleAgent",
]
