"""Tool search: fusion by hand, what is searched of a tool, the tool itself, its settings."""

import asyncio
import json
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from verl_ext.tools import Tool
from verl_ext.tools.catalogue import Catalogue, ToolSearch, ToolSpec, tool_search
from verl_ext.tools.catalogue.search.documents import passage
from verl_ext.tools.catalogue.search.fusion import HybridRetriever, Part, fuse
from verl_ext.tools.catalogue.search.tool import open_search
from verl_ext.tools.retrieval import Hit, Passage

TOOLS = [
    ToolSpec("GetUserToken", "Authenticates.", {"properties": {"username": {"description": "of the account"}}}),
    ToolSpec("GET /movie/{movie_id}/credits", "Cast and crew of a film.", {"properties": {"movie_id": {}}}),
    ToolSpec("weather_for_oslo", "Forecast: rain, snow, temperature.", {"type": "object"}),
    ToolSpec("stock_price", "Quotes of the exchange.", {"type": "object"}),
]
CATALOGUE = Catalogue(TOOLS)


class Letters:
    """An encoder of texts by their letters: enough to embed without a model."""

    def encode(self, texts, **_):
        counts = np.asarray([[text.lower().count(chr(97 + i)) + 0.01 for i in range(26)] for text in texts])
        return counts / np.linalg.norm(counts, axis=1, keepdims=True)


@pytest.fixture
def letters():
    pytest.importorskip("faiss", reason="dense search needs `pip install verl_ext[retrieval]`")
    with mock.patch("verl_ext.tools.retrieval.dense.load_encoder", return_value=Letters()) as loaded:
        yield loaded


# Fusion


WEIGHTS = (0.7, 0.3)


def hits(scores):
    return [Hit(Passage(pid, "", pid), score) for pid, score in scores.items()]


def fused(*rankings, k=10, depth=100):
    parts = [Part(None, weight, lowest) for weight, lowest in zip(WEIGHTS, (0.0, -1.0), strict=True)]
    found = fuse([hits(ranking) for ranking in rankings], parts, k, depth)
    return {hit.passage.pid: pytest.approx(hit.score) for hit in found}


def test_fusion_by_hand():
    words, meaning = {"a": 4.0, "b": 1.0}, {"b": 0.6, "c": 0.2}
    # A cosine of 0.2 is 1.2 / 1.6 of the best one. Both rankings are short: what they leave out has the lowest score.
    assert fused(words, meaning) == {"a": 0.7, "b": 0.7 / 4 + 0.3, "c": 0.3 * 1.2 / 1.6}
    assert list(fused(words, meaning)) == ["a", "b", "c"] and list(fused(words, meaning, k=2)) == ["a", "b"]
    # Rankings of two are full: more may match, at most as well as the last.
    full = {"a": 0.7 + 0.3 * 1.2 / 1.6, "b": 0.7 / 4 + 0.3, "c": 0.7 / 4 + 0.3 * 1.2 / 1.6}
    assert fused(words, meaning, depth=2) == full
    assert fused({}, meaning) == {"b": 0.3, "c": 0.3 * 1.2 / 1.6} and fused({}, {}) == {}
    assert fused({}, {"a": -1.0}) == {"a": 0.0}, "nothing is better than the lowest"


SCORES = st.dictionaries(st.sampled_from("abcdefgh"), st.floats(0.01, 1))


@given(SCORES, SCORES, st.integers(1, 9))
def test_fusion_keeps_what_all_agree_on(words, meaning, k):
    ordered = [dict(sorted(scores.items(), key=lambda one: -one[1])) for scores in (words, meaning)]
    found = fused(*ordered, k=k)
    assert len(found) == min(k, len(words | meaning)) and all(score.expected <= 1 + 1e-9 for score in found.values())
    assert [score.expected for score in found.values()] == sorted((s.expected for s in found.values()), reverse=True)
    assert list(fused(ordered[0], ordered[0], k=9)) == list(ordered[0])


def test_a_hybrid_looks_deeper_than_it_answers():
    class Fixed:
        backend = "fixed"

        def __init__(self, order):
            self.order, self.ks = order, []

        def __len__(self):
            return len(self.order)

        def search(self, queries, k):
            self.ks.append(k)
            return [hits({name: 1 - place / 100 for place, name in enumerate(self.order[:k])}) for _ in queries]

    names = [str(i) for i in range(50)]
    one, other = Fixed(names), Fixed([*names[10:], "0"])
    hybrid = HybridRetriever([Part(one, 0.5, 0.0), Part(other, 0.5, 0.0)])
    assert [hit.passage.pid for hit in hybrid.search(["q"], 2)[0]] == ["10", "11"]
    assert one.ks == other.ks == [100] and len(hybrid) == 50
    with pytest.raises(ValueError, match="k must be an integer >= 1"):
        hybrid.search(["q"], 0)


# Documents


def test_what_is_searched_of_a_tool():
    nested = {
        "properties": {
            "stops": {
                "description": "on the way",
                "items": {"$ref": "#/$defs/stop"},
                "default": {"properties": {"no": {"description": "not this"}}},
            },
            "plain": {"type": "string"},
        },
        "$defs": {"stop": {"properties": {"town": {"description": "its name"}}}},
    }
    found = passage(ToolSpec("planHTTPRoute", "Plans.", nested))
    assert found == Passage(
        "planHTTPRoute", "planHTTPRoute plan HTTP Route", "Plans.\n\fstops: on the way\nplain\ntown: its name"
    )
    assert passage(ToolSpec("get_user", "", {})) == Passage("get_user", "get_user", "")


# The tool


def search(method, tmp_path, catalogue=CATALOGUE, **settings):
    return ToolSearch(catalogue, open_search(catalogue, method, cache_dir=tmp_path), **settings)


def test_the_words_of_a_question_that_say_nothing_about_a_tool_do_not_count(tmp_path):
    chatty = ToolSpec("chat", "What can you do for me? I am here, and you can have me as I am.")
    weather = ToolSpec("forecast", "The weather of the coming days in a city, by the hour, with wind, rain and clouds.")
    others = [ToolSpec(f"tool_{i}", f"Number {i} of the other weather stations.") for i in range(5)]
    catalogue, query = Catalogue([chatty, *others, weather]), "Can you tell me what the weather in a city is like?"
    assert names_of(search("bm25", tmp_path, catalogue), query, k=1) == ["forecast"]
    plain = ToolSearch(catalogue, open_search(catalogue, "bm25", bm25={"stopwords": []}, cache_dir=tmp_path))
    assert names_of(plain, query, k=1) == ["chat"], "as without stop words"


def names_of(tool, query, **more):
    return [document["name"] for document in asyncio.run(tool(query=query, **more))]


def test_bm25_finds_names_words_of_names_and_parameters(tmp_path):
    tool = search("bm25", tmp_path, top_k=2)
    assert isinstance(tool, Tool) and tool.name == "tool_search"
    assert asyncio.run(tool(query="who is in its CREW?")) == [
        {
            "name": "GET /movie/{movie_id}/credits",
            "description": "Cast and crew of a film.",
            "parameters": {"properties": {"movie_id": {}}},
        }
    ]
    for query in ("GetUserToken", "a user's token", "username", "of the account"):
        assert names_of(tool, query)[0] == "GetUserToken", query
    assert names_of(tool, "movie weather") and names_of(tool, "rain snow of the account", k=1) == ["weather_for_oslo"]
    assert names_of(tool, "") == names_of(tool, "xylophone") == []


def test_every_method_finds_at_most_k_tools_of_the_catalogue(tmp_path, letters):
    for method in ("bm25", "dense", "hybrid"):
        tool = search(method, tmp_path)
        assert names_of(tool, "stock price quotes of the exchange")[0] == "stock_price"
        assert len(names_of(tool, "stock price quotes of the exchange", k=100)) <= 4
        assert names_of(tool, "   ") == []
    assert len(names_of(tool, "xylophone", k=100)) == 4  # no word is known, every tool has letters


def test_named_tools_are_documented_in_order(tmp_path):
    tool = search("bm25", tmp_path)
    found = asyncio.run(tool(names=["stock_price", "GetUserToken"]))
    assert [document["name"] for document in found] == ["stock_price", "GetUserToken"]
    assert found[1] == {"name": "GetUserToken", "description": "Authenticates.", "parameters": TOOLS[0].parameters}
    for wrong, message in (
        ({"names": ["gone"]}, "names belong to no tool: 'gone'"),
        ({"names": "GetUserToken"}, "give query or a list of names"),
        ({"names": ["stock_price"], "query": "x"}, "give query or a list of names"),
        ({"query": 3}, "queries must be a list of strings"),
        ({"query": "x", "k": 0}, "k must be an integer >= 1 .*, given 0"),
        ({"query": "x", "k": True}, "k must be an integer"),
    ):
        with pytest.raises(ValueError, match=message):
            asyncio.run(tool(**wrong))


# The factory


@pytest.fixture
def sources(tmp_path):
    rows = [
        {"name": "Alarm", "description": "Wakes at a time.", "input_parameters": {}},
        {"name": "Mail", "description": "Sends a letter.", "input_parameters": {}},
    ]
    (tmp_path / "tools.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return [{"kind": "api_bank", "path": str(tmp_path / "tools.jsonl")}]


def test_the_factory_searches_its_sources(sources, tmp_path, letters):
    from hydra.utils import instantiate

    section = {"_target_": "verl_ext.tools.catalogue.tool_search", "sources": sources, "cache_dir": str(tmp_path / "c")}
    tool = instantiate(
        {**section, "method": "bm25", "top_k": 1, "only": None, "bm25": {"title_weight": 3}}, _convert_="all"
    )
    assert names_of(tool, "send letter") == ["Mail"]
    assert names_of(instantiate({**section, "only": ["Alarm"], "method": "bm25"}, _convert_="all"), "letter time") == [
        "Alarm"
    ]
    letters.reset_mock()
    tool_search.preflight(sources=sources, method="hybrid", dense={"model": "minilm"}, cache_dir=str(tmp_path / "none"))
    assert not letters.called and not (tmp_path / "none").exists()  # neither a model nor an index is needed to check
    asyncio.run(tool.close())


def test_missing_libraries_are_named_before_a_run(sources, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"method=hybrid needs faiss-cpu: `pip install verl_ext\[retrieval\]`"):
        tool_search.preflight(sources=sources)
    tool_search.preflight(sources=sources, method="bm25")


def test_the_identity_is_what_answers_depend_on(sources, tmp_path):
    def identity(**settings):
        return tool_search.identity(sources=sources, **settings)

    same = identity(method="bm25")
    assert same == identity(method="bm25", cache_dir="elsewhere", device="cpu")
    different = [identity(method="bm25", top_k=3), identity(method="bm25", only=["Mail"]), identity()]
    assert len({json.dumps(one) for one in [same, *different]}) == 4 and different[-1]["dense"]["model"] == "minilm"
