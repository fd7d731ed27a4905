"""Runs in which an agent decides who acts next, by hand and made up, for tests of what shows them and to look at.

python -m tests.observe.deciding /tmp/fake    # a made-up run of 40 steps, its page and its pictures
"""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.observe.viewing import call, question, trajectory
from verl_ext.observe.collaboration import paths_in
from verl_ext.observe.decisions import decision_metrics
from verl_ext.observe.record import by_step
from verl_ext.observe.runlog import NAME, RunLog
from verl_ext.observe.summary import print_summary
from verl_ext.observe.trajectory_files import FOLDER, TrajectoryLog
from verl_ext.observe.viewer import main

ROLES = ("plan", "decompose", "search", "read", "calculate", "code", "reflect", "critique", "question", "summarise",
         "verify", "conclude")  # fmt: skip


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


def wander(chance: random.Random, progress: float, greedy: bool, roles: Sequence[str]) -> list[str]:
    """A path of a made-up policy: at random at first, later around a loop of three, and then to the last role."""
    path = [roles[0] if greedy or chance.random() < 0.2 + 0.7 * progress else chance.choice(roles)]
    while path[-1] != roles[-1] and len(path) < 9:
        wanted = {roles[0]: roles[2], roles[2]: roles[7 % len(roles)]}.get(path[-1], roles[-1])
        if wanted == roles[-1] and chance.random() < 0.35:
            wanted = roles[2]
        path.append(wanted if chance.random() < 0.15 + 0.8 * progress else chance.choice(roles))
    return path


def fake_run(folder: Path, roles: Sequence[str] = ROLES, steps: int = 40, seed: int = 0) -> None:
    """A run's metrics and trajectory log, made up."""
    chance = random.Random(seed)
    log, texts = RunLog(folder, NAME), TrajectoryLog(folder / FOLDER, 10**7, 4)
    log.start(0, steps)
    texts.start(0)
    for step in range(steps + 1):
        progress, lines, metrics = (step / steps) ** 0.7, [], {}
        for phase in ("train",) * (step > 0) + ("val",) * (step % 10 == 0):
            asked = [
                decided(
                    *(step, [wander(chance, progress, phase == "val", roles) for _ in range(4)], roles, "puppeteer"),
                    **{
                        "log_prob": -math.log(len(roles)) * (1 - 0.8 * progress),
                        "phase": phase,
                        "number": n,
                        "index": n,
                        "text": f"Made-up question {n}?",
                    },
                )
                for n in range(8)
            ]
            lines += [line for one in asked for line in one]
            paths = [path for one in asked for q in by_step(one)[phase, step] for path in paths_in(q)]
            found = decision_metrics(paths) | {
                "system/reward": 0.2 + 0.6 * progress + chance.gauss(0, 0.03),
                "system/f1": 0.2 + 0.6 * progress + chance.gauss(0, 0.02),
                "system/tokens": 900 - 500 * progress + chance.gauss(0, 20),
                "system/agents": sum(len(set(path.choices)) for path in paths) / len(paths),
                "agents/puppeteer/penalty": 0.0,
                "agents/puppeteer/unparsable": 0.0,
                "sampling/questions": 8,
            }
            metrics |= {f"val/{name}" if phase == "val" else name: value for name, value in found.items()}
        texts.write(lines)
        log.write(step, metrics)


if __name__ == "__main__":
    to = Path(sys.argv[1])
    fake_run(to, ROLES[: int(sys.argv[2])] if len(sys.argv) > 2 else ROLES)
    print_summary(to / NAME, "f1", "is", [])
    main([str(to)])
