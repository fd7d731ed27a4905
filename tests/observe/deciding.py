"""Questions in which an agent decides who acts next, by hand, for tests of what shows them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.observe.viewing import call, question, trajectory


def decision(agent: str, turn: int, chosen: str, options: Sequence[str], log_prob: float | None, **given: Any) -> dict:
    """A call that decides."""
    known = {"id": f"0 | {agent}.{turn}", "turn": turn, "depth": turn, "output": chosen, "tokens": [chosen]}
    decided = {"options": list(options), "chosen": chosen, "log_prob": log_prob}
    return call(agent, **known | {"decision": decided} | given)


def decided(
    step: int,
    paths: Sequence[Sequence[str]],
    options: Sequence[str] = "abc",
    agent: str = "boss",
    log_prob: float = -1.0,
    **given: Any,
) -> list[dict[str, Any]]:
    """A question with a trajectory per path, each in a stream of its own."""
    calls = [
        decision(
            *(agent, turn, chosen, options, log_prob),
            id=f"{n} | {agent}.{turn}",
            stream=str(n),
            trajectories=[n],
            parents=[f"{n} | {agent}.{turn - 1}"] if turn else [],
        )
        for n, path in enumerate(paths)
        for turn, chosen in enumerate(path)
    ]
    return question(step, calls, [trajectory(stream=[str(n)]) for n in range(len(paths))], **given)
