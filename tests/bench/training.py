"""(e) Where the time goes from the command to the end of the first training step; seconds per step; peak memory."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import psutil

from verl_ext.compare.launcher import memory
from verl_ext.observe.runlog import NAME, read_log

# What ends a phase of the start: the first process of this title is there.
PHASES = {
    "driver: Python, verl's imports, configuration, checks": "gcs_server",
    "Ray: its own processes": "ray::TaskRunnerV1",
    "trainer process and TransferQueue": "ray::WorkerDict",
    "training process: imports, actor, reference": "ray::HFServer",
    "rollout engine: imports, model": "ray::GlobalRequestLoadBalancer",
}
LAST_PHASE = "load balancer, validation if any, first step"
SECONDS_BETWEEN_LOOKS = 0.2


class Watch:
    """What the processes of a run have used: (title, seconds of processor time) by pid, and when a title was new."""

    def __init__(self, pid: int) -> None:
        self.root, self.start = psutil.Process(pid), time.time()
        self.used: dict[int, tuple[str, float]] = {}
        self.seen: dict[str, float] = {}
        self.at_first_step: dict[int, tuple[str, float]] | None = None
        self.peak = 0.0

    def look(self) -> None:
        """Note all processes of the run."""
        for process in [self.root, *self.root.children(recursive=True)]:
            try:
                times, command = process.cpu_times(), process.cmdline()
            except psutil.Error:
                continue
            title = _title(command)
            self.used[process.pid] = title, times.user + times.system
            self.seen.setdefault(title, time.time() - self.start)

    def measure_memory(self) -> None:
        """A look at memory costs a tenth of a second of one core: rarely."""
        self.peak = max(self.peak, memory(self.root.pid))


def _title(command: list[str]) -> str:
    """Ray's own processes by the name of their program, workers by their class."""
    words = [word for word in command if not word.startswith("-")]
    if not words:
        return "?"
    if words[0].startswith("ray::"):
        return words[0].split(".")[0]
    script = next((word for word in words[1:] if word.endswith(".py")), words[0])
    return "driver" if "verl.trainer.main_ppo" in command else Path(script).name


def start_table(watch: Watch, first_step: float) -> list[str]:
    """Seconds of each phase of the start, and the processor time of each kind of process until the first step's end."""
    lines, before = ["  phase                                                    seconds"], 0.0
    for phase, title in PHASES.items():
        moment = watch.seen.get(title, before)
        lines.append(f"  {phase:<55}  {moment - before:6.1f}")
        before = moment
    lines.append(f"  {LAST_PHASE:<55}  {first_step - before:6.1f}")
    kinds: dict[str, list[float]] = {}
    for title, seconds in (watch.at_first_step or watch.used).values():
        kinds.setdefault(title, []).append(seconds)
    lines += ["", "  process                          number  processor seconds until then"]
    for title, seconds in sorted(kinds.items(), key=lambda kind: -sum(kind[1])):
        if sum(seconds) >= 0.1:
            lines.append(f"  {title:<32} {len(seconds):6}  {sum(seconds):6.1f}")
    return [*lines, f"  {'all':<32} {sum(map(len, kinds.values())):6}  {sum(map(sum, kinds.values())):6.1f}", ""]


def run(steps: int = 12, *settings: str) -> tuple[list[str], float]:
    """Lines, and seconds per step. Runs the real command from a folder of its own."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "runs" / "mhgpo_tiny" / NAME
        command = [sys.executable, "-m", "verl.trainer.main_ppo", "+recipe=mhgpo_tiny", *settings]
        command += [f"trainer.total_training_steps={steps}", "trainer.test_freq=-1", "trainer.save_freq=-1"]
        command += ["trainer.val_before_train=false"]
        process = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        watch = Watch(process.pid)
        output: list[str] = []
        reader = threading.Thread(target=lambda: output.extend(process.stdout), daemon=True)
        reader.start()
        looks = 0
        while process.poll() is None:
            watch.look()
            if watch.at_first_step is None and log.exists() and read_log(log):
                watch.at_first_step = dict(watch.used)
            if looks % 20 == 0:
                watch.measure_memory()
            looks += 1
            time.sleep(SECONDS_BETWEEN_LOOKS)
        reader.join()
        entries = read_log(log)
    if process.returncode or not entries:
        raise RuntimeError("the tiny run failed:\n" + "".join(output[-30:]))
    first = entries[0]["time"] - watch.start
    times = sorted(entry["metrics"]["timing_s/step"] for entry in entries[1:])
    per_step = times[len(times) // 2]
    lines = start_table(watch, first) + [
        f"  command to end of step 1   {first:6.1f} s   (aim: 25)",
        f"  step, median of {len(times):<3}        {per_step:6.2f} s   (aim: 2.5)",
        f"  peak memory                {watch.peak:6.2f} GB  (aim: 3.5)",
    ]
    return lines, per_step


if __name__ == "__main__":
    print("\n".join(run(*map(int, sys.argv[1:2]), *sys.argv[2:])[0]))
