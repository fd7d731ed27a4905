"""(g) What the trajectory log costs: steps with it over their neighbours without, in one tiny run; and its own work."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from tests.helpers import FakeLLM, chain, forest_of
from verl_ext.mas.forest import Forest
from verl_ext.observe.runlog import NAME, read_log
from verl_ext.observe.trajectories import first, resolve, trace_question, training_record
from verl_ext.observe.trajectory_files import FOLDER, TrajectoryLog, read_records
from verl_ext.sampling import make_strategy

QUESTIONS, LOGGED = 32, 4


def neighbours(steps: int = 21) -> str:
    """A line: median over the logged steps of their duration over the mean of the unlogged ones around them."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "verl.trainer.main_ppo", "+recipe=mhgpo_tiny", "mas.trajectory_log.every=2"]
        command += [f"trainer.total_training_steps={steps}", "trainer.test_freq=-1", "trainer.save_freq=-1"]
        command += ["trainer.val_before_train=false"]
        done = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        run = Path(folder) / "runs" / "mhgpo_tiny"
        seconds = {entry["step"]: entry["metrics"]["timing_s/step"] for entry in read_log(run / NAME)}
        if done.returncode or len(seconds) < steps:
            raise RuntimeError("the tiny run failed:\n" + done.stdout[-3000:])
        logged = {record["step"] for record in read_records(run)}
        size = sum(path.stat().st_size for path in (run / FOLDER).iterdir()) / len(logged) / 1e6
    inner = [step for step in sorted(logged) if 3 <= step < steps]
    ratios = sorted(2 * seconds[step] / (seconds[step - 1] + seconds[step + 1]) for step in inner)
    low, high = ratios[len(ratios) // 4], ratios[-1 - len(ratios) // 4]
    return (
        f"  {len(inner)} logged steps over their neighbours: {median(ratios):.3f} x, the middle half {low:.3f} to "
        f"{high:.3f} (limit 1.03); {size:.2f} MB a step"
    )


async def sampled() -> list[Forest]:
    """The questions of a tiny step: three agents in a row, four trajectories each."""
    forests = [forest_of(chain) for _ in range(QUESTIONS)]
    for forest in forests:
        await make_strategy("fof", 4, list("abc")).sample(forest)
    return forests


def own_work(step_seconds: float | None = None) -> str:
    """A line: tracing all questions of a tiny step, decoding, encoding and writing those logged, alone in a process."""
    forests = asyncio.run(sampled())
    with tempfile.TemporaryDirectory() as folder:
        log = TrajectoryLog(folder, 10**8, 2)
        times = []
        for step in range(10):
            start = time.perf_counter()
            traces = [trace_question(forest, str(n), n) for n, forest in enumerate(forests)]
            chosen = [resolve(trace, FakeLLM().decode) for trace in first(traces, LOGGED)]
            log.write([training_record(trace, "train", step, number) for number, trace in enumerate(chosen)])
            times.append(time.perf_counter() - start)
    share = f", {median(times) / step_seconds:.2%} of a tiny step" if step_seconds else ""
    return f"  its own work for {QUESTIONS} questions, {LOGGED} of them logged: {1e3 * median(times):.1f} ms{share}"


def run(step_seconds: float | None = None) -> list[str]:
    """Both lines; `step_seconds`: of the tiny run."""
    return [neighbours(), own_work(step_seconds)]
