"""Recorded results of real calls, found by tool and arguments.

results     Recorded: looks a result up; reads API-Bank's files
toolbench   reads the cache of StableToolBench
"""

from verl_ext.tools.catalogue.recorded.results import Recorded, content_of

__all__ = ["Recorded", "content_of"]
