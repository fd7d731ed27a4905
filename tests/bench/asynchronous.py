"""Seconds per step of the three modes of training with tools that answer late, and what staleness does to learning.

    python -m tests.bench.asynchronous                      # seconds per step
    python -m tests.bench.asynchronous --learning --steps 20    # rewards at staleness 0, 1, 4 and 8
    python -m tests.bench.asynchronous --learning --steps 24 --recipe solver_verifier_real \
        --set actor_rollout_ref.model.path=models/smollm2       # the same with a real model (a path: in full)
    python -m tests.bench.asynchronous --oversample 1 1.25 1.5  # seconds per step by mas.sampling.oversample

Every search waits for a time of a log-normal distribution: its median is `--median` seconds, and one in a hundred takes
over ten times as long. The machine's cores hardly matter, the waiting does.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import tempfile
from pathlib import Path
from typing import Any

from tests.end_to_end.running import run, steps
from verl_ext.reports import machine
from verl_ext.tools.retrieval import search

# exp(SPREAD · 2.33) = 10.
SPREAD = 1.0
MODES = ("mas_sync", "mas_colocate_async", "mas_separate_async")


def search_tool(median: float = 0.5, longest: float = 20.0, **settings: Any) -> Any:
    """The search tool, whose answers come late: `median` seconds, `longest` at most."""
    inner = search.search_tool(**settings)

    async def late(queries: list[str]) -> list[dict[str, str]]:
        await asyncio.sleep(min(median * random.lognormvariate(0.0, SPREAD), longest))
        return await inner(queries)

    return late


def settings(mode: str, staleness: int = 1) -> list[str]:
    """Overrides of a mode whose rows are at most so many updates old."""
    found = [f"trainer.v1.trainer_mode={mode}"]
    if mode == "mas_sync":
        return found
    own = mode.removeprefix("mas_")
    found += [f"trainer.v1.{own}.num_warmup_batches={staleness}", "trainer.v1.sampler.max_off_policy_strategy=wait"]
    return [*found, f"trainer.v1.sampler.max_off_policy_threshold={staleness + 1}"]


def speed(count: int, median: float, questions: int) -> None:
    """Print seconds per step of the modes, without the first two steps."""
    late, base = late_tools(median), None
    for mode in MODES:
        found = _run(mode, settings(mode) + late, count, questions)
        seconds = [one["timing_s/step"] for one in found[2:]]
        base = base or statistics.fmean(seconds)
        lag = statistics.fmean(one["doctor/version_lag"] for one in found[2:])
        print(
            f"  {mode:<20} {statistics.fmean(seconds):6.2f} s a step (median {statistics.median(seconds):.2f}), "
            f"{base / statistics.fmean(seconds):.2f} x; {lag:.2f} updates old; reward {_reward(found):.3f}",
            flush=True,
        )


def late_tools(median: float) -> list[str]:
    """Overrides that make the search tool late."""
    return ["mas.tools.search._target_=tests.bench.asynchronous.search_tool", f"+mas.tools.search.median={median}"]


def oversampling(count: int, median: float, questions: int, factors: list[float]) -> None:
    """Print seconds per step of `mas_sync`, without the first two steps, and what was cut."""
    for factor in factors:
        found = _run("mas_sync", [*late_tools(median), f"mas.sampling.oversample={factor}"], count, questions)
        seconds = [one["timing_s/step"] for one in found[2:]]
        cut, again, tokens = (
            sum(one.get(f"sampling/cut_{name}", 0) for one in found) for name in ("questions", "again", "tokens")
        )
        share = tokens / sum(one["sampling/generated_tokens"] for one in found)
        print(
            f"  oversample={factor:<5g} {statistics.fmean(seconds):6.2f} s a step (median "
            f"{statistics.median(seconds):.2f}, longest {max(seconds):.2f}); {cut} questions cut, {again} again; "
            f"{share:.0%} of the tokens wasted; reward {_reward(found):.3f}",
            flush=True,
        )


WEIGHED = ["algorithm.rollout_correction.bypass_mode=false", "algorithm.rollout_correction.rollout_is=token"]
CORRECTIONS = {"ratio": ("PPO's ratio", []), "weights": ("importance weights", WEIGHED)}


def learning(count: int, questions: int, ages: list[int], corrections: list[str], recipe: str, own: list[str]) -> None:
    """Print the rewards at each staleness, with and without truncated importance weights."""
    for staleness in ages:
        for name, more in (CORRECTIONS[one] for one in corrections):
            overrides = [*settings("mas_separate_async", staleness), *more, *own]
            found = _run("mas_separate_async", overrides, count, questions, recipe)
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
    mode: str, overrides: list[str], count: int, questions: int, recipe: str = "mhgpo_tiny"
) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory(prefix=mode) as folder:
        common = [f"trainer.total_training_steps={count}", "trainer.test_freq=-1", "trainer.save_freq=-1"]
        common += ["trainer.val_before_train=false", f"data.train_batch_size={questions}"]
        run(Path(folder), *common, *overrides, recipe=recipe, timeout=3 * 3600)
        return steps(Path(folder), recipe)


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--learning", action="store_true")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--questions", type=int, default=8)
    parser.add_argument("--median", type=float, default=0.5, help="seconds of a search")
    parser.add_argument("--oversample", type=float, nargs="+", help="values of mas.sampling.oversample")
    parser.add_argument("--ages", type=int, nargs="+", default=[0, 1, 4, 8], help="of --learning: staleness")
    parser.add_argument("--corrections", nargs="+", choices=CORRECTIONS, default=[*CORRECTIONS])
    parser.add_argument("--recipe", default="mhgpo_tiny", help="of --learning")
    parser.add_argument("--set", nargs="+", default=[], help="of --learning: overrides")
    given = parser.parse_args()
    print(f"{machine()}\n")
    if given.learning:
        learning(given.steps, given.questions, given.ages, given.corrections, given.recipe, given.set)
    elif given.oversample:
        oversampling(given.steps, given.median, given.questions, given.oversample)
    else:
        speed(given.steps, given.median, given.questions)


if __name__ == "__main__":
    main()
