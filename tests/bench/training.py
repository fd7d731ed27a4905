"""(e) From the command to the first training step, seconds per step, peak memory, at the tiny scale."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from verl_ext.compare.launcher import memory
from verl_ext.observe.runlog import NAME, read_log


def run(steps: int = 12) -> tuple[list[str], float]:
    """Lines, and seconds per step. Runs the real command from a folder of its own."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "verl.trainer.main_ppo", "+recipe=mhgpo_tiny"]
        command += [f"trainer.total_training_steps={steps}", "trainer.test_freq=-1", "trainer.save_freq=-1"]
        command += ["trainer.val_before_train=false"]
        start = time.time()
        process = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        output: list[str] = []
        reader = threading.Thread(target=lambda: output.extend(process.stdout), daemon=True)
        reader.start()
        peak, looks = 0.0, 0
        while process.poll() is None:
            looks += 1
            if looks % 20 == 0:  # every four seconds: a look costs a tenth of a second of one core
                peak = max(peak, memory(process.pid))
            time.sleep(0.2)
        reader.join()
        entries = read_log(Path(folder) / "runs" / "mhgpo_tiny" / NAME)
    if process.returncode or not entries:
        raise RuntimeError("the tiny run failed:\n" + "".join(output[-30:]))
    times = sorted(entry["metrics"]["timing_s/step"] for entry in entries[1:])
    per_step = times[len(times) // 2]
    lines = [
        f"  command to end of step 1   {entries[0]['time'] - start:6.1f} s   (aim: 40)",
        f"  step, median of {len(times):<3}        {per_step:6.2f} s   (aim: 2)",
        f"  peak memory                {peak:6.2f} GB  (aim: 3.5)",
    ]
    return lines, per_step
