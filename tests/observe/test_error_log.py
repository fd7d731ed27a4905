"""A failure that does not stop the run is told once, with the user's line and the number of trajectories."""

from __future__ import annotations

import asyncio
import pickle

from tests.helpers import FakeLLM, forest_of, run, walk
from verl_ext.mas import ToolFailed
from verl_ext.mas.types import Stream
from verl_ext.observe.error_log import NAME, ErrorLog, append
from verl_ext.observe.metrics import failure_report
from verl_ext.observe.progress import Progress
from verl_ext.observe.question_stats import Failure, QuestionStats, question_stats


async def fails_by_answer(task, ctx):
    """Raises in one of two places, fails with its tool, or goes on without it."""
    said = await ctx.call("a")
    if said == "first":
        return {}[task.question]
    if said == "second":
        return [][0]
    try:
        return await ctx.tool("t", word=said)
    except ToolFailed:
        if said == "needs it":
            raise
        return said


async def broken_tool(word: str) -> str:
    return word / 2


def sampled(*answers: str) -> QuestionStats:
    """What a worker sends of a question with one trajectory for each answer of its agent."""
    tools = {"t": broken_tool}
    llm = FakeLLM(lambda request: answers[int(request.key[1])])
    forest = forest_of(fails_by_answer, llm, tools=tools, limits={"tool_retries": 0})

    async def walks():
        return await asyncio.gather(*[walk(forest, Stream(str(n))) for n in range(len(answers))])

    forest.trajectories += run(walks())
    return pickle.loads(pickle.dumps(question_stats(forest, [])))


def test_each_place_once_with_its_line_and_how_many(tmp_path):
    log, path = ErrorLog(tmp_path), tmp_path / NAME
    log.tell([sampled("first", "second"), sampled("first", "fine")], "step 1")
    text = path.read_text()
    assert text.count("return {}[task.question]") == text.count("return [][0]") == text.count("return word / 2") == 1
    assert "step 1: 2 of 4 trajectories failed: workflow_error. The first one:" in text
    assert "step 1: 1 of 4 trajectories went on without a tool's result." in text and "verl_ext/" not in text
    log.tell([sampled("first", "first", "fine")], "step 2")
    assert path.read_text() == text, "told already"


def test_the_terminal_shows_what_this_run_adds(tmp_path, capsys):
    (tmp_path / NAME).write_text("of an earlier run\n")
    progress = Progress(tmp_path, "f1", interval=60)
    progress.start()
    ErrorLog(tmp_path).tell([sampled("first")], "step 1")
    progress.stop()
    shown = capsys.readouterr().out
    assert shown.count("return {}[task.question]") == 1 and "earlier" not in shown


def test_half_a_character_in_a_message_stops_nothing(tmp_path, capsys):
    """JSON of a server that cuts its texts may hold half of an emoji, which cannot be encoded."""
    broken = QuestionStats(0, trajectories=1, errors=[Failure("tool_error", "no city \ud83d", "")])
    ErrorLog(tmp_path).tell([broken], "step 1")
    append(tmp_path / NAME, "ValueError: \udfff\n")
    assert r"no city \ud83d" in (text := (tmp_path / NAME).read_text()) and r"ValueError: \udfff" in text
    assert ErrorLog(tmp_path).news([broken], "step 1").encode(), "an evaluation prints it"


def test_the_terminal_waits_for_the_rest_of_a_character(tmp_path, capsys):
    progress, log = Progress(tmp_path, "f1"), tmp_path / NAME
    whole = "no café\n".encode()
    log.write_bytes(whole[:-2])
    progress._show_errors()
    log.write_bytes(whole)
    progress._show_errors()
    assert capsys.readouterr().out == "no café\n"


def test_the_reasons_of_a_run_that_stops_end_with_the_users_line():
    reasons, _, trace = failure_report([sampled("fine"), sampled("first", "second")]).partition("\n\n")
    assert reasons == "2 x workflow_error; the first: KeyError: 'q'"
    assert trace.startswith("Traceback") and "return {}[task.question]" in trace
    assert failure_report([sampled("fine")]) == ""


def test_a_tool_that_fails_stops_one_trajectory_and_not_another(tmp_path):
    stats = sampled("fine", "needs it", "fine")
    log = ErrorLog(tmp_path)
    log.tell([stats], "step 1")
    text = (tmp_path / NAME).read_text()
    assert "step 1: 2 of 3 trajectories went on without a tool's result." in text
    assert "step 1: 1 of 3 trajectories failed: tool_error. The first one:" in text
    assert failure_report([stats]).startswith("1 x tool_error; the first: tool_error: tool 't'")
