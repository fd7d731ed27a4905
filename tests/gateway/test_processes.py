"""Programs in a process of their own: their results, what they leave behind, and what is wrong with a command."""

from __future__ import annotations

import math
import os
import signal
import sys
import time

import pytest

from tests.gateway.programs import end_of, post
from verl_ext.gateway import ProgramWorkflow
from verl_ext.gateway.running import environment_of
from verl_ext.mas.types import Status

SCORE = f"{__name__}.score"
POSTING = """
import json, os, sys
from urllib.request import Request, urlopen
headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
body = b'{"result": %s}'
urlopen(Request(os.environ["OPENAI_BASE_URL"] + "/result", body, headers)).read()
print("printed")
"""


def score(task, result):
    return 1.0


def process(source, tmp_path, **options):
    path = tmp_path / "program.py"
    path.write_text(source)
    return ProgramWorkflow([sys.executable, "-S", str(path)], ["planner", "solver"], SCORE, **options)


PRINTED = [("42", "42"), ("true", "true"), ("null", "null"), ('"quoted"', '"quoted"'), ("NaN", "NaN"), ("{x", "{x")]
PRINTED += [('{"answer": 42}', {"answer": 42}), ("[1, null]", [1, None]), ("  Ann Bell ", "Ann Bell")]
# Characters within a line that `str.splitlines` takes for its end, and half a character as JSON writes it.
PRINTED += [("one\u2028two\x85three", "one\u2028two\x85three"), ('{"a": "one\u2028two"}', {"a": "one\u2028two"})]
PRINTED += [('{"half": "\\ud83d"}', {"half": "\ufffd"}), ("10 %\r99 %\r\nAnn\r\n", "Ann")]


@pytest.mark.parametrize(("line", "result"), PRINTED)
def test_a_printed_line_is_a_text_unless_it_is_an_object_or_a_list(tmp_path, line, result):
    """So that a reward can rely on a text from a program that prints its answer, 42 too."""
    trajectory = end_of(process(f"print('noise'); print({line!r}); print()", tmp_path))
    assert trajectory.ok and trajectory.result == result and type(trajectory.result) is type(result)


@pytest.mark.parametrize(
    ("posted", "result"), [("42", 42), ("null", None), ('""', ""), ('{"a": [true]}', {"a": [True]})]
)
def test_a_posted_result_may_be_any_json_and_wins_over_a_printed_one(tmp_path, posted, result):
    trajectory = end_of(process(POSTING % posted, tmp_path))
    assert trajectory.ok and trajectory.result == result and type(trajectory.result) is type(result)


def test_a_program_that_does_nothing_is_no_bad_answer(tmp_path):
    trajectory = end_of(process("pass", tmp_path))
    assert trajectory.status is Status.WORKFLOW_ERROR and math.isnan(trajectory.reward)
    assert "printed nothing, posted no result" in trajectory.error


LEAVING = """
import os, sys, time
print("x" * 300_000)
print("the answer", flush=True)
if not os.fork():
    {detached}
    with open({pid!r}, "w") as file: file.write(str(os.getpid()) + " ")
    time.sleep(3600)
while not os.path.exists({pid!r}) or " " not in open({pid!r}).read(): time.sleep(0.01)
os._exit(0)
"""


@pytest.mark.parametrize("detached", [False, True])
def test_a_child_that_holds_the_pipes_of_its_program_holds_up_nothing(tmp_path, detached):
    """It is ended with the program's process group; one in a session of its own is left."""
    source = LEAVING.format(detached="os.setsid()" if detached else "pass", pid=str(tmp_path / "pid"))
    # A trajectory that waits for the child waits for an hour.
    trajectory = end_of(process(source, tmp_path), limits={"trajectory_timeout": 120.0})
    child = int((tmp_path / "pid").read_text())
    if detached:
        os.kill(child, signal.SIGKILL)
    assert trajectory.ok and trajectory.result == "the answer", trajectory.error
    while _runs(child):
        time.sleep(0.01)


def _runs(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().split()[2] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_command_that_cannot_be_started_is_refused_before_the_start(tmp_path):
    def refused(match, command, agents=("planner",), **options):
        with pytest.raises(ValueError, match=match):
            ProgramWorkflow(command, list(agents), SCORE, **options)

    refused("names planner twice", [sys.executable], ["planner", "solver", "planner"])
    refused("no program of this name on the PATH", ["no_such_program"])
    refused("on the PATH", [os.path.basename(sys.executable)], environment={"PATH": str(tmp_path)})
    refused("no program .*agent.sh", ["./agent.sh"], folder=str(tmp_path))
    refused("no file agent.py in", [sys.executable, "agent.py"], folder=str(tmp_path))
    refused("is no folder", [sys.executable], folder=str(tmp_path / "none"))
    (tmp_path / "agent.py").write_text("")
    (tmp_path / "agent.sh").write_text("#!/bin/sh\n")
    refused("no program .*agent.sh", ["./agent.sh"], folder=str(tmp_path))  # not executable
    (tmp_path / "agent.sh").chmod(0o755)
    for command in (["./agent.sh"], [sys.executable, "agent.py"]):
        ProgramWorkflow(command, ["planner"], SCORE, folder=str(tmp_path))


@pytest.mark.parametrize("value", [1, True, None])
def test_a_variable_that_is_no_text_is_refused_before_the_start(tmp_path, value):
    """YAML reads DEBUG: 1 as a number; every trajectory failed with "expected str, bytes or os.PathLike object"."""
    with pytest.raises(ValueError, match=f"mas.workflow.environment.DEBUG={value}.*in quotes"):
        process("print(42)", tmp_path, environment={"DEBUG": value})


def test_no_proxy_stands_before_the_gateway_wherever_it_listens(monkeypatch):
    """Only loopback was left out, although `mas.gateway.host` may be another address of this machine."""
    monkeypatch.setenv("NO_PROXY", "example.org")
    monkeypatch.delenv("no_proxy", raising=False)
    found = environment_of("http://10.1.2.3:8000", "key", 1)
    assert found["NO_PROXY"].split(",") == ["example.org", "127.0.0.1", "localhost", "10.1.2.3"]
    assert found["no_proxy"].split(",") == ["127.0.0.1", "localhost", "10.1.2.3"]


def test_arguments_of_tools_may_be_json_and_wrong_values_are_named():
    bodies = [
        ("tool", {"name": "double", "arguments": '{"text": "ab"}'}),
        ("tool", {"name": "double", "arguments": {"text": "ab"}}),
        *[("tool", {"name": "double", "arguments": wrong}) for wrong in ("ab", "[1]", ["ab"], 3)],
        ("reward", {"agent": "planner", "value": "much"}),
        ("reward", {"agent": "planner", "value": None}),
    ]

    def program(task, endpoint):
        return [post(f"{endpoint.base_url}/{path}", endpoint.api_key, body) for path, body in bodies]

    async def double(text: str) -> str:
        return text * 2

    trajectory = end_of(program, tools={"double": double})
    assert trajectory.ok, trajectory.trace
    told = trajectory.result
    assert told[0] == told[1] == (200, {"result": "abab"})
    for status, answer in told[2:6]:
        assert status == 400 and "arguments must be an object" in answer["error"]["message"]
        assert answer["error"]["param"] == "arguments"
    for (status, answer), value in zip(told[6:], ("'much'", "None"), strict=True):
        assert status == 400 and f"value={value} must be a number" in answer["error"]["message"]
        assert "'planner'" in answer["error"]["message"]
