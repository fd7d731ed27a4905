"""The summary at the end of a run: what was learned, where the files are, what to try next."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from verl_ext.observe import error_log
from verl_ext.observe.collaboration_plot import collaboration_picture
from verl_ext.observe.collapse import advice, collapsed
from verl_ext.observe.plots import learning_curve
from verl_ext.observe.runlog import NAME, PARTIAL, TRACKER, charged, failures, read_log, series
from verl_ext.observe.trajectory_files import FOLDER
from verl_ext.reports import docs_page, in_words, no_headline, program

# Recipe -> the same system with a critic.
CRITICS = {"mhgpo": "mappo", "mhgpo_tiny": "mappo_tiny", "solver_verifier_tiny": "solver_verifier_mappo_tiny"}

# Share of an agent's outputs that reached max_tokens above which it is said.
CUT = 0.5

# Settings that an evaluation has no use for, or refuses.
TRAINING_ONLY = ("trainer.", "data.train_", "data.val_max_samples=", "mas.deterministic=")


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
    return not (entries and entries[-1].get(PARTIAL))


def print_summary(log: Path, headline: str, strategy: str, arguments: Sequence[str], again: bool = False) -> None:
    """Print the summary of the run with this log, started with these arguments, and write its learning curve."""
    folder, entries = log.parent, read_log(log)
    if not entries:
        print(f"\nThe run left no metrics in {log}.", flush=True)
        return
    lines = ["", "This run is complete already." if again else "Done."]
    lines += what_was_learned(entries, headline) + not_finished(entries, folder) + nothing_learned(entries)
    lines += without_forks(entries)
    lines += [line for agent in collapsed(entries) for line in ("", *advice(agent))] + [""]
    if log.name == NAME:
        lines.append(f"  learning curve   {learning_curve(entries, headline, folder / 'learning_curve.png')}")
        if picture := collaboration_picture(folder, entries, folder / "collaboration.png"):
            lines.append(f"  collaboration    {picture}")
    lines.append(f"  log              {log}   (one JSON line per step; {docs_page('metrics.md')} explains them)")
    checkpoint = folder / f"global_step_{entries[-1]['step']}"
    if checkpoint.is_dir():
        lines.append(f"  checkpoint       {checkpoint}")
    if log.name == NAME:
        lines += ["", "Next:", *next_steps(arguments, strategy, folder, checkpoint)]
    print("\n".join(lines), flush=True)


def next_steps(arguments: Sequence[str], strategy: str, folder: Path, checkpoint: Path | None = None) -> list[str]:
    """What to do next: look, evaluate, and the command of this run, with its overrides, and one thing changed.

    Args:
        arguments: of the run's command.
        strategy: `mas.sampling.strategy`.
        folder: of the run.
        checkpoint: of its last step; it need not exist.
    """
    replaced = ("trainer.default_local_dir=", "mas.sampling.strategy=")
    kept = [argument for argument in arguments if not argument.startswith(replaced)]
    other = "fof" if strategy == "rr" else "rr"
    names = [argument.partition("=")[2] for argument in arguments if argument.lstrip("+").startswith("recipe=")]

    def command(changed: Sequence[str], suffix: str) -> str:
        start = [program("python"), "-m", "verl.trainer.main_ppo"]
        return shlex.join([*start, *changed, f"trainer.default_local_dir={folder}_{suffix}"])

    lines, ours = [], program("verl_ext")
    if any((folder / FOLDER).glob("*.jsonl")):
        look = shlex.join([ours, "view", str(folder), "--open"])
        lines.append(f"  what agents said   {look}   (writes one page for your browser)")
    if checkpoint is not None and checkpoint.is_dir():
        system = [argument for argument in arguments if not argument.lstrip("+").startswith(TRAINING_ONLY)]
        score = shlex.join([ours, "evaluate", *system, f"evaluate.model={checkpoint}"])
        lines.append(f"  evaluate           {score}")
    lines.append(f"  another strategy   {command([*kept, f'mas.sampling.strategy={other}'], other)}")
    critic = CRITICS.get(names[0]) if names else None
    if critic:
        changed = [argument.replace(f"recipe={names[0]}", f"recipe={critic}") for argument in kept]
        lines.append(f"  a critic (MAPPO)   {command(changed, 'mappo')}")
    longer = "with trainer.save_freq above 0 (this run has no checkpoint to go on from)"
    if (folder / TRACKER).exists():
        longer = "with a larger trainer.total_training_steps goes on from here"
    lines.append(f"  longer             the same command {longer}")
    lines.append(f"  from scratch       rm -r {shlex.quote(str(folder))}, then the same command")
    its_own = any(argument.startswith(("--config-dir", "-cd")) for argument in arguments)
    return lines if its_own else [*lines, f"  your own system    {docs_page('own_system.md')}"]


def not_finished(entries: list[dict[str, Any]], folder: Path) -> list[str]:
    """A line if trajectories of the last training step failed."""
    steps = [entry["metrics"] for entry in entries if "sampling/trajectories" in entry["metrics"]]
    reasons = failures(steps[-1]) if steps else ""
    if not reasons:
        return []
    lost, total = steps[-1]["sampling/failed_trajectories"], steps[-1]["sampling/trajectories"]
    told = folder / error_log.NAME
    where = f" ({told} has the first of each kind)" if told.exists() else ""
    return ["", f"  {lost:.0f} of {total:.0f} training trajectories of the last step failed: {reasons}{where}"]


def without_forks(entries: list[dict[str, Any]]) -> list[str]:
    """How many trajectories stand in the place of forks, if any do."""
    _, values = series(entries, "sampling/without_forks")
    if not (total := sum(values)):
        return []
    return [
        "",
        f"  {total:.0f} trajectories were sampled independently in the place of forks: run again, the system asks",
        f"  something else. The first difference is in {error_log.NAME} ({docs_page('gateway.md')}).",
    ]


def nothing_learned(entries: list[dict[str, Any]]) -> list[str]:
    """A warning if almost no group of the run had rewards to compare, and no reward was earned either."""
    flat = [e["metrics"]["groups/zero_variance"] for e in entries if "groups/zero_variance" in e["metrics"]]
    rewards = [e["metrics"]["system/reward"] for e in entries if "system/reward" in e["metrics"]]
    if not flat or min(flat) < 0.95 or max(rewards) > 0.05:
        return []
    share = "all groups" if min(flat) == 1 else f"at least {min(flat):.0%} of the groups at every step"
    return [
        "",
        f"  Nothing was learned: in {share} all samples got the same reward,",
        f"  and rewards are at most {max(rewards):.3f}. Groups learn from differences: make the task easier, the",
        "  prompts closer to what the model was trained on, or the reward finer.",
    ]


def what_was_learned(entries: list[dict[str, Any]], headline: str) -> list[str]:
    """Lines comparing the first and the last validation and training steps."""
    rows = []
    steps, values = series(entries, f"val/system/{headline}")
    name = f"validation {in_words(headline)}"
    if len(values) > 1:
        taken = steps[-1] - steps[0]
        change = f"{values[0]:.3f} → {values[-1]:.3f} ({values[-1] - values[0]:+.3f})"
        rows.append((name, f"{change} in {taken} step{'s' * (taken != 1)}; best {max(values):.3f}"))
    elif values:
        rows.append((name, f"{values[0]:.3f} at step {steps[0]}"))
    _, tokens = series(entries, "val/system/tokens")
    if len(tokens) > 1:
        rows.append(("tokens a question", f"{tokens[0]:.1f} → {tokens[-1]:.1f} (validation)"))
    _, rewards = series(entries, "system/reward")
    if len(rewards) > 1:
        rows.append(
            ("training reward", f"{rewards[0]:.3f} → {rewards[-1]:.3f} (the first and the last step's questions)")
        )
    rows += _agents(entries)
    width = max(15, *(len(label) for label, _ in rows)) if rows else 0
    wrong = [] if values else [f"  {line}" for line in no_headline(reported(entries), headline)]
    return wrong + [f"  {label:<{width}} {text}" for label, text in rows]


def _agents(entries: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """A row for each agent, if any of them ever had a penalty or an output that could not be read."""
    agents = sorted({name.split("/")[1] for name in entries[-1]["metrics"] if name.startswith("agents/")})
    found = {
        agent: [series(entries, f"agents/{agent}/{quantity}")[1] for quantity in ("penalty", "unparsable")]
        for agent in agents
    }
    shown, penalised = {agent: both for agent, both in found.items() if all(both)}, charged(entries)
    if not penalised and not any(any(unparsable) for _, unparsable in shown.values()):
        last = {agent: series(entries, f"agents/{agent}/truncated")[1][-1:] for agent in shown}
        cut = [f"{agent} {share:.0%}" for agent, shares in last.items() for share in shares if share > CUT]
        words = f", and in the last step were cut off: {', '.join(cut)} (max_tokens)" if cut else ""
        return [("agents", f"every output of all {len(shown)} could be read{words}")] if shown else []
    rows = []
    for agent, (penalty, unparsable) in shown.items():
        own = f"penalty {penalty[0]:+.3f} → {penalty[-1]:+.3f}, " if penalised else ""
        rows.append((agent, f"{own}unparsable {unparsable[0]:.1%} → {unparsable[-1]:.1%}"))
    return rows


def reported(entries: list[dict[str, Any]]) -> list[str]:
    """The quantities that the workflow's reward reported in validation."""
    start = "val/system/"
    return sorted({n.removeprefix(start) for e in entries for n in e["metrics"] if n.startswith(start)} - {"reward"})
