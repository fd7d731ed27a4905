"""The operations of OpenAPI documents, called over HTTP: `rest`, a back end of `tool_call`.

settings    RestSettings, and the checks before a start
writing     writes arguments into a request, as the document says
reading     reads the answer: a result, an error for the agent, or a failure of the server
sending     sends it: hosts, pace, limits, attempts
backend     RestBackend; records answers and replays them
"""

from verl_ext.tools.rest.backend import RestBackend, rest

__all__ = ["RestBackend", "rest"]
