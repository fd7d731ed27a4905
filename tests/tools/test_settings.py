"""Settings of tools that are refused before anything is loaded, with what is wrong and what is allowed."""

from __future__ import annotations

import pytest

from verl_ext.tools.catalogue import tool_call, tool_search
from verl_ext.tools.catalogue.formats.encyclopedia import encyclopedia
from verl_ext.tools.files import read_file
from verl_ext.tools.retrieval import Passage, build_retriever, search_tool
from verl_ext.tools.sandbox import run_python
from verl_ext.tools.simulator import simulator
from verl_ext.tools.web import access_website, search_arxiv, web_search

FACTORIES = {tool.name: tool for tool in (run_python, read_file, access_website, search_arxiv, web_search)}
FACTORIES |= {"tool_call": tool_call, "tool_search": tool_search, "simulator": simulator, "encyclopedia": encyclopedia}
TOOL = {"kind": "encyclopedia"}
LIVE = {"mode": "live", "endpoint": "http://a/v1"}


@pytest.mark.parametrize(
    ("name", "settings", "words"),
    [
        ("run_python", {"timeout": 3}, r"unknown settings of run_python \['timeout'\]; allowed: .*'wall_s'"),
        ("run_python", {"cpu_s": 0}, "cpu_s=0 must be at least 1"),
        ("run_python", {"wall_s": float("nan")}, "wall_s=nan must be finite"),
        ("run_python", {"memory_mb": 10}, "memory_mb=10 must be at least 64"),
        ("run_python", {"max_output": 100}, "max_output=100 must be at least 200"),
        ("run_python", {"cache": -1}, "cache=-1 must be at least 0"),
        ("read_file", {"folder": "/no/such"}, "there is no folder '/no/such'"),
        ("read_file", {"folder": "/tmp", "max_chars": 0}, "max_chars=0 must be at least 1"),
        ("read_file", {"folder": "/tmp", "max_chrs": 5}, r"unknown .*\['max_chrs'\]; .*Did you mean 'max_chars'"),
        ("web_search", {"mode": "on"}, "mode='on' is unknown; allowed: off, simulated, live"),
        ("web_search", {"mode": "simulated"}, "settings of web_search: mode=simulated needs a backend"),
        ("web_search", {"mode": "live"}, "settings of web_search: mode=live needs the url of a retrieval server"),
        ("web_search", {"top_k": 0}, "top_k=0 must be at least 1"),
        ("access_website", {"url": "x"}, r"unknown settings of access_website \['url'\]; allowed: \['mode', 'backend'"),
        ("access_website", {"timeout_s": 0}, "timeout_s=0 must be at least 0.1"),
        ("access_website", {"max_redirects": -1}, "max_redirects=-1 must be at least 0"),
        ("tool_call", {"source": 1}, r"unknown settings of tool_call \['source'\]; allowed: \['sources', 'only', 'rec"),
        ("tool_call", {"sources": [TOOL], "timeout_s": 0}, "timeout_s=0 must be above 0"),
        ("tool_call", {"sources": [TOOL], "max_chars": 0}, "max_chars=0 must be at least 1"),
        ("tool_call", {"sources": None}, "settings of tool_call: sources are needed, e.g."),
        ("tool_search", {"source": 1}, r"unknown settings of tool_search \['source'\]; allowed: \['sources', 'only',"),
        ("tool_search", {"sources": None}, "settings of tool_search: sources are needed, e.g."),
        ("tool_search", {"sources": [TOOL], "method": "bm52"}, "'bm52' is unknown; allowed: hybrid, bm25, dense"),
        ("tool_search", {"sources": [TOOL], "top_k": 0}, "top_k=0 must be at least 1"),
        ("tool_search", {"sources": [TOOL], "bm25": {"k2": 1}}, r"unknown bm25 options \['k2'\]; allowed"),
        ("tool_search", {"sources": [TOOL], "method": "dense", "bm25": {"k1": 1}}, "options of bm25 do nothing with"),
        ("simulator", {"caching": "x"}, r"unknown settings of the simulator \['caching'\]; allowed: .*'cache'"),
        ("simulator", {"mode": "live", "endpoint": "localhost:8100"}, "must be a base URL, e.g. http://127.0.0.1:8100"),
        ("simulator", {**LIVE, "concurrency": 0}, "concurrency=0 must be at least 1"),
        ("simulator", {**LIVE, "retries": -1}, "retries=-1 must be at least 0"),
        ("simulator", {**LIVE, "timeout_s": 0}, "timeout_s=0 must be above 0"),
        ("simulator", {"cache": "c", "mode": "replay", "max_rows": 0}, "max_rows=0 must be at least 1"),
        ("simulator", {"cache": "c", "mode": "replya"}, "mode='replya' is unknown; allowed: record, replay, live"),
        ("simulator", {"url": "http://a:1", "cache": "c", "mode": "replay"}, "the server has its own cache, mode. Rem"),
        ("encyclopedia", {"url": "http://localhost:1"}, "give index or corpus, no url"),
        ("encyclopedia", {}, "no source given"),
        ("encyclopedia", {"corpus": "c", "top_k": 0}, "top_k=0 must be at least 1"),
        ("encyclopedia", {"corpus": "c", "beginnings": 3}, "beginnings"),
        ("encyclopedia", {"index": "/tmp"}, "no index at"),
    ],
)
def test_a_tool_refuses_it_at_every_entrance(name, settings, words, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for call in (FACTORIES[name], FACTORIES[name].preflight, FACTORIES[name].identity):
        with pytest.raises(ValueError, match=words):
            call(**settings)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"top_k": 0}, "settings of the search tool: top_k=0 must be at least 1"),
        ({"top_k": 1001}, "top_k=1001 must be at most 1000"),
        ({"corpus": None}, "no source given"),
        ({"corpus": None, "index": "a", "url": "http://h:1"}, "one source"),
        ({"url": "http://h:1"}, "one source"),
        ({"corpus": None, "url": "localhost:8000"}, "expected http://HOST:PORT"),
        ({"corpus": None, "url": "http://host:notaport"}, "expected http://HOST:PORT"),
        ({"corpus": None, "url": "http://h:1", "attempts": 0}, "attempts=0 must be at least 1"),
        ({"corpus": None, "url": "http://h:1", "timeout_s": 0}, "timeout_s=0 must be above 0"),
        ({"corpus": "none.jsonl"}, "none.jsonl does not exist"),
    ],
)
def test_the_search_tool_refuses_it(tmp_path, settings, words):
    (tmp_path / "c.jsonl").write_text('{"pid": 1, "title": "A", "text": "amber"}\n')
    for call in (search_tool, search_tool.preflight):
        with pytest.raises(ValueError, match=words):
            call(**{"corpus": str(tmp_path / "c.jsonl"), **settings})
    search_tool.preflight(corpus=str(tmp_path / "c.jsonl"), top_k=2, url=None)


@pytest.mark.parametrize(
    ("backend", "options", "words"),
    [
        ("bm25", {"k_1": 1}, r"unknown bm25 options \['k_1'\]; allowed: .*k1"),
        ("bm25", {"k1": 0}, "k1=0 must be above 0"),
        ("bm25", {"k1": float("inf")}, "k1=inf must be finite"),
        ("bm25", {"b": 2}, "b=2 must be at most 1"),
        ("bm25", {"title_weight": 101}, "title_weight=101 must be at most 100"),
        ("bm25", {"stopwords": "the"}, "stopwords='the' 'str' instances are not allowed"),
        ("dense", {"index": "flat"}, "index='flat' is unknown; allowed: exact, ivf"),
        ("dense", {"ivf_probes": 0}, "ivf_probes=0 must be at least 1"),
        ("bm42", {}, r"allowed \['bm25', 'dense'\]"),
    ],
)
def test_an_index_refuses_it_before_an_encoder_is_loaded(backend, options, words):
    with pytest.raises(ValueError, match=words):
        build_retriever([Passage("0", "a", "b")], backend, options)
