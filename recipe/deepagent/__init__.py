"""DeepAgent: one agent that searches for tools, calls them, and folds its history into memories.

workflow       DeepAgent, the system; work: what it has done in a trajectory
grammar        the actions in an output (search, call, fold), and how results are written behind them
memories       the JSON schemas of the three memories
prompts        the prompts for instruction-tuned models; prompts_tiny: for the tiny model
general        GeneralAgent: web, files and Python in place of a catalogue (GAIA, HLE)
mixture        Mixture: tasks of several kinds in one run
environments/  ALFWorld and WebShop in place of the tools; assets/*.jsonl: their actions
cold_start/    how the tiny model in assets/ was trained
"""

from verl_ext.recipe.deepagent.general import GeneralAgent
from verl_ext.recipe.deepagent.mixture import Mixture
from verl_ext.recipe.deepagent.workflow import DeepAgent

__all__ = ["DeepAgent", "GeneralAgent", "Mixture"]
