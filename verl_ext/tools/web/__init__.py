"""Web tools: off by default, simulated by a model in training, live where answers may change.

access_website(**settings)   a page as text
search_arxiv(**settings)     papers
web_search(**settings)       passages
"""

from verl_ext.tools.web.tools import TOOLS, access_website, search_arxiv, web_search

__all__ = ["TOOLS", "access_website", "search_arxiv", "web_search"]
