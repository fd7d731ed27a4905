"""The Smurfs and their baselines, end to end: data_prep, shipped recipes, the command, a server that plays all roles.

Tokens are those that the server reports: 30 of a planner, 9 of any other agent.
"""

from __future__ import annotations

import json
import shutil

import pyarrow.parquet as pq
import pytest

from tests.evaluate.benchmarks import Benchmark, means_of, small_restbench
from tests.evaluate.playing_smurfs import BaselinePlayer, SmurfsPlayer
from tests.public_data import SHARED, needs_shared
from tests.rewards.judging import serving
from tests.serving import ChatServer
from verl_ext.data_prep import corpus, qa
from verl_ext.tools.catalogue import load_catalogue

SYSTEMS = {"smurfs": SmurfsPlayer, "smurfs_react": BaselinePlayer, "smurfs_dfsdt": BaselinePlayer}
BASELINES = ("smurfs_react", "smurfs_dfsdt")


@pytest.fixture
def small(tmp_path):
    """Titanic, which takes two calls, and Jaws, which takes one, by hand (benchmarks.py)."""
    return Benchmark("tmdb", tmp_path, small_restbench(tmp_path / "source"))


def evaluated(benchmark, command, player, *overrides, recipe="smurfs", tasks=4):
    more = [] if benchmark.name == "toolbench" else [f"+base={benchmark.name}"]
    return benchmark.evaluate(command, player, *more, *overrides, recipe=recipe, tasks=tasks)


def played(benchmark, command, *overrides, recipe="smurfs", tasks=4, **options):
    """Returns (means of the only data source, records, player); all questions are answered, and nothing has failed."""
    player = SYSTEMS[recipe](benchmark.rows, benchmark.catalogue, **options)
    results, records = evaluated(benchmark, command, player, *overrides, recipe=recipe, tasks=tasks)
    (source,) = results.values()
    assert source["answered"] == len(records) and not source["failed"] and not source["tool_failures"]
    return means_of(source), sorted(records, key=lambda record: record["question"]["index"]), player


def test_competent_smurfs(small, command, capsys):
    means, records, player = played(small, command)
    assert means["success"] == means["path"] == means["path_share"] == means["verified"] == 1.0
    assert (means["tool_calls"], means["tasks"], means["failed_calls"], means["rollbacks"]) == (1.5, 1.5, 0, 0)
    # Titanic: planner, 2 x (tool check, thought, action, arguments, answer, verifier), final; Jaws: 1 x.
    assert [len(record["calls"]) for record in records] == [14, 8]
    assert means["tokens"] == ((30 + 13 * 9) + (30 + 7 * 9)) / 2
    assert means["tokens_per_call"] == pytest.approx(((30 + 13 * 9) / 14 + (30 + 7 * 9) / 8) / 2)
    steps = dict.fromkeys(("tool_check", "thought", "action", "arguments", "answer", "verifier"), 3)
    assert player.asked == {"planner": 2, **steps, "final": 2, "tool": 2}, "one search is in the simulator's cache"
    said = capsys.readouterr().out
    assert "| tmdb | 2/2      | 1.000 ± 0.000 |" in said and "| Tool calls      | 1.50  " in said
    assert "0 everywhere: Unneeded calls, Failed calls, Rollbacks, Tool failures" in said


@pytest.mark.parametrize("recipe", BASELINES)
def test_competent_baselines(small, command, recipe):
    means, records, player = played(small, command, recipe=recipe)
    assert means["success"] == means["path"] == means["finished"] == 1.0 and means["broken"] == 0.0
    # Titanic: two calls and the end.
    assert [len(record["calls"]) for record in records] == [3, 2] and player.asked == {"agent": 5, "tool": 2}
    assert (means["tool_calls"], means["tokens"], means["tokens_per_call"]) == (1.5, (27 + 18) / 2, 9)
    turns = [len(call["prompt"]) for call in records[0]["calls"]]
    assert turns == ([1, 2, 2] if recipe == "smurfs_react" else [1, 1, 1]), "one stream, or a prompt per node"
    assert not any("made up" in call["output"] for record in records for call in record["calls"])


def test_incompetent_smurfs_come_to_their_end(small, command):
    means, records, player = played(small, command, competent=False)
    assert means["success"] == means["correct_calls"] == means["verified"] == 0.0
    # The question is the only sub-task, and needs a tool. Each of the two tools is taken for the choice that cannot be
    # read, and given no arguments; then there is none left.
    assert [len(record["calls"]) for record in records] == [2 + 2 * 3 + 2] * 2
    assert (means["tool_calls"], means["failed_calls"], means["tasks"]) == (2.0, 2.0, 1.0)
    assert {call["status"] for r in records for call in r["calls"] if call["agent"] == "action"} == {"unparsable"}
    assert means["tokens"] == 30 + 9 * 9, "what was said in vain is paid for, too"
    assert player.asked["tool"] == 0


@pytest.mark.parametrize(("at_max_depth", "depth", "back"), [("end", 3, 0), ("back", 4, 4)])
def test_smurfs_without_a_verifier_are_not_cut_off_by_the_recipes_limits(at_max_depth, depth, back, small, command):
    """Three sub-tasks: the tool as deep as a path may be; on the way back the other one, without its arguments."""
    search = (f"mas.workflow.at_max_depth={at_max_depth}", f"mas.workflow.max_depth={depth}")
    means, _, _ = played(small, command, "mas.workflow.verifier=false", *search)
    assert (means["success"], means["tool_calls"]) == (1.0, 3 * (depth + back) / 2)
    assert (means["failed_calls"], means["rollbacks"]) == (3 * back / 2, 3 * back / 2)


@needs_shared
@pytest.mark.parametrize("name", ["toolbench", "api_bank"])
def test_competent_smurfs_succeed_on_real_tasks(command, tmp_path, name):
    benchmark = Benchmark(name, tmp_path)
    player = SmurfsPlayer(benchmark.rows, benchmark.catalogue)
    results, records = evaluated(benchmark, command, player, "mas.workflow.max_tasks=12", tasks=2)
    for source in results.values():
        means = means_of(source)
        assert source["answered"] == 2 and not source["failed"] and not source["tool_failures"]
        assert means["success"] == means["path"] == means["verified"] == 1.0 and means["failed_calls"] == 0.0
        assert means["tool_calls"] == means["correct_calls"] == means["tasks"] >= 1.0
    assert (player.asked["tool"] == 0) == (name == "api_bank"), "all calls of API-Bank are recorded"


@needs_shared
@pytest.mark.parametrize("recipe", BASELINES)
def test_competent_baselines_succeed_on_real_tasks(command, tmp_path, recipe):
    means, _, _ = played(Benchmark("toolhop", tmp_path), command, recipe=recipe, tasks=2)
    assert means["success"] == means["answer"] == means["path"] == means["finished"] == 1.0


def hotpot(number, question, answer, pages):
    """A row of the hub's layout. pages: title -> sentences; all of them are gold."""
    return {
        **{"id": f"h{number}", "question": question, "answer": answer, "type": "bridge", "level": "hard"},
        "supporting_facts": {"title": list(pages), "sent_id": [0] * len(pages)},
        "context": {"title": list(pages), "sentences": list(pages.values())},
    }


ROWS = [
    hotpot(
        *(0, "Who founded the label of Winner?", "Yang Hyun-suk"),
        {
            "Winner (band)": ["Winner is a boy group.", " It was formed by YG Entertainment."],
            "YG Entertainment": ["YG Entertainment is a label.", " It was founded by Yang Hyun-suk in 1996."],
        },
    ),
    hotpot(
        *(1, "Are Ada and Bob both writers?", "yes"),
        {"Ada": ["Ada was a writer.", " She was born in 1815."], "Bob": ["Bob was no one but a writer."]},
    ),
]
OTHER = hotpot(2, "Where is Paris?", "France", {"Paris": ["Paris is a city in France."]})
# Title that is retrieved, keyword and title that are looked up, for each row.
PAGES = {0: ("winner (band)", "founded", "YG Entertainment"), 1: ("Ada", "writer", "Bob")}


class Encyclopedia:
    """HotpotQA as it is prepared for the tools, from a file or folder of its rows."""

    def __init__(self, folder, source, tasks):
        self.data, self.catalogue, self.tasks = folder / "data", load_catalogue([{"kind": "encyclopedia"}]), tasks
        made = ["--output_dir", str(self.data), "--local_dataset_path", str(source), "--val_size", str(tasks)]
        assert qa.main(["hotpotqa", *made]) == 0
        index = ["--input", str(self.data / "corpus.jsonl"), "--output_dir", str(self.data / "index"), "--quiet"]
        assert corpus.main(index) == 0
        self.rows = pq.read_table(self.data / "test.parquet").to_pylist()

    def evaluate(self, command, plan):
        """The player makes the calls that `plan` says of a row."""
        told = []
        for row in self.rows:
            truth = {**row["reward_model"]["ground_truth"], "path": json.dumps(plan(row))}
            told.append({**row, "reward_model": {"ground_truth": truth}})
        player = SmurfsPlayer(told, self.catalogue)
        with ChatServer(player) as server:
            settings = ["+base=hotpotqa", f"mas.tools.tool_call.backend.index={self.data / 'index'}"]
            assert command(*settings, recipe="smurfs", server=server, files=[self.data / "test.parquet"]) == 0
        (source,) = command.results["data"].values()
        assert source["answered"] == len(command.records) == self.tasks and not source["failed"]
        assert player.asked["tool"] == 0, "these tools run themselves"
        return means_of(source), command.records


def searched(page, keyword, other, query):
    """The calls of a question."""
    said = {"search": {"query": query}, "retrieve": {"entity": page}, "lookup": {"keyword": keyword, "entity": other}}
    return [{"name": name, "arguments": arguments} for name, arguments in said.items()]


def results_of(record):
    """What the tools of a trajectory gave, in the order of the calls."""
    return [tool["result"] for tool in record["tools"] if tool["name"] == "tool_call"]


def test_hotpotqa_with_its_tools(command, tmp_path):
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows" / "train.jsonl").write_text(json.dumps(OTHER) + "\n")
    (tmp_path / "rows" / "validation.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    benchmark = Encyclopedia(tmp_path, tmp_path / "rows", tasks=2)
    pages = {ROWS[number]["question"]: places for number, places in PAGES.items()}

    def plan(row):
        question = row["prompt"][-1]["content"]
        return searched(*pages[question], question)

    means, records = benchmark.evaluate(command, plan)
    assert means["success"] == means["f1"] == means["answer"] == 1.0 and "path" not in means
    assert (means["tool_calls"], means["failed_calls"]) == (3, 0)
    record = next(one for one in records if one["question"]["text"] == ROWS[0]["question"])
    found, page, sentences = [said["result"] for said in results_of(record)]
    assert {"Winner (band)", "YG Entertainment"} >= {one["title"] for one in found} and found
    assert page == {"title": "Winner (band)", "text": "Winner is a boy group. It was formed by YG Entertainment."}
    assert sentences == ["(Result 1 / 1) It was founded by Yang Hyun-suk in 1996."]


@needs_shared
def test_hotpotqa_on_real_questions(command, tmp_path):
    benchmark = Encyclopedia(tmp_path, SHARED / "qa" / "hotpotqa_hub_layout_100.jsonl", tasks=3)

    def plan(row):
        first, last = [*row["extra_info"]["gold_titles"], ""][:2]
        return searched(first, first.split()[0], first, last)

    means, records = benchmark.evaluate(command, plan)
    assert means["success"] == means["f1"] == 1.0 and means["tool_calls"] == 3
    assert all(results_of(record)[1]["ok"] for record in records), "gold pages are in the corpus, by their titles"


def test_a_judge_scores_an_evaluation(small, command, tmp_path, capsys):
    """ToolBench's pass rate by three evaluations; the second time all verdicts come from the cache."""
    judged = ("mas.workflow.success=pass", "mas.judge.temperature=0", f"mas.judge.cache={tmp_path / 'judge.db'}")
    with serving(lambda fields: {"status": "unsolved" if "Jaws" in fields["query"] else "solved"}) as server:
        means, _, _ = played(small, command, *judged, f"mas.judge.url={server.url}")
        assert means["success"] == means["pass"] == means["solved"] == 0.5
        assert means["judge_calls"] == 3 and means["judge_cached"] == 2, "at temperature 0 the three are one question"
        assert means["judge_tokens"] > 0 and "Judge calls" in capsys.readouterr().out
        asked = len(server.requests)
        shutil.rmtree(tmp_path / "out")
        again, _, _ = played(small, command, *judged, f"mas.judge.url={server.url}")
        assert again["pass"] == 0.5 and again["judge_cached"] == 3 and len(server.requests) == asked
