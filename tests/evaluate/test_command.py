"""The command against a real server: results, failures, bounds."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from tests.evaluate.asking import parrot, questions
from tests.evaluate.conftest import HERE, write_questions
from tests.evaluate.systems import Library
from tests.serving import ChatServer, answer, question_of
from verl_ext.evaluate.config import EvaluateConfig
from verl_ext.evaluate.questions import read_tasks
from verl_ext.evaluate.report import as_text

ROOT = Path(__file__).parents[2]


def test_right_and_wrong_answers_per_data_set(command, tmp_path, capsys):
    other = write_questions(tmp_path / "other.parquet", ["x", "y"], source="other|set")

    def half(body, number):
        right = question_of(body).split()[-1]
        return answer("no idea" if right in ("word0", "x") else right)

    with ChatServer(half) as server:
        assert command(server=server, files=[questions(tmp_path, 4), other]) == 0
    made, second = command.results["data"].values()
    # 3 of 4 right: standard deviation 0.5, over √4.
    assert made["metrics"]["em"] == {"mean": 0.75, "standard_error": 0.25, "questions": 4}
    assert second["metrics"]["f1"] == {"mean": 0.5, "standard_error": 0.5, "questions": 2}
    # √(0.25² + 0.5²) / 2
    assert command.results["average"]["f1"] == {"mean": 0.625, "standard_error": pytest.approx(0.2795085)}
    assert made["per_trajectory"] | {"seconds": 0} == {
        "calls": 1,
        "prompt_tokens": 7,
        "generated_tokens": 2,
        "tool_calls": 0,
        "seconds": 0,
    }
    said = capsys.readouterr().out
    assert "| made       | 4/4      | 0.750 ± 0.250 |" in said and "other\\|set" in said
    assert (command.output / "report.md").read_text().strip() in said


def test_questions_that_are_neither_hopeless_nor_solved_are_kept_for_training(command, tmp_path, capsys):
    """word0 and y are never right, word1 always, word2 and x once in two samples."""
    other = write_questions(tmp_path / "other.parquet", ["x", "y"], source="other")
    rows = [row | {"extra_info": {"index": row["extra_info"]["index"]}} for row in pq.read_table(other).to_pylist()]
    pq.write_table(pa.Table.from_pylist(rows), other)  # of another schema than the first file
    seen = []

    def some(body, number):
        word = question_of(body).split()[-1]
        seen.append(word)
        right = word == "word1" or word in ("word2", "x") and seen.count(word) == 1
        return answer(word if right else "no idea")

    files = [questions(tmp_path, 3), other]
    options = ("evaluate.samples=2", "evaluate.temperature=1.0")
    with ChatServer(some) as server:
        assert command(*options, "evaluate.keep_between=[0.05,0.95]", server=server, files=files) == 0
        kept = [command.output / f"questions_{number}.parquet" for number in (1, 2)]
        assert [[row["extra_info"]["index"] for row in pq.read_table(path).to_pylist()] for path in kept] == [[2], [0]]
        assert [pq.read_schema(path) for path in kept] == [pq.read_schema(path) for path in files]
        said = capsys.readouterr().out
        assert (
            "2 of 5 questions have rewards that differ and a mean from 0.05 to 0.95 (2 below, 1 above, 0 always" in said
        )
        assert f"data.train_files=[{kept[0]},{kept[1]}]" in said
        (mine := command.output / "questions_mine.parquet").touch()  # a user's own
        # The same command with other bounds asks nothing again. A question that is always right teaches nothing.
        assert command(*options, "evaluate.keep_between=[0.9,1]", server=server, files=files) == 0
        assert len(seen) == 10 and not any(path.exists() for path in kept) and mine.exists()
        assert "(4 below, 0 above, 1 always the same): no file of questions was written" in capsys.readouterr().out
        # Only what this command asks counts, of what the folder has.
        few = (*options, "evaluate.max_questions=2", "evaluate.keep_between=[0,1]")
        assert command(*few, server=server, files=[files[0]]) == 0 and "0 of 2 questions" in capsys.readouterr().out
        assert command(*options, "evaluate.keep_between=[0,1]", server=server, files=[files[0]]) == 0
        kept = command.output / "questions.parquet"
        assert command(*options, "evaluate.keep_between=[0,1]", server=server, files=[kept]) == 2
        assert "would write over" in capsys.readouterr().err and kept.exists()
        assert command("evaluate.keep_between=[0,1]", server=server, files=files) == 2


def test_a_difference_is_of_the_samples_that_are_asked(command, tmp_path):
    """The folder holds two samples, of which the second is wrong; against its first one, the first is no different."""
    seen = []

    def once(body, number):
        word = question_of(body).split()[-1]
        seen.append(word)
        return answer(word if seen.count(word) == 1 else "no idea")

    files, one = [questions(tmp_path, 3)], ("evaluate.samples=1", "evaluate.temperature=1.0")
    with ChatServer(once) as server:
        assert command(*one, server=server, files=files) == 0
        before = tmp_path / "before"
        shutil.copytree(command.output, before)
        assert command("evaluate.samples=2", one[1], server=server, files=files) == 0
        assert command(*one, f"evaluate.against={before}", server=server, files=files) == 0
    assert command.results["against"]["data"]["made"]["em"]["mean"] == 0.0


def test_failures_are_counted_and_are_no_wrong_answers(command, tmp_path, capsys):
    def some(body, number):
        word = question_of(body).split()[-1]
        return {"word0": (400, {"error": "bad"}), "word1": {"choices": []}}.get(word) or parrot(body, number)

    with ChatServer(some) as server:
        assert command("evaluate.retries=0", server=server, files=[questions(tmp_path, 4)]) == 0
    made = command.results["data"]["made"]
    assert (made["answered"], made["questions"], made["failed"]) == (2, 4, {"engine_error": 2})
    assert made["metrics"]["em"]["mean"] == 1.0 and made["agents"]["solver"]["statuses"] == {"engine_error": 2, "ok": 2}
    said = capsys.readouterr().out
    assert "| made | 2/4 " in said and "if they counted as 0: EM 0.500, F1 0.500, Acc 0.500" in said

    # The same command asks those that failed again, and only those.
    with ChatServer(parrot) as server:
        assert command("evaluate.retries=0", server=server, files=[questions(tmp_path, 4)]) == 0
        assert sorted(question_of(body) for body in server.requests) == ["question 0 word0", "question 1 word1"]
    assert command.results["data"]["made"]["answered"] == 4 and len(command.records) == 6


def test_samples_give_means_over_them_and_the_best_of_k(command, tmp_path):
    seen = set()

    def sometimes(body, number):
        """Right once per question, whichever sample comes first."""
        first = question_of(body) not in seen
        seen.add(question_of(body))
        return parrot(body, number) if first else answer("wrong")

    more = ["evaluate.samples=4", "evaluate.temperature=1.0"]
    with ChatServer(sometimes) as server:
        assert command(*more, server=server, files=[questions(tmp_path, 3)]) == 0
        assert len({body["seed"] for body in server.requests}) == 12
        seeds = {(question_of(body), body["seed"]) for body in server.requests}
    em = command.results["data"]["made"]["metrics"]["em"]
    assert em["mean"] == 0.25 and em["standard_error"] == 0.0
    best = {k: value["mean"] for k, value in em["best"].items()}
    assert best == {"1": 0.25, "2": 0.5, "4": 1.0}  # C(3,1)/C(4,2) = 1/2
    with ChatServer(sometimes) as server:  # the same noise elsewhere
        assert command(*more, f"evaluate.output={tmp_path}/again", server=server) == 0
        assert {(question_of(body), body["seed"]) for body in server.requests} == seeds


def test_a_system_of_agents_its_documents_and_its_bounds(command, tmp_path):
    def reply(body, number):
        time_and_words = {"left": answer("x", "length"), "right": answer("two words")}
        return time_and_words.get(question_of(body).split()[0]) or parrot(body, number)

    closed = Library.closed
    with ChatServer(reply) as server:
        assert command("evaluate.concurrency=3", recipe="team", server=server, files=[questions(tmp_path, 9)]) == 0
        assert Library.closed == closed + 1
        assert len(server.requests) == 27 and server.peak <= 3
    made = command.results["data"]["made"]
    statuses = {name: agent["statuses"] for name, agent in made["agents"].items()}
    assert statuses == {"judge": {"ok": 9}, "left": {"truncated": 9}, "right": {"unparsable": 9}}
    read = {name: (agent["parsed"], agent["truncated"]) for name, agent in made["agents"].items()}
    assert read == {"judge": (9, 0), "left": (9, 9), "right": (0, 0)}
    assert "truncated: outputs that reached max_tokens" in as_text(command.results)
    # Gold titles are Alpha and Gamma; Alpha was found, and chosen.
    assert {name: value["mean"] for name, value in made["recall"].items()} == {
        "recall@5": 0.5,
        "recall@10": 0.5,
        "recall_chosen": 0.5,
    }
    record = command.records[0]
    assert (
        record["tools"][0]["result"][1]["title"] == "Béta"
        and record["trajectories"][0]["notes"]["chosen"][0]["pid"] == "1"
    )
    assert [call["id"] for call in record["calls"]] == ["0 | l/left.0", "0 | r/right.0", "0 | judge.0"]
    assert record["calls"][2]["parents"] == ["0 | l/left.0", "0 | r/right.0"]


def test_trajectories_at_a_time(command, tmp_path):
    with ChatServer(lambda body, number: 0.05) as server:
        command("evaluate.concurrency=5", server=server, files=[questions(tmp_path, 20)])
    assert server.peak == 5


def test_hostile_outputs_stay_data(command, tmp_path):
    texts = [
        "</script><script>alert(1)</script>",
        "\ud800 lone",
        "a\u2028b\nc\r\x00",
        "x" * 200_000,
        "{'a': 1}",
        "| --- |",
    ]

    def hostile(body, number):
        return answer(texts[int(question_of(body).split()[1])])

    with ChatServer(hostile) as server:
        assert command(server=server, files=[questions(tmp_path)]) == 0
        assert command(server=server) == 0 and len(server.requests) == 6
    assert {record["trajectories"][0]["result"] for record in command.records} == {text.strip() for text in texts}
    assert command.results["data"]["made"]["answered"] == 6


PLAIN = "mas.workflow._target_=tests.evaluate.systems.Plain"


def test_a_reward_without_further_quantities_is_reported(command, tmp_path, capsys):
    with ChatServer(lambda body, number: answer("word0")) as server:
        assert command(PLAIN, server=server, files=[questions(tmp_path, 4)]) == 0
    reward = command.results["data"]["made"]["metrics"]["reward"]
    assert reward == {"mean": 0.25, "standard_error": 0.25, "questions": 4}
    said = capsys.readouterr().out
    assert "4/4  reward 0.250" in said and "| answered | Reward        |" in said


def gone(body, number):
    return 400, {"error": "gone"}


BROKEN = "mas.workflow._target_=tests.evaluate.systems.Broken"
MANY = "the last 32 trajectories all failed, the last by: "


@pytest.mark.parametrize(
    ("override", "behave", "texts", "words"),
    [
        ("evaluate.samples=1", gone, ["word0"] * 6, "Nothing was answered; the same command asks again."),
        ("evaluate.concurrency=4", gone, ["word0"] * 100, f"{MANY}engine_error: agent 'solver'"),
        (PLAIN, parrot, ["fail"] * 100, f"{MANY}KeyError"),
        (BROKEN, parrot, ["word0"], "systems.py:42) raised KeyError('no such field')"),
    ],
)
def test_evaluations_that_stop(command, tmp_path, capsys, override, behave, texts, words):
    file = write_questions(tmp_path / "questions.parquet", texts)
    with ChatServer(behave) as server:
        assert command(override, server=server, files=[file]) == 1
    said = capsys.readouterr()
    assert words in said.err
    line = 'raise KeyError("no such field")'
    assert (said.out + said.err).count(line) == (override in (PLAIN, BROKEN)), "the user's line, once"
    if behave is gone:
        made = command.results["data"]["made"]
        assert made["answered"] == 0 and made["metrics"] == {}
        assert made["failed"] == {"engine_error": len(command.records)}
    if len(texts) == 100:
        assert 32 <= len(command.records) <= 64 and command.results["data"]["made"]["missing"] >= 36


def test_overrides_may_stand_after_the_flags(command, tmp_path, capsys):
    from verl_ext.evaluate.__main__ import main

    assert (
        main(["+recipe=closed", "--config-dir", str(HERE), "mas.seed=77", "--cfg", "job", "mas.limits.max_calls=5"])
        == 0
    )
    said = yaml.safe_load(capsys.readouterr().out)
    assert said["mas"]["seed"] == 77 and said["mas"]["limits"]["max_calls"] == 5


def test_the_section_is_documented_where_it_is_set():
    fields = {name: field.default for name, field in EvaluateConfig.model_fields.items()}
    section = yaml.safe_load((ROOT / "configs" / "evaluate.yaml").read_text())["evaluate"]
    sampled = {name: section.pop(name) for name in ("temperature", "top_p", "top_k")}
    assert sampled == {name: f"${{actor_rollout_ref.rollout.val_kwargs.{name}}}" for name in sampled}
    assert section == {name: value for name, value in fields.items() if name not in sampled}
    page = (ROOT / "docs" / "evaluate.md").read_text()
    table = page[page.index("## The section") : page.index("A misspelt key")]
    assert set(
        re.findall(r"`(\w+)`", "".join(row.split("|")[1] for row in table.splitlines() if row[:1] == "|"))
    ) == set(fields)


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("+evaluate.cuncurrency=3", "unknown key evaluate.cuncurrency; did you mean 'concurrency'"),
        ("evaluate.cuncurrency=3", "unknown key evaluate.cuncurrency; did you mean 'concurrency'"),
        ("evaluate.concurrency=0", "evaluate.concurrency=0 must be at least 1"),
        ("evaluate.concurrency=many", "evaluate.concurrency='many' must be of type int"),
        ("evaluate.samples=4", "would be 4 times the same answer. Remedy: evaluate.temperature=1.0"),
        ("evaluate.top_p=1.5", "evaluate.top_p=1.5 must be at most 1"),
        ("evaluate.endpoint=localhost:8000", "must be a base URL, e.g. http://127.0.0.1:8100/v1"),
        ("evaluate.max_questions=0", "evaluate.max_questions=0 must be at least 1 (null: all)"),
        ("data.val_files=nothing.parquet", "the data file nothing.parquet does not exist"),
        ("data.val_files=data.jsonl", "an evaluation reads local .parquet files"),
        ("data.val_max_samples=5", "Remedy: evaluate.max_questions"),
        ("mas.deterministic=true", "mas.deterministic=true needs evaluate.concurrency=1"),
        ("evaluate.model=./nowhere", "evaluate.model=./nowhere does not exist"),
        ("evaluate.device=cuda", "no GPU that torch can use"),
        ("mas.workflow._target_=tests.evaluate.systems.Library", "is not a verl_ext.mas.Workflow"),
        ("+mas.agents.solvr.max_tokens=3", "unknown key mas.agents.solvr; did you mean 'solver'"),
    ],
)
def test_bad_values_are_refused_before_anything_is_loaded(command, tmp_path, capsys, override, words):
    questions(tmp_path)
    if override.startswith("evaluate.device"):
        import torch

        if torch.cuda.is_available():
            pytest.skip("this machine has a GPU")
    assert command(override) == 2
    assert words in capsys.readouterr().err and not command.output.exists()


@pytest.mark.parametrize("extra", [None, {"index": None}, {"index": "a"}, {"index": 0.5}, {"other": 1}])
def test_a_row_without_a_number_is_named(tmp_path, extra):
    (row,) = pq.read_table(questions(tmp_path, 1)).to_pylist()
    first = 0.0 if extra == {"index": 0.5} else "0"
    rows = [{**row, "extra_info": {"index": first}}, {**row, "extra_info": extra}]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "bad.parquet")
    with pytest.raises(ValueError, match="bad.parquet, row 1: extra_info must have an index, a whole number, but is"):
        read_tasks(str(tmp_path / "bad.parquet"))


def test_a_misspelt_section_in_a_recipe_is_named(command, tmp_path, capsys):
    (tmp_path / "recipe").mkdir()
    (tmp_path / "recipe" / "typo.yaml").write_text(
        "# @package _global_\ndefaults: [/base/multi_agent@_global_, _self_]\ndata: {val_fils: x}\n"
    )
    from verl_ext.evaluate.__main__ import main

    assert main(["--config-dir", str(tmp_path), "+recipe=typo"]) == 2
    assert "unknown key data.val_fils; did you mean 'val_files'" in capsys.readouterr().err


def test_an_endpoint_that_serves_an_adapter_per_agent_is_asked_for_each(command, tmp_path, capsys):
    """As `vllm serve BASE --lora-modules left=… right=…` names them; a role that does not train gets the base."""
    overrides = ["mas.policy=per_agent_lora", "evaluate.model=base", "+mas.agents.judge.trained=false"]
    with ChatServer(parrot, models=("base", "left", "right")) as server:
        assert command(*overrides, recipe="team", server=server, files=[questions(tmp_path, 2)]) == 0
    asked = {(body["model"], question_of(body).split()[0]) for body in server.requests}
    assert asked == {("left", "left"), ("right", "right"), ("base", "question")}
    assert "Note:" not in capsys.readouterr().out
    with ChatServer(parrot, models=("base",)) as server:
        assert command("evaluate.model=base", recipe="team", server=server, files=[questions(tmp_path, 2)]) == 2


def test_adapters_that_an_endpoint_does_not_list_are_named_with_the_remedy(command, tmp_path, capsys):
    given = {"recipe": "team", "files": [questions(tmp_path, 2)]}
    with ChatServer(parrot, models=("base", "left")) as server:
        assert command("mas.policy=per_agent_lora", "evaluate.model=base", server=server, **given) == 0
    said = capsys.readouterr().out
    assert "does not list right, judge (it lists base, left)" in said and "or mas.policy=shared" in said
    with ChatServer(parrot, models=None) as server:  # it lists none
        overrides = ["mas.policy=per_agent_lora", "evaluate.model=base", f"evaluate.output={tmp_path / 'other'}"]
        assert command(*overrides, server=server, **given) == 0
    assert "does not list" not in capsys.readouterr().out


def test_an_endpoint_that_one_name_asks_for_several_policies_is_refused(command, tmp_path, capsys):
    """Unless adapters under the agents' names tell the policies apart; the remedy that it names works."""
    sides = "+mas.policies.sides={agents: [left, right]}"
    with ChatServer(parrot, models=("base", "left", "right")) as server, ChatServer(parrot, models=("large",)) as other:
        given = {"recipe": "team", "server": server, "files": [questions(tmp_path, 1)]}
        two = [sides, "+mas.policies.large={agents: [judge]}", "evaluate.model=base"]
        assert command(*two, **given) == 2 and not server.requests
        said = capsys.readouterr().err
        assert f"evaluate.endpoint={server.url} is asked for one model, evaluate.model" in said
        assert "has sides (left, right), large (judge)" in said and "evaluate.model=…/global_step_N" in said
        assert "+mas.agents.judge.endpoint={url: …, model: …}" in said
        own = f"+mas.agents.judge.endpoint={{url: '{other.url}', model: large}}"
        assert command("~mas.policies", own, "evaluate.model=base", **given) == 0
        assert {body["model"] for body in server.requests} == {"base"} and other.requests[0]["model"] == "large"
        server.requests.clear()
        named = [*two, "+mas.policies.sides.per_agent_lora=true", f"evaluate.output={tmp_path / 'adapters'}"]
        assert command(*named, **given) == 0
    assert {body["model"] for body in server.requests} == {"base", "left", "right"}
