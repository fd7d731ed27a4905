"""Results that were recorded of real calls, by tool and arguments: API-Bank's files, StableToolBench's cache."""

from verl_ext.tools.catalogue.recorded.results import Recorded, content_of

__all__ = ["Recorded", "content_of"]
