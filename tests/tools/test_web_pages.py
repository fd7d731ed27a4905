"""Pages as text: what a reader sees, of hostile HTML too; arXiv's feeds."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from verl_ext.tools import ToolError, ToolRefused
from verl_ext.tools.web.arxiv import papers, parameters
from verl_ext.tools.web.pages import html_text, text_of

UNITS = ["<!--", "<!", "</", "<a ", "<a '", "<a b='", '<a b="', "<script></", "<![", "&", "<", "= "]
PARTS = ["<", ">", "<!--", "-->", "'", '"', "=", "a", "<script>", "&#x", "\n"]
PAGE = """<!DOCTYPE html><html><head><title>The  Title</title>
<style>p > a { color: "red" }</style><script>if (a < b) document.write("<p>no</p>")</script></head>
<body class=a onload='x > "y"'><h1>Head&nbsp;line</h1><p>One <b>bo</b>ld
 word &amp; an &lt;angle&gt;.<br>Next<!-- <p>hidden</p> --></p>
<table><tr><td>a</td><td>b</td></tr></table><img alt="1 > 0">3 < 4 <p data-x=don't>last</p></body></html>"""


def test_what_a_reader_sees():
    seen = "The Title\nHead line\nOne bold word & an <angle>.\nNext\na b\n3 < 4\nlast"
    assert html_text(PAGE) == seen
    assert text_of(PAGE.encode(), "text/html", None) == text_of(b"  " + PAGE.encode(), "", None) == seen


@pytest.mark.parametrize(
    ("markup", "text"),
    [
        ("a<script>x", "a"),
        ("a<script>x</SCRIPT >b", "a\nb"),
        ("a<!-- b", "a"),
        ("a<!-->b", "ab"),  # an empty comment: HTML's standard, 13.2.5.43
        ("a<!--->b-->c", "ab-->c"),
        ("a<!---->b<!-- - -->c", "abc"),
        ("a<!b>c<?d?>e</ f>g", "aceg"),
        ("a<b", "a"),
        ("a<", "a<"),
        ("<3 <a href='>'>b</a>", "<3 b"),
        ("<a title='never closed>b", "b"),
        ("&#0;&#xD800;&#99999999999;&bogus;", "\ufffd\ufffd\ufffd&bogus;"),
        ("&#" + "9" * 5000 + ";", "\ufffd"),
        ("a\x1b[31m", "a\\x1b[31m"),
        ("a<svg class='b' />c<svg/>d<svg><path/>no</svg>e", "a\nc\nd\ne"),
        ("a<script src='b' />c</script>d", "a\nd"),
        ("", ""),
    ],
)
def test_malformed_markup(markup, text):
    assert html_text(markup) == text


@pytest.mark.parametrize("unit", UNITS)
def test_time_is_linear_in_the_length(unit):
    """Ends within the time limit of a test; html.parser takes an hour."""
    html_text("<p " * 3 + unit * (1_000_000 // len(unit)))


@given(st.text() | st.lists(st.sampled_from(PARTS)).map("".join))
@settings(max_examples=200, deadline=None)
def test_any_text_is_readable(page):
    text = html_text(page)
    assert text == text.strip() and "\n\n" not in text and len(text) <= 10 * len(page)
    text.encode()


@pytest.mark.parametrize(
    ("body", "charset", "text"),
    [
        ("é".encode("latin-1"), "iso-8859-1", "é"),
        ("日本".encode("shift_jis"), "Shift_JIS", "日本"),
        ("é".encode(), "no-such-charset", "é"),
        ("é".encode(), "hex", "é"),
        ("é".encode(), "a\0b", "é"),
        (b"\xef\xbb\xbf\xe9", None, "\ufffd"),
        (b"<meta charset='latin-1'><p>\xe9", None, "é"),
    ],
)
def test_encodings(body, charset, text):
    assert text_of(body, "text/html", charset) == text


def test_plain_text_and_what_is_none():
    assert text_of(b"a < b\n\n  c <p>", "text/plain", None) == "a < b\n\n  c <p>"
    assert text_of(b'{"a": 1}', "", None) == '{"a": 1}'
    with pytest.raises(ToolRefused, match="not text"):
        text_of(b"\x89PNG\0\0", "text/html", None)


FEED = """<?xml version="1.0" encoding="UTF-8"?><feed xmlns="http://www.w3.org/2005/Atom"><title>q</title>
<entry><id>http://arxiv.org/abs/1706.03762v7</id><published>2017-06-12T17:57:34Z</published>
<title>Attention Is All\n  You Need</title><summary>  The dominant &lt;models&gt;. </summary>
<author><name>A. Vaswani</name></author><author><name>N. Shazeer</name></author></entry>
<entry><title>Bare</title></entry></feed>"""


def test_papers_of_a_feed():
    first, bare = papers(FEED.encode())
    assert first["title"] == "Attention Is All You Need"
    assert first["text"] == (
        "2017-06-12. A. Vaswani, N. Shazeer. The dominant <models>. (http://arxiv.org/abs/1706.03762v7)"
    )
    assert bare["title"] == "Bare" and papers(b"<feed xmlns='http://www.w3.org/2005/Atom'/>") == []


LAUGHS = '<!DOCTYPE l [<!ENTITY a "ha">' + "".join(
    f'<!ENTITY {b} "{f"&{a};" * 10}">' for a, b in zip("abcdefghi", "bcdefghij", strict=True)
)


@pytest.mark.parametrize(
    ("feed", "words"),
    [
        (f"{LAUGHS}]><feed>&j;</feed>", "has a document type"),
        ('<!DOCTYPE f [<!ENTITY x SYSTEM "file:///etc/passwd">]><feed>&x;</feed>', "has a document type"),
        ('<!DOCTYPE f SYSTEM "http://127.0.0.1/x.dtd"><feed/>', "has a document type"),
        ("<html>down</html>", "what is no feed but 'html'"),
        ("<feed>", "what is no feed"),
        ('<?xml version="1.0" encoding="hex"?><feed/>', "what is no feed"),
    ],
)
def test_what_is_no_feed(feed, words):
    with pytest.raises(ToolError, match=words):
        papers(feed.encode())


def test_a_query_becomes_parameters():
    common = {"max_results": "5"}
    asked = {"search_query": "all:multi AND all:agent AND all:LLMs", "sortBy": "relevance"}
    assert parameters("multi-agent AND LLMs", 5) == common | asked
    operators = parameters(' all:"x)" OR (y&max_results=9)', 5)
    assert operators["search_query"] == "all:all AND all:x AND all:y AND all:max_results AND all:9"
    for said in ("1706.03762", "arXiv:1706.03762v2 ", "cs/0112017", "math.GT/0309136"):
        assert parameters(said, 5) == common | {"id_list": said.strip().removeprefix("arXiv:")}
    assert parameters(" ,.-", 5) == {} and parameters("or", 5) == {}
