"""Measuring tool search: queries and their gold tools, hand-counted recall, the command."""

import json

import pytest

from verl_ext.storage.parquet import question_row, write_parquet
from verl_ext.tools.catalogue import load_catalogue
from verl_ext.tools.catalogue.search import measure
from verl_ext.tools.catalogue.search.measure import main
from verl_ext.tools.catalogue.search.queries import read_queries

APIS = [
    ("Music", "Songs", "Search", "finds songs by title"),
    ("Music", "Songs", "Charts", "the most played songs"),
    ("Media", "Songs", "Search", "finds songs and films"),
    ("Sports", "Goals", "Scores", "results of matches"),
]


def row(number, text, gold, listed=()):
    return {"query_id": number, "query": text, "relevant APIs": gold, "api_list": list(listed)}


QUERIES = [
    row(1, "songs by title", [["Songs", "Search"]], [["Music", "Songs", "Search"]]),
    row(2, "results of played matches", [["Goals", "Scores"], ["Songs", "Charts"]]),
    row(3, "films", [["Songs", "Search"]], [["Media", "Songs", "Search"]]),
    row(4, "lost", [["Songs", "Lyrics"], ["Songs", "Search"]]),
    row(5, "nothing", []),
]


def jsonl(path, rows):
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


@pytest.fixture
def bench(tmp_path):
    rows = [
        {"category_name": category, "tool_name": tool, "api_name": api, "api_description": description}
        | {"required_parameters": [], "optional_parameters": []}
        for category, tool, api, description in APIS
    ]
    return jsonl(tmp_path / "tools.jsonl", rows), jsonl(tmp_path / "queries.jsonl", QUERIES)


def read(bench, limit=None):
    return read_queries(bench[1], load_catalogue([{"kind": "toolbench", "path": str(bench[0])}]), limit)


def test_gold_tools_are_those_of_the_querys_category(bench):
    asked = read(bench)
    assert [sorted(question.gold) for question in asked.questions] == [
        ["search_for_songs"],
        ["charts_for_songs", "scores_for_goals"],
        ["search_for_songs_in_media"],
    ]
    assert asked.left_out == {"4": ["Lyrics of Songs"]} and asked.without == 1 and asked.name == "queries"
    assert len(read(bench, 1).questions) == 1


def test_solutions_are_gold_paths(tmp_path):
    (tmp_path / "api.json").write_text(
        json.dumps({"openapi": "3.0.0", "paths": {"/a": {"get": {}}, "/b": {"get": {}}}})
    )
    rows = [
        {
            "id": "x-1",
            "query": "q",
            "solution": [" GET /x", "GET /b"],
            "solution_normalised": ["GET /a", "GET /b", "GET /a"],
        },
        {"id": "x-2", "query": "q", "solution": ["GET /b "]},
        {"id": "x-3", "query": "q", "solution": ["GET /c"]},
    ]
    catalogue = load_catalogue([{"kind": "openapi", "path": str(tmp_path / "api.json")}])
    asked = read_queries(jsonl(tmp_path / "q.jsonl", rows), catalogue)
    assert [sorted(question.gold) for question in asked.questions] == [["get /a", "get /b"], ["get /b"]]
    assert asked.left_out == {"x-3": ["GET /c"]}


@pytest.mark.parametrize(
    "rows, message",
    [
        ([{"query": "a"}], "q.jsonl:1: field 'solution' must be of type list"),
        ([{"solution": []}], "q.jsonl:1: field 'query' must be of type str"),
        ([{"query": "a", "relevant APIs": ["x"]}], r"a relevant API must be \[tool, API\], given 'x'"),
        ([{"query": "a", "solution": ["GET /c"]}], "no query is left.*1 have gold tools.*GET /c.*catalogue of these"),
    ],
)
def test_queries_that_cannot_be_measured(bench, tmp_path, rows, message):
    catalogue = load_catalogue([{"kind": "toolbench", "path": str(bench[0])}])
    with pytest.raises(ValueError, match=message):
        read_queries(jsonl(tmp_path / "q.jsonl", rows), catalogue)


@pytest.mark.parametrize("rows", [[{"x": 1}], [question_row("x", "q", {"target": ["a"]}, "qa", "test", 0)]])
def test_a_parquet_file_without_gold_paths_is_named(bench, tmp_path, rows):
    write_parquet(rows, tmp_path / "test.parquet")
    catalogue = load_catalogue([{"kind": "toolbench", "path": str(bench[0])}])
    with pytest.raises(ValueError, match="test.parquet row 1: no reward_model.ground_truth.path.*data_prep/tools.py"):
        read_queries(tmp_path / "test.parquet", catalogue)


def command(bench, tmp_path, *more):
    paths = ["--catalogue", f"toolbench:{bench[0]}", "--queries", str(bench[1]), "--cache_dir", str(tmp_path / "c")]
    return [*paths, *more]


def test_the_command_prints_recall_by_hand(bench, tmp_path, capsys):
    output = tmp_path / "rows.json"
    assert main(command(bench, tmp_path, "--method", "bm25", "--k", "1", "2", "--output", str(output))) == 0
    (found,) = json.loads(output.read_text())
    # "results of played matches": Scores shares three words, Charts one. The other two queries find theirs first.
    assert found["found"][1][:2] == ["scores_for_goals", "charts_for_songs"]
    assert (found["recall@1"], found["recall@2"]) == (pytest.approx((1 + 0.5 + 1) / 3), 1)
    assert (found["all@1"], found["all@2"], found["asked"], found["tools"]) == (pytest.approx(2 / 3), 1, 3, 4)
    shown = capsys.readouterr().out
    assert "queries: 3 queries; 1 without gold tools left out" in shown
    assert "no recall@1 can be above 0.833" in shown and "recall@2 can" not in shown
    assert "1 left out, because the catalogue lacks their gold tools:\n    4: Lyrics of Songs" in shown
    assert "| queries | bm25   |     3 |     4 |    0.833 |    1.000 | 0.667 | 1.000 |" in shown


def test_the_seconds_of_a_method_are_its_own(bench, tmp_path, monkeypatch):
    monkeypatch.setattr(measure, "PlainBM25", None)  # is not built for another method, whose seconds would have it
    assert main(command(bench, tmp_path, "--method", "bm25", "--k", "1")) == 0


def test_methods_are_compared_query_by_query_and_prepared_rows_are_read(bench, tmp_path, capsys):
    """plain finds nothing by other forms of a word."""
    parquet = tmp_path / "test.parquet"
    paths = [["search_for_songs"], [{"name": "charts_for_songs", "arguments": {}}, "scores_for_goals"]]
    rows = [
        question_row("x", text, {"path": json.dumps(path)}, "tools", "test", i)
        for i, (text, path) in enumerate(
            zip(("finding a song's titles", "results of played matches"), paths, strict=True)
        )
    ]
    write_parquet(rows, parquet)
    command_ = [*command(bench, tmp_path), "--queries", str(parquet), "--method", "plain", "bm25", "--k", "2"]
    assert main(command_) == 0
    # plain finds 0 and 2 of 2 gold tools, bm25 1 of 1 and 2 of 2.
    assert "| test    | bm25 − plain | +0.500 ± 0.500 |" in capsys.readouterr().out


@pytest.mark.parametrize(
    "more, message",
    [
        (["--k", "0"], "must be >= 1, given 0"),
        (["--method", "bm52"], "invalid choice: 'bm52'"),
        (["--method", "bm25", "--model", "minilm"], "--model would do nothing"),
        (["--method", "bm25", "--device", "cpu"], "--device would do nothing"),
        (["--queries", "a/q.jsonl", "a/q.jsonl"], "the files need different names"),
    ],
)
def test_flags_that_cannot_be(bench, tmp_path, more, message, capsys):
    with pytest.raises(SystemExit):
        main(command(bench, tmp_path, *more))
    assert message in capsys.readouterr().err
