"""Simulated tools: a model answers calls from a tool's documentation; the same call gets the same answer.

simulator(**settings)   a back end of `tool_call`, from a configuration
Simulator               the model, the cache, and results of real calls
HttpSimulator           a client of the server (`python -m verl_ext.tools.simulator_server`)
ResultCache             results in an SQLite file
"""

from verl_ext.tools.simulator.cache import ResultCache
from verl_ext.tools.simulator.client import HttpSimulator
from verl_ext.tools.simulator.player import Counters, Simulator
from verl_ext.tools.simulator.settings import SimulatorSettings, simulator

__all__ = ["Counters", "HttpSimulator", "ResultCache", "Simulator", "SimulatorSettings", "simulator"]
