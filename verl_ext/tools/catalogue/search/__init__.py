"""Finding tools in a catalogue by words.

tool         ToolSearch, the tool that agents call; tool_search makes it of a configuration
documents    what is searched of a tool
indexes      indexes on disk, built once
fusion       several rankings as one
queries      queries with the tools that answer them; measure: `python -m verl_ext.tools.catalogue.search.measure`
"""

from verl_ext.tools.catalogue.search.tool import METHODS, ToolSearch, open_search, tool_search

__all__ = ["METHODS", "ToolSearch", "open_search", "tool_search"]
