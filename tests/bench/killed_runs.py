"""The runs that `kills` kills: their commands, and what they leave."""

from __future__ import annotations

import hashlib
import subprocess
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import torch

from tests.end_to_end.running import command, entries, environment, lasting, records
from verl_ext.memory import read_snapshot
from verl_ext.observe.runlog import PARTIAL
from verl_ext.storage.jsonl import read_log
from verl_ext.trainer.state.checkpoint import complete_steps

STEPS, QUESTIONS, SAMPLES = 16, 4, 4
BEST = "val/system/reward"
COMMON = [f"data.train_batch_size={QUESTIONS}", "data.val_max_samples=4", "trainer.save_freq=1", "trainer.test_freq=4"]
COMMON += [f"trainer.keep_best={BEST}", f"trainer.total_training_steps={STEPS}", "trainer.val_before_train=false"]
HEAD = "+mas.agents.orchestrator.head={encoder: hashing, lr: 0.1, entropy: 0.01}"


@dataclass(frozen=True)
class Case:
    """A run that is killed: its recipe and overrides; whether a continued run must be bit-identical."""

    recipe: str
    overrides: tuple[str, ...]
    identical: bool = True


ADAPTERS = ("mas.policy=per_agent_lora", "actor_rollout_ref.actor.optim.lr=1e-3", "mas.deterministic=true")
TRAINS = ("mas.workflow.train_agents=true", "mas.loss.agent_weights=batch", "mas.advantage.baseline=mean")
TOKENS = "actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-mean"
ASYNCHRONOUS = ("trainer.v1.trainer_mode=mas_colocate_async", "actor_rollout_ref.rollout.agent.num_workers=2")
SEPARATE = ("trainer.v1.trainer_mode=mas_separate_async", "trainer.v1.sampler.max_off_policy_threshold=2")
SMALL = "+mas.policies.small={agents: [rewriter, reranker]}"
LARGE = "+mas.policies.large={agents: [answerer], actor: {optim: {lr: 1e-3}}}"
CASES = {
    "memory": Case("joyagents_tiny", ADAPTERS),
    "heads": Case("puppeteer_tiny", (*ADAPTERS, *TRAINS, TOKENS, HEAD)),
    "policies": Case("mhgpo_tiny", ("mas.deterministic=true", SMALL, LARGE)),
    "asynchronous": Case("mhgpo_tiny", ASYNCHRONOUS, identical=False),
    "separate": Case("mhgpo_tiny", SEPARATE, identical=False),
}


class Run:
    """A case in a folder of its own. `data` is shared by all."""

    def __init__(self, case: Case, folder: Path, data: Path, *overrides: str):
        self.case, self.folder, self.place = case, folder, folder / "runs" / case.recipe
        given = [*COMMON, *case.overrides, *overrides]
        if case.recipe != "mhgpo_tiny":  # whose data are where it runs
            given.append(f"mas.prepare.output_dir={data}")
        given += [f"mas.trajectory_log.train_questions={QUESTIONS}", "mas.trajectory_log.files=100"]
        self.command = command(*given, recipe=case.recipe)

    def live(self, moment: Callable[[float, bool], bool]) -> int | None:
        """Start the command; kill all its processes once `moment(seconds, alive)`. The exit status, None if killed."""
        self.folder.mkdir(parents=True, exist_ok=True)
        log, started = self.place / "metrics.jsonl", time.time()
        with open(self.folder / "output.txt", "w") as output:
            options: dict[str, Any] = {"stdout": output, "stderr": output, "start_new_session": True}
            process = subprocess.Popen(self.command, cwd=self.folder, env=environment(shared=False), **options)
            while process.poll() is None:
                alive = any(entry["time"] > started for entry in read_log(log))
                if moment(time.time() - started, alive):
                    kill(process)
                    return None
                time.sleep(0.02)
        return process.returncode

    def seconds_a_step(self) -> float:
        """Of an uninterrupted run."""
        times = [entry["time"] for entry in entries(self.folder, self.case.recipe)]
        return (times[-1] - times[0]) / (len(times) - 1)

    def metrics(self, partial: bool) -> dict[int, dict[str, Any]]:
        """Step -> metrics that are no times, of the lines of the log that are partial, or of the others."""
        lines = [one for one in entries(self.folder, self.case.recipe) if one.get(PARTIAL, False) is partial]
        # How many programs a sandbox had in its cache depends on the restart.
        return {
            entry["step"]: {name: value for name, value in lasting(entry).items() if "tools/" not in name}
            for entry in lines
        }

    def trajectories(self, last: int) -> dict[str, list[Any]]:
        """Phase and step -> the records of its questions, without times, up to this step."""
        found: dict[str, list[Any]] = defaultdict(list)
        for record in records(self.folder, self.case.recipe)[0] if last else []:
            if record["step"] <= last:
                calls = [call | {"seconds": 0} for call in record["calls"]]
                found[f"{record['phase']} {record['step']}"].append(record | {"calls": calls})
        return found

    def contents(self) -> dict[int, dict[str, Any]]:
        """Step -> content of each part, for the complete checkpoints."""
        return {step: content(self.place / f"global_step_{step}") for step in complete_steps(self.place)}


def kill(process: subprocess.Popen[bytes]) -> None:
    """SIGKILL to all processes that a command has started, at once."""
    tree = [*psutil.Process(process.pid).children(recursive=True), psutil.Process(process.pid)]
    for one in tree:
        with suppress(psutil.NoSuchProcess):
            one.kill()
    process.wait()
    psutil.wait_procs(tree, timeout=30)


def content(place: Path) -> dict[str, Any]:
    """File -> hash of what it holds, of a checkpoint."""
    found: dict[str, Any] = {}
    for path in sorted(path for path in place.rglob("*.pt")):
        loaded = torch.load(path, weights_only=False)
        loaded.pop("rng", None)  # each process draws its own at the start, and nothing that trains depends on them
        held = repr(comparable(loaded))
        found[str(path.relative_to(place))] = hashlib.sha256(held.encode()).hexdigest()
    if (place / "memory").exists():
        found["memory"] = read_snapshot(place / "memory").content_hash()
    if (place / "algorithm.json").exists():
        found["algorithm.json"] = (place / "algorithm.json").read_text()
    return found


def comparable(value: Any) -> Any:
    """With tensors and arrays as hashes of their bytes, so that == compares bit by bit."""
    value = getattr(value, "_local_tensor", value)
    if isinstance(value, torch.Tensor):
        numbers = value.detach().contiguous().reshape(-1).view(torch.uint8).numpy()
        return str(value.dtype), tuple(value.shape), hashlib.sha256(numbers.tobytes()).hexdigest()
    if isinstance(value, dict):
        return {key: comparable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [comparable(item) for item in value]
    return hashlib.sha256(value.tobytes()).hexdigest() if hasattr(value, "tobytes") else value
