"""Catalogues of thousands of tools: agents search them in words, and call the tools that they find by name.

load        load_catalogue(sources): from the `sources` of a configuration to a Catalogue; formats/ reads each kind
            names_of(extra, row, remedy): the tools that a row of a data set names
types       ToolSpec, a tool as its documentation describes it; Catalogue; Backend, which runs tools
search/     ToolSearch, tool_search: the tool by which agents find tools
toolbox     Toolbox, tool_call: the tool by which agents call them
written_calls    reads the JSON of a call in an agent's output
recorded/   a back end of recorded results
render      any result as text of bounded length
schemas     checks arguments by JSON Schema; patterns: its patterns, within a time limit
"""

from verl_ext.tools.catalogue.load import load_catalogue, names_of
from verl_ext.tools.catalogue.recorded import Recorded
from verl_ext.tools.catalogue.render import render
from verl_ext.tools.catalogue.search import ToolSearch, tool_search
from verl_ext.tools.catalogue.toolbox import Toolbox, tool_call
from verl_ext.tools.catalogue.types import Backend, Catalogue, ToolSpec, canonical

__all__ = [
    "Backend",
    "Catalogue",
    "Recorded",
    "ToolSearch",
    "ToolSpec",
    "Toolbox",
    "canonical",
    "load_catalogue",
    "names_of",
    "render",
    "tool_call",
    "tool_search",
]
