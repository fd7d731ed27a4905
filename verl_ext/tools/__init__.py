"""Tools that agents call: functions, synchronous or asynchronous. Ours subclass `Tool`, for counts and `close`.

A tool that fails itself raises a `ToolError`.

Importing this package loads neither torch nor verl; heavy libraries of a backend are imported when it is opened.

base                               the interface of a tool
retrieval/, retrieval_server.py    search in a corpus: BM25, dense vectors
catalogue/                         catalogues of tools, and search in them
native                             single tools with a definition: those of verl, and of any catalogue
rest/                              operations of OpenAPI documents, called over HTTP
simulator/, simulator_server.py    a model that answers in place of real tools
sandbox/, web/, files.py           programs, web pages, files
chat/, http/                       clients and servers
settings, threads, time_limits     settings of tools; blocking calls; limits that do not count queues
measuring                          what the programs that measure search share
"""

from verl_ext.tools.base import Tool, ToolError, ToolRefused

__all__ = ["Tool", "ToolError", "ToolRefused"]
