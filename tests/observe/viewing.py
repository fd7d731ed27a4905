"""Trajectory logs by hand, for the viewer's tests."""

from __future__ import annotations

from typing import Any

# Text that would do harm, or break the page, if anything took it for more than text.
HOSTILE = (
    "</script><script>window.broken = 1</script><img src=x onerror='window.broken = 2'>"
    "<svg onload=window.broken=3>]]><!--<script>\u2028\u2029${window.broken = 4}`\\'\"\u202e\x00\x07 https://example.com/x.png"
)


def call(agent: str, /, stream: str = "0", parents: list[str] | None = None, **given: Any) -> dict[str, Any]:
    """The part of a record that is of the call: agent `a` in stream `0` is "0 | a.0"."""
    text = given.pop("output", f"{agent} says")
    known = {
        "id": f"{stream} | {agent}.0",
        "scope": [],
        "agent": agent,
        "turn": 0,
        "depth": "abc".find(agent),
        "stream": stream.split(" > "),
        "trajectories": [0],
        "parents": parents or [],
        "prompt": [{"role": "user", "content": f"prompt of {agent}"}],
        "output": text,
        "reasoning": "",
        "tokens": [text[:3], text[3:]],
        "prompt_tokens": 5,
        "generated_tokens": 2,
        "decision": None,
        "status": "ok",
        "error": "",
        "rewards": {"shared": 0.5, "specific": 0.0, "total": 0.5},
        "ends": [],
        "metrics": {},
        "versions": [0, 0],
        "seconds": 0.1,
        "trained": True,
        "group": f"{agent}/0",
        "advantage": 0.5,
    }
    return known | given


def trajectory(reward: float | None = 0.5, status: str = "ok", sinks: list[str] | None = None, **given: Any) -> dict:
    """One entry of a question's trajectories."""
    known = {"stream": ["0"], "status": status, "error": "", "reward": reward, "metrics": {}, "notes": {}}
    return known | {"sinks": sinks or []} | given


def question(
    step: int | None, calls: list[dict], trajectories: list[dict], phase: str = "train", tools: Any = (), **given: Any
) -> list[dict[str, Any]]:
    """The record of one question, alone in a list."""
    known = {"number": 0, "index": 0, "source": "set", "text": "What?", "gold": {"target": ["gold"]}} | given
    numbered = [{"number": number, **one} for number, one in enumerate(trajectories)]
    head = {"phase": phase, "step": step, "question": known}
    return [{**head, "trajectories": numbered, "tools": list(tools), "calls": calls}]


def forked(step: int, number: int = 0, size: int = 3, **given: Any) -> list[dict[str, Any]]:
    """a -> search -> b, forked at b: `size` trajectories with rewards 0, 1, 0, 1 …; a is shared."""
    streams = ["0", *(f"0 > b.0*{n}" for n in range(1, size))]
    calls = [call("a", trajectories=list(range(size)), output=f"query of step {step}", rewards=_sum(0.5))]
    for n, stream in enumerate(streams):
        reward, ends = float(n % 2), [{"trajectory": n, "reward": float(n % 2)}]
        said = {"output": f"answer {n}", "rewards": _sum(reward), "advantage": [1.0, -1.0] if n % 2 else -0.5}
        calls.append(call("b", stream, ["0 | a.0"], trajectories=[n], ends=ends, **said))
    ends = [trajectory(float(n % 2), sinks=[f"{s} | b.0"], stream=s.split(" > ")) for n, s in enumerate(streams)]
    tool = {"id": "0 | tool:search.0", "name": "search", "trajectories": list(range(size)), "after": ["0 | a.0"]}
    tool |= {"arguments": {"queries": ["x"]}, "result": [{"title": "found it"}], "failure": None}
    known = {"number": number, "index": number, "text": f"Question {number}?"} | given
    return question(step, calls, ends, tools=[tool], **known)


def _sum(shared: float, specific: float = 0.0) -> dict[str, float]:
    return {"shared": shared, "specific": specific, "total": shared + specific}
