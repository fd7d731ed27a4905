"""Settings of tools that are refused before anything is loaded, with what is wrong and what is allowed."""

from __future__ import annotations

import pytest

from verl_ext.tools.files import read_file
from verl_ext.tools.retrieval import Passage, SearchTool, build_retriever, search_tool
from verl_ext.tools.sandbox import run_python
from verl_ext.tools.web import access_website, search_arxiv, web_search

FACTORIES = {tool.__name__: tool for tool in (run_python, read_file, access_website, search_arxiv, web_search)}


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
    ],
)
def test_a_tool_refuses_it_at_every_entrance(name, settings, words):
    for call in (FACTORIES[name], FACTORIES[name].preflight, FACTORIES[name].identity):
        with pytest.raises(ValueError, match=words):
            call(**settings)


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
        ({"corpus": "none.jsonl"}, "none.jsonl does not exist"),
    ],
)
def test_the_search_tool_refuses_it(tmp_path, settings, words):
    (tmp_path / "c.jsonl").write_text('{"pid": 1, "title": "A", "text": "amber"}\n')
    for call in (SearchTool.from_config, SearchTool.check_config):
        with pytest.raises(ValueError, match=words):
            call({"corpus": str(tmp_path / "c.jsonl"), **settings})
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
