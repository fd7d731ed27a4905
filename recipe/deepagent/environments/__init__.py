"""Environments behind the interface of tools: what a call does depends on the calls before it in its trajectory.

base.py      EnvironmentTool: state as a function of a trajectory's own calls
alfworld.py  ALFWorld's text games, nine actions
webshop.py   WebShop's search and click
workflow.py  EnvironmentAgent: DeepAgent whose tools are an environment
"""

from verl_ext.recipe.deepagent.environments.alfworld import alfworld_tool
from verl_ext.recipe.deepagent.environments.base import Environment, EnvironmentTool, Turn
from verl_ext.recipe.deepagent.environments.webshop import webshop_tool
from verl_ext.recipe.deepagent.environments.workflow import EnvironmentAgent

__all__ = ["Environment", "EnvironmentAgent", "EnvironmentTool", "Turn", "alfworld_tool", "webshop_tool"]
