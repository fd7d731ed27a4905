"""Web tools: off by default, simulated by a model in training, live where answers may change.

tools       access_website: a page as text; search_arxiv: papers; web_search: passages
settings    their settings
fetch       fetches a page within limits; addresses: which addresses are allowed
pages       HTML as text; arxiv: the arXiv API
"""

from verl_ext.tools.web.tools import TOOLS, access_website, search_arxiv, web_search

__all__ = ["TOOLS", "access_website", "search_arxiv", "web_search"]
