"""Tools of the web: off unless asked for, played by a model in training, real ones where answers may change.

access_website(**settings)   a page as text
search_arxiv(**settings)     papers
web_search(**settings)       passages
"""

from verl_ext.tools.web.tools import TOOLS, access_website, search_arxiv, web_search

__all__ = ["TOOLS", "access_website", "search_arxiv", "web_search"]
