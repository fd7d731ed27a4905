"""The summary at the end of a run: what was learned, where the files are, what to try next."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from verl_ext.observe.collaboration_plot import collaboration_picture
from verl_ext.observe.collapse import advice, collapsed
from verl_ext.observe.plots import learning_curve
from verl_ext.observe.runlog import NAME, TRACKER, charged, read_log, series
from verl_ext.observe.trajectory_files import FOLDER
from verl_ext.reports import in_words, no_headline

# Recipe -> the same system with a critic.
CRITICS = {"mhgpo": "mappo", "mhgpo_tiny": "mappo_tiny", "solver_verifier_tiny": "solver_verifier_mappo_tiny"}


def finished_already(folder: Path, config: Any) -> bool:
    """True if the run in `folder` has a checkpoint of its last step, and a complete log: nothing is left to train."""
    if config.trainer.resume_mode != "auto" or config.trainer.get("val_only", False):
        return False
    tracker, total = folder / TRACKER, config.trainer.total_training_steps
    if total is None or not tracker.exists():
        return False
    step = tracker.read_text().strip()
    if not step.isdigit() or int(step) < total:
        return False
    entries = read_log(folder / NAME)
    return not (entries and entries[-1].get("partial"))


def print_summary(log: Path, headline: str, strategy: str, arguments: Sequence[str], again: bool = False) -> None:
    """Print the summary of the run with this log, started with these arguments, and write its learning curve."""
    folder, entries = log.parent, read_log(log)
    if not entries:
        print(f"\nThe run left no metrics in {log}.", flush=True)
        return
    lines = ["", "This run is complete already." if again else "Done."]
    lines += what_was_learned(entries, headline) + nothing_learned(entries)
    lines += [line for agent in collapsed(entries) for line in ("", *advice(agent))] + [""]
    if log.name == NAME:
        lines.append(f"  learning curve   {learning_curve(entries, headline, folder / 'learning_curve.png')}")
        if picture := collaboration_picture(folder, entries, folder / "collaboration.png"):
            lines.append(f"  collaboration    {picture}")
    lines.append(f"  log              {log}   (one JSON line per step; docs/metrics.md says what each metric means)")
    checkpoint = folder / f"global_step_{entries[-1]['step']}"
    if checkpoint.is_dir():
        lines.append(f"  checkpoint       {checkpoint}")
    if log.name == NAME:
        lines += ["", "Next:", *next_steps(arguments, strategy, folder)]
    print("\n".join(lines), flush=True)


def next_steps(arguments: Sequence[str], strategy: str, folder: Path) -> list[str]:
    """What to try next: the command of this run, with its overrides, and one thing changed."""
    replaced = ("trainer.default_local_dir=", "mas.sampling.strategy=")
    kept = [argument for argument in arguments if not argument.startswith(replaced)]
    other = "fof" if strategy == "rr" else "rr"
    names = [argument.partition("=")[2] for argument in arguments if argument.lstrip("+").startswith("recipe=")]

    def command(changed: Sequence[str], suffix: str) -> str:
        program = [_interpreter(), "-m", "verl.trainer.main_ppo"]
        return shlex.join([*program, *changed, f"trainer.default_local_dir={folder}_{suffix}"])

    lines = [f"  another strategy   {command([*kept, f'mas.sampling.strategy={other}'], other)}"]
    critic = CRITICS.get(names[0]) if names else None
    if critic:
        changed = [argument.replace(f"recipe={names[0]}", f"recipe={critic}") for argument in kept]
        lines.append(f"  a critic (MAPPO)   {command(changed, 'mappo')}")
    if any((folder / FOLDER).glob("*.jsonl")):
        look = shlex.join([_interpreter(), "-m", "verl_ext.observe.viewer", str(folder)])
        lines.append(f"  what agents said   {look}   (writes one page for your browser)")
    longer = "with trainer.save_freq above 0 (this run has no checkpoint to go on from)"
    if (folder / TRACKER).exists():
        longer = "with a larger trainer.total_training_steps goes on from here"
    return [
        *lines,
        f"  longer             the same command {longer}",
        f"  from scratch       rm -r {shlex.quote(str(folder))}, then the same command",
        "  your own system    docs/own_system.md",
    ]


def _interpreter() -> str:
    """The running Python as a user would type it: `.venv/bin/python` if that is in this folder."""
    running = Path(sys.executable)
    return str(running.relative_to(Path.cwd())) if running.is_relative_to(Path.cwd()) else "python"


def nothing_learned(entries: list[dict[str, Any]]) -> list[str]:
    """A warning if almost no group of the run had rewards to compare, and no reward was earned either."""
    flat = [e["metrics"]["groups/zero_variance"] for e in entries if "groups/zero_variance" in e["metrics"]]
    rewards = [e["metrics"]["system/reward"] for e in entries if "system/reward" in e["metrics"]]
    if not flat or min(flat) < 0.95 or max(rewards) > 0.05:
        return []
    return [
        "",
        f"  Nothing was learned: in {min(flat):.0%} or more of the groups all samples got the same reward,",
        f"  and rewards are at most {max(rewards):.3f}. Groups learn from differences: make the task easier, the",
        "  prompts closer to what the model was trained on, or the reward finer.",
    ]


def what_was_learned(entries: list[dict[str, Any]], headline: str) -> list[str]:
    """Lines comparing the first and the last validation and training steps."""
    lines = []
    steps, values = series(entries, f"val/system/{headline}")
    if len(values) > 1:
        lines.append(
            f"  validation {in_words(headline)}   {values[0]:.3f} → {values[-1]:.3f} "
            f"({values[-1] - values[0]:+.3f}) in {steps[-1] - steps[0]} steps; best {max(values):.3f}"
        )
    elif values:
        lines.append(f"  validation {in_words(headline)}   {values[0]:.3f} at step {steps[0]}")
    else:
        lines += [f"  {line}" for line in no_headline(reported(entries), headline)]
    _, tokens = series(entries, "val/system/tokens")
    if len(tokens) > 1:
        lines.append(f"  tokens a question {tokens[0]:.1f} → {tokens[-1]:.1f} (validation)")
    _, values = series(entries, "system/reward")
    if len(values) > 1:
        lines.append(f"  training reward {values[0]:.3f} → {values[-1]:.3f} (the first and the last step's questions)")
    return lines + _agents(entries)


def _agents(entries: list[dict[str, Any]]) -> list[str]:
    """A line for each agent, if any of them ever had a penalty or an output that could not be read."""
    agents = sorted({name.split("/")[1] for name in entries[-1]["metrics"] if name.startswith("agents/")})
    found = {
        agent: [series(entries, f"agents/{agent}/{quantity}")[1] for quantity in ("penalty", "unparsable")]
        for agent in agents
    }
    shown, penalised = {agent: both for agent, both in found.items() if all(both)}, charged(entries)
    if not penalised and not any(any(unparsable) for _, unparsable in shown.values()):
        return [f"  agents          every output of all {len(shown)} could be read"] if shown else []
    lines = []
    for agent, (penalty, unparsable) in shown.items():
        own = f"penalty {penalty[0]:+.3f} → {penalty[-1]:+.3f}, " if penalised else ""
        lines.append(f"  {agent:<15} {own}unparsable {unparsable[0]:.1%} → {unparsable[-1]:.1%}")
    return lines


def reported(entries: list[dict[str, Any]]) -> list[str]:
    """The quantities that the workflow's reward reported in validation."""
    start = "val/system/"
    return sorted({n.removeprefix(start) for e in entries for n in e["metrics"] if n.startswith(start)} - {"reward"})
