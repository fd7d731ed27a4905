"""The client of OpenAI-compatible servers.

endpoint.py  `ChatEndpoint`: requests, retries, parameters that a server does not know
wire.py      how such servers word answers and refusals: pure functions
"""

from verl_ext.tools.chat.endpoint import ChatEndpoint, EndpointFailed, TooLong

__all__ = ["ChatEndpoint", "EndpointFailed", "TooLong"]
