"""Simulated tools: a model answers calls from a tool's documentation; the same call gets the same answer.

settings    simulator(**settings): a back end of `tool_call`, from a configuration
player      Simulator: asks the model, the cache, and results of real calls
prompt      the prompt of the model; answers: from its answer to a result
cache       ResultCache: results in an SQLite file; keys: the key of a call
client      HttpSimulator: a client of the server (`python -m verl_ext.tools.simulator_server`)
"""

from verl_ext.tools.simulator.cache import ResultCache
from verl_ext.tools.simulator.client import HttpSimulator
from verl_ext.tools.simulator.player import Counters, Simulator
from verl_ext.tools.simulator.settings import SimulatorSettings, simulator

__all__ = ["Counters", "HttpSimulator", "ResultCache", "Simulator", "SimulatorSettings", "simulator"]
