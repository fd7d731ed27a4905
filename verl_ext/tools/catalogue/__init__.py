"""Tools by the thousand: what they are called, what they take, how they are found and run."""

from verl_ext.tools.catalogue.types import Catalogue, ToolSpec

__all__ = ["Catalogue", "ToolSpec"]
