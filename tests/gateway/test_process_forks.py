"""Programs in a process of their own: forks, an error, the end of what they have started, their settings."""

from __future__ import annotations

import asyncio
import sys
import time

import psutil
import pytest

from tests.gateway.programs import end_of, forest_of, numbered, run
from tests.helpers import fork, walk
from verl_ext.gateway import ProgramWorkflow
from verl_ext.mas.types import Status, Task

ASKING = """
import json, os, sys
from urllib.request import Request, urlopen

task = json.load(sys.stdin)

def post(path, **body):
    request = Request(os.environ["OPENAI_BASE_URL"] + path, json.dumps(body).encode(),
                      {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]})
    return json.load(urlopen(request))

def ask(agent, text):
    body = post("/chat/completions", model=agent, messages=[{"role": "user", "content": text}])
    return body["choices"][0]["message"]["content"]

found = post("/tool", name="look", arguments={"at": ask("planner", task["question"])})["result"]
answer = ask("solver", found)
post("/reward", agent="planner", value=0.5)
print("some noise")
"""


def score(task, result):
    return len(result["answer"])


def process(source, tmp_path, **options):
    path = tmp_path / "program.py"
    path.write_text(source)
    return ProgramWorkflow([sys.executable, str(path)], ["planner", "solver"], f"{__name__}.score", **options)


@pytest.mark.parametrize("posted", [False, True])
def test_a_program_in_a_process_is_forked(tmp_path, posted):
    """Its result is what it prints last, or posts; its tool calls and requests are replayed."""
    end = 'post("/result", result={"answer": answer})' if posted else 'print(json.dumps({"answer": answer}))'
    workflow, looked = process(ASKING + end, tmp_path), []

    async def look(at: str) -> str:
        looked.append(at)
        return f"a view of {at}"

    async def work():
        forest = forest_of(workflow, numbered(), tools={"look": look})
        base = await walk(forest)
        again = await fork(forest, base, base.calls[-1].id)
        await forest.close()
        return base, again

    base, again = run(work())
    assert base.ok and again.ok, base.error + again.error
    assert base.result == {"answer": "the output number 2"} and again.result == {"answer": "the output number 3"}
    assert looked == ["the output number 1"] and again.calls[0] is base.calls[0]
    assert base.reward == len("the output number 2") and base.agent_rewards == {"planner": 0.5}


def test_a_process_that_fails_shows_its_error(tmp_path):
    trajectory = end_of(process("import sys; sys.exit('no such file')", tmp_path))
    assert trajectory.status is Status.WORKFLOW_ERROR
    assert "status 1" in trajectory.error and "no such file" in trajectory.error


def test_a_process_and_its_children_end_with_the_trajectory(tmp_path):
    """It starts a child that ignores SIGTERM, and both hang."""
    pids = tmp_path / "pids"
    source = f"""
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = os.fork()
if child:
    with open({str(pids)!r}, "w") as file: file.write(f"{{os.getpid()}} {{child}}")
time.sleep(600)
"""

    async def work():
        forest = forest_of(process(source, tmp_path), limits={"trajectory_timeout": None})
        running = asyncio.ensure_future(walk(forest))
        while not pids.exists() or " " not in pids.read_text():
            await asyncio.sleep(0.01)
        running.cancel()
        await asyncio.wait([running])
        return [int(pid) for pid in pids.read_text().split()]

    def ended(pid):
        try:
            return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return True

    for pid in run(work()):
        deadline = time.monotonic() + 30  # the kernel kills in its own time
        while not ended(pid):
            assert time.monotonic() < deadline, pid
            time.sleep(0.01)


def test_settings_of_a_program_are_checked():
    with pytest.raises(ValueError, match="must be a list"):
        ProgramWorkflow("python agent.py", ["planner"], f"{__name__}.score")
    with pytest.raises(ValueError, match="cannot be imported"):
        ProgramWorkflow([sys.executable], ["planner"], "no_module.score")
    workflow = ProgramWorkflow([sys.executable], ["planner"], f"{__name__}.score")
    assert workflow.reward(Task("q"), {"answer": "abc"})[0] == 3.0
