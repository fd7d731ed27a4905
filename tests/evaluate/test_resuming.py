"""An evaluation that goes on: nothing is asked twice, other settings are refused, kills and interrupts lose nothing."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import re
import signal
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from omegaconf import OmegaConf

from tests.evaluate.asking import lasting, parrot, questions
from tests.evaluate.conftest import HERE, quick_compose, write_questions
from tests.evaluate.systems import Blocking
from tests.serving import ChatServer
from verl_ext.evaluate.config import EvaluateConfig, read_config
from verl_ext.evaluate.runner import output_folder, settings_of
from verl_ext.tools.retrieval import Passage, build_index

FORK = multiprocessing.get_context("fork")


def test_nothing_is_asked_twice_and_more_may_be_asked(command, tmp_path):
    with ChatServer(parrot) as server:
        command("evaluate.max_questions=2", server=server, files=[questions(tmp_path)])
        before = lasting(command.results)
        command("evaluate.max_questions=2", server=server)
        assert lasting(command.results) == before and len(server.requests) == 2
        command("evaluate.max_questions=4", server=server)
        assert len(server.requests) == 4 and command.results["data"]["made"]["questions"] == 4
    with ChatServer(parrot) as elsewhere:  # where the endpoint is does not matter, what it serves does
        command("evaluate.max_questions=5", server=elsewhere)
        assert len(elsewhere.requests) == 1


OTHER_SETTINGS = {
    "evaluate.temperature=0.5": "temperature: 0.0 there, 0.5 here",
    "data.max_response_length=77": "response_length: 512 there, 77 here",
    "actor_rollout_ref.rollout.response_length=77": "response_length: 512 there, 77 here",
    "mas.seed=8": "seed: 1 there, 8 here",
    "evaluate.model=other": "model: tiny there, other here",
    "mas.workflow._target_=tests.evaluate.systems.Broken": "workflow._target_: tests.evaluate.systems.Solver there",
    "mas.failure.truncated=0": "failure.truncated: None there, 0.0 here",
}


def test_answers_of_other_files_of_a_system_are_refused(command, tmp_path, capsys, monkeypatch):
    with ChatServer(parrot) as server:
        command(server=server, files=[questions(tmp_path)])
        monkeypatch.setattr("verl_ext.evaluate.runner.own_files", lambda system: {"systems.py": "other"})
        assert command(server=server) == 2
    assert re.search(r"files of the workflow.systems.py: \w{16} there, other here", capsys.readouterr().err)


def test_other_settings_and_another_model_at_the_same_place_are_refused(command, tmp_path, capsys):
    with ChatServer(parrot) as server:
        command(server=server, files=[questions(tmp_path)])
        for override, words in OTHER_SETTINGS.items():
            assert command(override, server=server) == 2
            said = capsys.readouterr().err
            assert words in said and "Remedy: another folder (evaluate.output=" in said
        assert len(server.requests) == 6
    with ChatServer(parrot, models=("larger",)) as server:
        assert command(server=server) == 2 and not server.requests
    assert "model: tiny there, larger here" in capsys.readouterr().err


SEARCH = "+mas.tools.search._target_=verl_ext.tools.retrieval.search_tool"


def test_where_passages_come_from_may_change_but_not_which(command, tmp_path, capsys):
    """Settings of the search tool, by what they change; the questions are not asked again."""
    build_index([Passage("1", "A", "amber")], "index")
    build_index([Passage("1", "A", "amber")], "copy")
    with ChatServer(parrot) as server:
        command(SEARCH, "+mas.tools.search.index=index", server=server, files=[questions(tmp_path)])
        assert command(SEARCH, "+mas.tools.search.index=copy", "+mas.tools.search.verify=false", server=server) == 0
        assert command(SEARCH, "+mas.tools.search.index=index", "+mas.tools.search.top_k=2", server=server) == 2
        assert "tools.search.top_k: None there, 2 here" in capsys.readouterr().err
        build_index([Passage("9", "Z", "zinc")], "index", overwrite=True)
        assert command(SEARCH, "+mas.tools.search.index=index", server=server) == 2
        assert "tools.search.index.corpus_sha256: " in capsys.readouterr().err
        assert len(server.requests) == 6


def test_what_changes_an_answer_and_what_does_not():
    search = ["url=http://127.0.0.1:8000", "check=false", "top_k=5", "timeout_s=9", "attempts=2"]
    fixed = ["+recipe=closed", SEARCH, *[f"+mas.tools.search.{setting}" for setting in search]]
    fixed += ["evaluate.temperature=1.0", "evaluate.endpoint=http://127.0.0.1:8100/v1"]
    changing = ["mas.sampling.seeded=false", "mas.tools.search.top_k=2"]
    others = ["url=http://127.0.0.1:8001", "timeout_s=5", "attempts=1"]
    given = [[], *([one] for one in changing), [f"mas.tools.search.{one}" for one in others]]
    configs = [quick_compose([*fixed, *overrides], str(HERE)) for overrides in given]
    first, *changed, same = [settings_of(config, *read_config(config), None) for config in configs]
    assert first == same and first not in changed


@pytest.mark.parametrize(
    ("model", "endpoint", "folder"),
    [
        (None, None, "closed"),
        ("runs/closed/global_step_40", None, "closed-global_step_40"),
        ("/else/where/mine/global_step_4/actor/", None, "closed-mine-global_step_4"),
        ("Qwen/Qwen2.5-7B", None, "closed-Qwen2.5-7B"),
        ("served", "http://127.0.0.1:8100/v1", "closed-endpoint-served"),
    ],
)
def test_the_folder_is_named_after_what_answers(model, endpoint, folder):
    config = OmegaConf.create({"trainer": {"experiment_name": "closed"}})
    assert output_folder(config, EvaluateConfig(model=model, endpoint=endpoint)) == Path("runs/evaluate") / folder
    assert output_folder(config, EvaluateConfig(model=model, output="~/mine")) == Path.home() / "mine"


def test_another_question_of_the_same_number_is_refused(command, tmp_path, capsys):
    with ChatServer(parrot) as server:
        command(server=server, files=[questions(tmp_path)])
        report = {name: (command.output / name).read_bytes() for name in ("report.md", "results.json")}
        write_questions(tmp_path / "questions.parquet", ["else"])
        assert command(server=server) == 2
        assert "an answer to another question with index 0 of data source 'made'" in capsys.readouterr().err
        assert {name: (command.output / name).read_bytes() for name in report} == report  # not of the new questions
        assert command(server=server, files=[questions(tmp_path)]) == 0  # the folder is free again


def test_a_line_cut_short_or_damaged_is_asked_again(command, tmp_path):
    with ChatServer(parrot) as server:
        command(server=server, files=[questions(tmp_path)])
        path = command.output / "trajectories.jsonl"
        lines = path.read_bytes().splitlines(keepends=True)
        path.write_bytes(b"".join([lines[0], b"{garbage}\n", b"{}\n", *lines[2:5], lines[5][:40]]))
        assert command(server=server) == 0
        assert len(server.requests) == 8
    assert command.results["data"]["made"]["answered"] == 6


def test_killed_in_the_middle_and_gone_on_with(command, tmp_path, capsys):
    free = threading.Event()

    async def slow(body, number):
        while number >= 30 and not free.is_set():  # it is killed in the middle, however slow this process is
            await asyncio.sleep(0.01)
        return parrot(body, number)

    questions(tmp_path, 60)
    file = tmp_path / "out" / "trajectories.jsonl"
    receiver, sender = multiprocessing.Pipe(duplex=False)
    # A copy of this process, which has everything imported; it begins before the server's thread does.
    process = FORK.Process(target=lambda: command("evaluate.concurrency=4", server=receiver.recv()))
    process.start()
    with ChatServer(slow) as server:
        sender.send(SimpleNamespace(url=server.url))
        while not file.exists() or file.read_bytes().count(b"\n") < 20:
            assert process.is_alive()
            time.sleep(0.01)
        os.kill(process.pid, signal.SIGSTOP)
        assert command(server=server) == 2  # nobody else may write there meanwhile
        assert "another process evaluates into" in capsys.readouterr().err
        process.kill()
        process.join()
        free.set()
        done = file.read_bytes().count(b"\n")
        asked = len(server.requests)
        assert 20 <= done < 60
        assert command("evaluate.concurrency=4", server=server) == 0
        # Only what had no answer on the disk: nothing else of those that were under way.
        assert len(server.requests) - asked == 60 - done
        resumed = lasting(command.results)
        command.output = tmp_path / "uninterrupted"
        assert command("evaluate.concurrency=4", server=server) == 0
    assert lasting(command.results) == resumed and resumed["data"]["made"]["answered"] == 60


@pytest.fixture
def interruptible():
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a process in the background ignores it
    yield
    signal.signal(signal.SIGINT, before)


def test_the_first_interrupt_ends_a_tool_that_blocks_the_event_loop(command, tmp_path, interruptible, capsys):
    with ChatServer(parrot) as server:
        tool = "mas.tools.library._target_=tests.evaluate.systems.Blocking"
        assert command(tool, recipe="team", server=server, files=[questions(tmp_path, 4)]) == 130
    assert not Blocking.ended and "Interrupted" in capsys.readouterr().err


def test_an_interrupt_keeps_what_is_answered(command, tmp_path, interruptible, capsys):
    def interrupting(body, number):
        if number == 9:
            os.kill(os.getpid(), signal.SIGINT)
        return parrot(body, number)

    with ChatServer(interrupting) as server:
        assert command("evaluate.concurrency=2", server=server, files=[questions(tmp_path, 40)]) == 130
    assert "Interrupted. The same command goes on from here." in capsys.readouterr().err
    made = command.results["data"]["made"]
    assert 5 <= made["trajectories"] < 40 and made["missing"] == 40 - made["trajectories"]
