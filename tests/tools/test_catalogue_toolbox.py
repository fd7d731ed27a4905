"""The toolbox: answers to whatever an agent writes and whatever a back end does."""

import asyncio
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from verl_ext.tools import Tool, ToolError
from verl_ext.tools.catalogue import Backend, Catalogue, Toolbox, ToolSpec
from verl_ext.tools.catalogue.types import CallError
from verl_ext.tools.simulator import Counters

PARAMETERS = {
    "type": "object",
    "properties": {"x": {"type": "integer"}},
    "required": ["x"],
    "additionalProperties": False,
}
ECHO = ToolSpec("echo", "Says x.", PARAMETERS)


class Log:
    """A back end that returns or raises what it is told, and keeps its calls."""

    def __init__(self, result=None):
        self.result, self.calls, self.closed = result, [], 0

    async def __call__(self, spec, arguments):
        self.calls.append((spec.name, arguments))
        if isinstance(self.result, BaseException):
            raise self.result
        return arguments["x"] if self.result is None else self.result

    async def close(self):
        self.closed += 1


def box(backend=None, tools=(ECHO,), **settings):
    return Toolbox(Catalogue(tools), backend or Log(), **settings)


def ask(toolbox, name="echo", arguments=None, **more):
    return asyncio.run(toolbox(name=name, arguments={"x": 1} if arguments is None else arguments, **more))


def test_a_call_that_fits_is_run_once_and_answered():
    backend = Log()
    toolbox = box(backend)
    assert isinstance(toolbox, Tool) and toolbox.name == "tool_call" and isinstance(backend, Backend)
    assert ask(toolbox) == {"ok": True, "result": 1} and backend.calls == [("echo", {"x": 1})]


@pytest.mark.parametrize(
    "name, arguments, kind, error",
    [
        ("Echo", {"x": 1}, "unknown_tool", "there is no tool 'Echo'"),
        (None, {"x": 1}, "unknown_tool", "there is no tool of type NoneType"),
        ("echo", {}, "bad_arguments", "echo: 'x' is a required property"),
        ("echo", '{"x": 1}', "bad_arguments", "the arguments of echo must be an object, given str"),
        ("echo", {"x": float("inf")}, "bad_arguments", "not JSON"),
        ("echo", {"x": 1, "\ud800": 1}, "bad_arguments", "was unexpected)"),
    ],
)
def test_nonsense_is_answered_without_calling_the_back_end(name, arguments, kind, error):
    backend = Log()
    answer = ask(box(backend), name, arguments)
    assert set(answer) == {"ok", "error", "kind"} and answer["ok"] is False and answer["kind"] == kind
    assert error in answer["error"] and backend.calls == []
    json.dumps(answer).encode()


def test_answers_are_counted_by_kind_and_with_what_the_back_end_counts():
    backend = Log()
    toolbox = box(backend)
    for name, arguments in (("echo", {"x": 1}), ("echo", {"x": 2}), ("echo", {}), ("Echo", {"x": 1})):
        ask(toolbox, name, arguments)
    backend.result = CallError("no")
    ask(toolbox)
    backend.result = ToolError("the infrastructure")
    with pytest.raises(ToolError, match="the infrastructure"):
        ask(toolbox)
    backend.result = CallError("not recorded", "not_recorded")
    assert ask(toolbox)["kind"] == "not_recorded"
    expected = {"answered": 2, "bad_arguments": 1, "unknown_tool": 1, "tool_error": 1, "not_recorded": 1}
    assert toolbox.counts() == expected
    backend.counters = Counters(hits=3)
    assert toolbox.counts() == expected | Counters(hits=3).as_dict()


def test_no_arguments_are_an_empty_object_and_back_ends_get_a_copy():
    backend = Log("now")
    toolbox = box(backend, [ToolSpec("now", "")])
    assert asyncio.run(toolbox(name="now")) == {"ok": True, "result": "now"}
    given = {"a": [1]}
    asyncio.run(toolbox(name="now", arguments=given))
    backend.calls[-1][1]["a"].append(2)
    assert given == {"a": [1]}


@pytest.mark.parametrize(
    "error, text",
    [
        (ValueError("no city"), "ValueError: no city"),
        (CallError("status 404: no city"), "status 404: no city"),
        (SystemExit(1), "RuntimeError: SystemExit: 1"),
        (asyncio.CancelledError(), "echo was cancelled"),
        (RuntimeError("x" * 10**6), "RuntimeError: xxx"),
        (ValueError("\ud800\x00"), "ValueError: ?\\x00"),
    ],
)
def test_what_a_tool_raises_is_its_answer(error, text):
    answer = ask(box(Log(error)))
    assert answer["kind"] == "tool_error" and answer["error"].startswith(text) and len(answer["error"]) <= 2000


def test_slow_back_ends_end_at_the_time_limit_also_those_that_ignore_it():
    ended = []

    async def run():
        free = asyncio.Event()

        async def stubborn(spec, arguments):
            while True:
                try:
                    await free.wait()
                    ended.append("late")
                    return "late"
                except asyncio.CancelledError:
                    pass

        with pytest.raises(ToolError, match=r"'echo' did not answer within 0.05 s.*mas.tools.tool_call.timeout_s"):
            await box(stubborn, timeout_s=0.05)(name="echo", arguments={"x": 1})
        before = list(ended)
        free.set()
        return before

    assert asyncio.run(run()) == []


def test_a_cancelled_call_cancels_the_back_end():
    cancelled = []

    async def run():
        started, ended = asyncio.Event(), asyncio.Event()

        async def slow(spec, arguments):
            started.set()
            try:
                await asyncio.sleep(600)
            except asyncio.CancelledError:
                cancelled.append(spec.name)
                ended.set()
                raise

        call = asyncio.ensure_future(box(slow, timeout_s=600)(name="echo", arguments={"x": 1}))
        await started.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await asyncio.wait_for(ended.wait(), 60)

    asyncio.run(run())
    assert cancelled == ["echo"]


def test_long_results_are_cut():
    answer = ask(box(Log("x" * 10_000_000), max_chars=50))
    assert answer["result"] == "x" * 16 + "… [cut: longer than 50 characters]" and len(answer["result"]) == 50


@settings(max_examples=150, deadline=None)
@given(
    st.text(max_size=5) | st.just("echo") | st.none() | st.lists(st.integers()),
    st.dictionaries(st.sampled_from(["x", "y"]), st.integers() | st.floats() | st.text(st.characters()) | st.binary())
    | st.none()
    | st.text()
    | st.integers(),
)
def test_every_call_is_answered_in_json(name, arguments):
    answer = asyncio.run(box()(name=name, arguments=arguments))
    json.dumps(answer, allow_nan=False).encode()
    assert answer["ok"] is (answer == {"ok": True, "result": arguments["x"]} if answer["ok"] else False)
