"""Smurfs: agents that plan, call tools, answer and verify (recipe/smurfs/README.md), and two baselines.

workflow     Smurfs, the system
search       its depth-first search over tools, as pure rules without models
baselines    ReAct and DFSDT, single agents with the same tools
tree         the decision tree of DFSDT, as pure rules; turns: reads the outputs of both baselines
reach        where a baseline's tools are: in a catalogue, in an environment, or of `mas.tools`
base         what Smurfs and baselines share: settings, tool calls, reward
grammar      the JSON that the Smurfs write
scoring      scores the answer and the path of calls
prompts      the prompts for instruction-tuned models; prompts_tiny: for the tiny model; prompts_baselines
cold_start/  how the tiny model was trained
"""

from verl_ext.recipe.smurfs.baselines import DFSDT, ReAct
from verl_ext.recipe.smurfs.workflow import Smurfs

__all__ = ["DFSDT", "ReAct", "Smurfs"]
