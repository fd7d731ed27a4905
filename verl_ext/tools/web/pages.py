"""Pages as text: HTML without its markup, in time linear in its length whatever it is.

Python's html.parser is not used: versions of 3.10 to 3.12 in use need 25 s for 200 kB of "<!--", and hold up the whole
process meanwhile. Here nothing is searched for twice.
"""

from __future__ import annotations

import codecs
import html
import re
from collections.abc import Iterator

from verl_ext.tools.base import ToolRefused
from verl_ext.tools.catalogue.render import clean

# Encodings of texts; Python has others that are none (hex, zip) or take long (punycode, idna).
CHARSET = re.compile(r"utf|ascii|latin|iso|cp\d|gb|big5|hz|euc|shift|koi8|mac|tis|kz1048|johab")
META = re.compile(rb"<meta[^>]{0,200}?charset\s*=\s*[\"']?\s*([\w.:-]{1,40})", re.IGNORECASE)
TAG = re.compile(r"/?([a-zA-Z][a-zA-Z0-9]*)")
# What ends a tag, or opens an attribute's quoted value, in which ">" ends nothing.
END = re.compile(r">|=\s*([\"'])")
# Elements whose content is no text, up to their closing tag.
HIDDEN = {name: re.compile(f"</{name}", re.IGNORECASE) for name in ("script", "style", "svg", "template", "noscript")}
INLINE = frozenset(
    "a abbr acronym b bdi bdo big cite code data del dfn em font i ins kbd label mark q s samp small span strike "
    "strong sub sup time tt u var wbr".split()
)
CELLS = ("td", "th")
# html.unescape turns these into numbers, however long they are.
LONG_REFERENCE = re.compile(r"&#[xX]?[0-9a-fA-F]{8,};?")
BLANKS, LINES = re.compile(r"[^\S\n]+"), re.compile(r"\s*\n\s*")


def text_of(body: bytes, kind: str, charset: str | None) -> str:
    """The text of a page; of HTML what a reader sees, blocks on lines of their own.

    Args:
        kind: media type; "" unknown: HTML if it begins like it.
        charset: as the server says; without it the page's own word counts, then UTF-8.

    Raises:
        ToolRefused: it is no text.
    """
    is_html = kind in ("text/html", "application/xhtml+xml") or (not kind and body[:200].lstrip()[:1] == b"<")
    found = META.search(body[:2048]) if is_html and not charset else None
    text = _decoded(body, charset or (found[1].decode("ascii", "replace") if found else "utf-8"))
    if "\0" in text:
        raise ToolRefused("the page is no text, whatever its server says")
    return html_text(text) if is_html else clean(text).strip()


def html_text(page: str) -> str:
    """What a reader sees of HTML, malformed or not."""
    text = LONG_REFERENCE.sub("\ufffd", "".join(_pieces(page)))
    lines = LINES.sub("\n", BLANKS.sub(" ", html.unescape(text)))
    return clean(lines).strip()


def _pieces(page: str) -> Iterator[str]:
    """Text, and a line break or a blank in the place of tags."""
    at, quotes = 0, {'"': True, "'": True}  # is there one to come
    while (start := page.find("<", at)) >= 0:
        yield _flat(page[at:start])
        tag = TAG.match(page, start + 1)
        if tag is None:
            at = _behind_markup(page, start)
            if at == start + 1:
                yield "<"
            continue
        name = tag[1].lower()
        at = _behind_tag(page, tag.end(), quotes)
        yield "" if name in INLINE else " " if name in CELLS else "\n"
        if name in HIDDEN and page[start + 1] != "/":
            close = HIDDEN[name].search(page, at)
            at = close.start() if close else len(page)
    yield _flat(page[at:])


def _flat(text: str) -> str:
    return text.replace("\n", " ").replace("\r", " ")


def _behind_markup(page: str, start: int) -> int:
    """Where a comment, declaration or instruction ends; directly behind a "<" that begins none."""
    if page.startswith("<!--", start):
        end = page.find("-->", start + 4)
        return len(page) if end < 0 else end + 3
    if page.startswith(("<!", "<?", "</"), start):
        end = page.find(">", start)
        return len(page) if end < 0 else end + 1
    return start + 1


def _behind_tag(page: str, at: int, quotes: dict[str, bool]) -> int:
    while found := END.search(page, at):
        at = found.end()
        if not found[1]:
            return at
        end = page.find(found[1], at) if quotes[found[1]] else -1
        quotes[found[1]] = end >= 0
        at = end + 1 if end >= 0 else at
    return len(page)


def _decoded(body: bytes, charset: str) -> str:
    try:
        name = codecs.lookup(charset.strip()).name
    except (LookupError, ValueError):
        name = "utf-8"
    if name == "utf-8" or not CHARSET.match(name):
        name = "utf-8-sig"
    return body.decode(name, "replace")
