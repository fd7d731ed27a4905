"""Tools that agents call. Every tool is a `Tool` (base.py); a tool's own failure is a `ToolError`.

Importing this package loads neither torch nor verl; a backend's heavy libraries are imported when it is opened.
"""

from verl_ext.tools.base import Tool, ToolError, ToolRefused

__all__ = ["Tool", "ToolError", "ToolRefused"]
