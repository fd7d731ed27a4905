"""Tools by the thousand: what they are called, what they take, how they are found and run.

load_catalogue(sources)   OpenAPI, ToolBench, API-Bank, ToolHop, Python functions, MCP servers -> Catalogue
ToolSearch, tool_search   the tool by which agents find tools
Toolbox, tool_call        the tool by which agents call them
render(result, limit)     any result as text
"""

from verl_ext.tools.catalogue.load import load_catalogue
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
    "render",
    "tool_call",
    "tool_search",
]
