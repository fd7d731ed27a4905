"""Seconds per step of the modes of training with tools that answer late, and what staleness does to learning.

    python -m tests.bench.asynchronous                      # seconds per step
    python -m tests.bench.asynchronous --long_tail 8        # and rewards at equal minutes, eight a mode
    python -m tests.bench.asynchronous --learning --steps 20    # rewards at staleness 0, 1, 4 and 8
    python -m tests.bench.asynchronous --learning --steps 24 --recipe solver_verifier_real \
        --set actor_rollout_ref.model.path=models/smollm2       # the same with a real model (a path: in full)
    python -m tests.bench.asynchronous --oversample 1 1.25 1.5  # seconds per step by mas.sampling.oversample

Every search waits for a time of a log-normal distribution: its median is `--median` seconds, and one in a hundred takes
over ten times as long. Under `--long_tail` the time is log-uniform between 0.1 and 30 s, and every trajectory ends with
an output whose length follows a Zipf law (`LongTail`). The machine's cores hardly matter, the waiting does.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import os
import random
import signal
import statistics
import subprocess
import tempfile
import time
from itertools import accumulate
from pathlib import Path
from typing import Any

from tests.end_to_end.running import command, environment, run, steps
from tests.helpers import heed_signals
from verl_ext.mas import Agent, Task, Workflow
from verl_ext.recipe.mhgpo import SearchQA
from verl_ext.reports import machine
from verl_ext.tools.retrieval import search

# exp(SPREAD · 2.33) = 10.
SPREAD = 1.0
MODES = ("mas_sync", "mas_colocate_async", "mas_separate_async")
# The shortest and the longest search under a long tail, in seconds. Mean 5.2, median 1.7; one in ten takes over 17.
SHORTEST, LONGEST = 0.1, 30.0
# Zipf's law: an output has 8 · rank tokens, with a probability of 1 / rank. The mean is 63, the longest 256.
RANKS = range(1, 33)
# Minutes over which rewards are averaged; the reward that a run should reach.
WINDOW, HALF = 2, 0.5
# Steps that no run makes in its minutes.
MANY = 10_000


def search_tool(median: float | None = None, longest: float = 20.0, **settings: Any) -> Any:
    """The search tool, whose answers come late: `median` seconds, `longest` at most. None: with a long tail."""
    inner = search.search_tool(**settings)

    async def late(queries: list[str]) -> list[dict[str, str]]:
        if median is None:
            await asyncio.sleep(SHORTEST * (LONGEST / SHORTEST) ** random.random())
        else:
            await asyncio.sleep(min(median * random.lognormvariate(0.0, SPREAD), longest))
        return await inner(queries)

    return late


class Writer(Workflow):
    """An agent that does not train. It writes so many tokens, whatever they are."""

    def __init__(self, length: int):
        writer = Agent(lambda text: [{"role": "user", "content": text}], trained=False)
        # Set past the check of `Agent.sampling`: only a measurement wants an output that does not end.
        writer.sampling.update(max_tokens=length, ignore_eos=True)
        self.agents = {"writer": writer}

    async def run(self, task: Task, ctx: Any) -> str:
        return await ctx.call("writer", text=task.question)

    def reward(self, task: Task, result: str) -> tuple[float, dict[str, float]]:
        raise NotImplementedError("it is a part of LongTail")


class LongTail(SearchQA):
    """The three-agent search system, after whose answer a `Writer` writes as many tokens as a Zipf law says."""

    async def run(self, task: Task, ctx: Any) -> str:
        answer = await super().run(task, ctx)
        (rank,) = random.choices(RANKS, [1 / rank for rank in RANKS])
        await ctx.run(Writer(8 * rank), task)
        return answer


LATE = ["mas.tools.search._target_=tests.bench.asynchronous.search_tool"]
LONG_TAIL = [*LATE, "mas.workflow._target_=tests.bench.asynchronous.LongTail"]
# The asynchronous modes as they are where nobody sets anything: one step ahead, rows at most seven updates old.
LONG_TAIL_ROWS = {
    "mas_sync": [],
    "oversample=1.5": ["mas.sampling.oversample=1.5"],
    **{mode: [f"trainer.v1.trainer_mode={mode}"] for mode in MODES[1:]},
}


def settings(mode: str, staleness: int = 1) -> list[str]:
    """Overrides of a mode whose rows are at most so many updates old."""
    found = [f"trainer.v1.trainer_mode={mode}"]
    if mode == "mas_sync":
        return found
    own = mode.removeprefix("mas_")
    found += [f"trainer.v1.{own}.num_warmup_batches={staleness}", "trainer.v1.sampler.max_off_policy_strategy=wait"]
    return [*found, f"trainer.v1.sampler.max_off_policy_threshold={staleness + 1}"]


def speed(rows: dict[str, list[str]], count: int, questions: int, minutes: float | None = None) -> None:
    """Print seconds per step without the first two steps, what was cut, and rewards.

    Args:
        rows: name -> overrides.
        minutes: of training, in place of `count` steps.
    """
    base = None
    for name, overrides in rows.items():
        found = _run(overrides, count, questions, minutes=minutes)
        seconds = [one["timing_s/step"] for one in found[2:]]
        base = base or statistics.fmean(seconds)
        lag = statistics.fmean(one["doctor/version_lag"] for one in found[2:])
        oldest = max(one["doctor/version_lag_max"] for one in found)
        cut, again, tokens = (
            sum(one.get(f"sampling/cut_{name}", 0) for one in found) for name in ("questions", "again", "tokens")
        )
        share = tokens / sum(one["sampling/generated_tokens"] for one in found)
        print(
            f"  {name:<20} {len(found)} steps, {statistics.fmean(seconds):6.2f} s a step (median "
            f"{statistics.median(seconds):.2f}, longest {max(seconds):.2f}), {base / statistics.fmean(seconds):.2f} x; "
            f"{lag:.2f} updates old, {oldest:.0f} at most; {cut} questions cut, {again} again, {share:.0%} of the "
            f"tokens wasted; reward {_reward(found):.3f} in the last five; load {os.getloadavg()[2]:.0f}",
            flush=True,
        )
        if minutes:
            print(f"  {rewards_in_time(found)}", flush=True)


def rewards_in_time(found: list[dict[str, Any]]) -> str:
    """Rewards of a run against its clock, in words."""
    ends = [seconds / 60 for seconds in accumulate(one["timing_s/step"] for one in found)]
    rewards = [one["system/reward"] for one in found]
    windows: dict[int, list[float]] = {}
    for end, reward in zip(ends, rewards, strict=True):
        windows.setdefault(WINDOW * int(end / WINDOW), []).append(reward)
    means = ", ".join(f"{statistics.fmean(one):.3f} from {start}" for start, one in windows.items())
    # At the end of the first three steps with this mean.
    means_of_three = [statistics.fmean(rewards[end - 2 : end + 1]) for end in range(2, len(rewards))]
    reached = (end for end, mean in zip(ends[2:], means_of_three, strict=True) if mean >= HALF)
    whole = sum(one["system/reward"] * one["sampling/trajectories"] for one in found)
    curve = " ".join(f"{end:.2f}:{reward:.3f}" for end, reward in zip(ends, rewards, strict=True))
    return (
        f"reward by minutes: {means}; {HALF} reached after {next(reached, math.nan):.1f} minutes; "
        f"{60 * whole / ends[-1]:.0f} rewards an hour\n  minute:reward {curve}"
    )


WEIGHED = ["algorithm.rollout_correction.bypass_mode=false", "algorithm.rollout_correction.rollout_is=token"]
CORRECTIONS = {"ratio": ("PPO's ratio", []), "weights": ("importance weights", WEIGHED)}


def learning(count: int, questions: int, ages: list[int], corrections: list[str], recipe: str, own: list[str]) -> None:
    """Print the rewards at each staleness, with and without truncated importance weights."""
    for staleness in ages:
        for name, more in (CORRECTIONS[one] for one in corrections):
            overrides = [*settings("mas_separate_async", staleness), *more, *own]
            found = _run(overrides, count, questions, recipe)
            lag = statistics.fmean(one["doctor/version_lag"] for one in found[count // 2 :])
            rewards = [one["system/reward"] for one in found]
            print(
                f"  staleness {staleness}, {name:<18}: {lag:.2f} updates old; reward "
                f"{statistics.fmean(rewards[:3]):.3f} in the first three steps, {_reward(found):.3f} in the last five",
                flush=True,
            )


def _reward(found: list[dict[str, Any]]) -> float:
    return statistics.fmean(one["system/reward"] for one in found[-5:])


def _run(
    overrides: list[str], count: int, questions: int, recipe: str = "mhgpo_tiny", minutes: float | None = None
) -> list[dict[str, Any]]:
    """Metrics of the steps of a run of `count` steps; `minutes`: of one that is interrupted after these."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        common = [f"trainer.total_training_steps={count}", "trainer.test_freq=-1", "trainer.save_freq=-1"]
        common += ["trainer.val_before_train=false", f"data.train_batch_size={questions}"]
        if minutes:
            _interrupted(folder, [*common, *overrides], 60 * minutes)
        else:
            run(folder, *common, *overrides, recipe=recipe, timeout=3 * 3600)
        return steps(folder, recipe)


def _interrupted(folder: Path, overrides: list[str], seconds: float) -> None:
    """Train for so many seconds, without those of the start, then press Ctrl-C."""
    with open(folder / "output.txt", "w") as output:
        given: dict[str, Any] = {"stdout": output, "stderr": output, "preexec_fn": heed_signals}
        process = subprocess.Popen(command(*overrides), cwd=folder, env=environment(), **given)
        while sum(one["timing_s/step"] for one in steps(folder)) < seconds:
            assert process.poll() is None, (folder / "output.txt").read_text()[-6000:]
            time.sleep(1)
        process.send_signal(signal.SIGINT)
        process.wait(300)


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--learning", action="store_true")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--questions", type=int, default=8)
    parser.add_argument("--median", type=float, default=0.5, help="seconds of a search")
    parser.add_argument("--long_tail", type=float, metavar="MINUTES", help="of training, for each mode")
    parser.add_argument("--oversample", type=float, nargs="+", help="values of mas.sampling.oversample")
    parser.add_argument("--ages", type=int, nargs="+", default=[0, 1, 4, 8], help="of --learning: staleness")
    parser.add_argument("--corrections", nargs="+", choices=CORRECTIONS, default=[*CORRECTIONS])
    parser.add_argument("--recipe", default="mhgpo_tiny", help="of --learning")
    parser.add_argument("--set", nargs="+", default=[], help="of --learning: overrides")
    given = parser.parse_args()
    print(f"{machine()}\n")
    if given.learning:
        learning(given.steps, given.questions, given.ages, given.corrections, given.recipe, given.set)
    elif given.long_tail:
        rows = {name: [*overrides, *LONG_TAIL] for name, overrides in LONG_TAIL_ROWS.items()}
        speed(rows, MANY, given.questions, given.long_tail)
    else:
        late = [*LATE, f"+mas.tools.search.median={given.median}"]
        rows = {f"oversample={factor:g}": [f"mas.sampling.oversample={factor}"] for factor in given.oversample or ()}
        rows = rows or {mode: settings(mode) for mode in MODES}
        speed({name: [*overrides, *late] for name, overrides in rows.items()}, given.steps, given.questions)


if __name__ == "__main__":
    main()
