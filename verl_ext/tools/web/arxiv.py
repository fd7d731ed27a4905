"""The arXiv API (https://info.arxiv.org/help/api/user-manual.html): queries, and the Atom feeds of its answers."""

from __future__ import annotations

import re
from typing import Any
from xml.etree import ElementTree
from xml.parsers import expat

from verl_ext.tools.base import ToolError

URL = "https://export.arxiv.org/api/query"
# "Please make no more than one request every three seconds" (terms of use).
INTERVAL_S = 3.0
IDENTIFIER = re.compile(r"\s*(?:arxiv:)?((?:\d{4}\.\d{4,5}|[a-z-]+(?:\.[a-z]{2})?/\d{7})(?:v\d+)?)\s*", re.IGNORECASE)
WORD = re.compile(r"\w+")
# Words of a query that are used, and the operators of the API.
MAX_WORDS, OPERATORS = 30, ("and", "or", "andnot")
ATOM = "{http://www.w3.org/2005/Atom}"


def parameters(query: str, max_results: int) -> dict[str, str]:
    """The API's parameters for an identifier, or for words that must all occur; empty if the query has no word."""
    found = IDENTIFIER.fullmatch(query)
    if found:
        return {"id_list": found[1], "max_results": str(max_results)}
    words = [word for word in WORD.findall(query) if word.lower() not in OPERATORS][:MAX_WORDS]
    if not words:
        return {}
    asked = " AND ".join(f"all:{word}" for word in words)
    return {"search_query": asked, "max_results": str(max_results), "sortBy": "relevance"}


def papers(feed: bytes) -> list[dict[str, str]]:
    """Title and text (date, authors, abstract, address) of each paper of a feed.

    Raises:
        ToolError: it is not an Atom feed, or it has a document type, which feeds do not need but entities do.
    """
    try:
        _without_doctype(feed)
        root = ElementTree.fromstring(feed)
    except (expat.ExpatError, ElementTree.ParseError, ValueError, LookupError) as error:
        raise ToolError(f"arXiv answered with what is no feed: {error}") from error
    if root.tag != f"{ATOM}feed":
        raise ToolError(f"arXiv answered with what is no feed but {root.tag!r:.100}")
    return [_paper(entry) for entry in root.iter(f"{ATOM}entry")]


def _paper(entry: ElementTree.Element) -> dict[str, str]:
    authors = [_words(author) for author in entry.iterfind(f"{ATOM}author/{ATOM}name")]
    listed = ", ".join([*authors[:5], *(["…"] if len(authors) > 5 else [])])
    parts = {name: _words(entry.find(f"{ATOM}{name}")) for name in ("title", "summary", "published", "id")}
    text = f"{parts['published'][:10]}. {listed}. {parts['summary']} ({parts['id']})"
    return {"title": parts["title"], "text": text}


def _words(element: ElementTree.Element | None) -> str:
    return "" if element is None else " ".join((element.text or "").split())


def _without_doctype(feed: bytes) -> None:
    """Refuse document types: they declare entities, which can expand to gigabytes or to files."""

    def refuse(*_: Any) -> None:
        raise ValueError("it has a document type")

    parser = expat.ParserCreate()
    parser.StartDoctypeDeclHandler = refuse
    parser.Parse(feed, True)
