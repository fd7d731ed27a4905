"""Finished runs side by side, wherever their folders lie: the report of a comparison, without a study."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

from verl_ext.compare.measure import Measured, policies_of, settings_of, used
from verl_ext.compare.report import write_tables
from verl_ext.compare.study import BUDGETS, Method, Study
from verl_ext.observe.runlog import NAME, read_log
from verl_ext.reports import markdown
from verl_ext.settings import unknown_name
from verl_ext.trainer.state.run_settings import CONTENTS

SCORE = "val/system/"
# Characters of a setting's value in a table.
SHOWN = 60


def overlay(
    folders: Sequence[Path], output: Path, command: str, score: str | None = None, steps: int | None = None
) -> Path:
    """Write report.md, results.json and the figures for these runs, a curve each; returns the report's path.

    Args:
        folders: of finished runs (`trainer.default_local_dir`). A curve has the name of its folder.
        output: where the report goes.
        command: how it was asked for, which the report shows.
        score: the headline, a quantity of validation; None: that of the runs, or f1, where all have it, else their
            first.
        steps: only the first steps of each run; None: all.

    Raises:
        ValueError: a folder has no log, the logs have no validation in common, or not this score.
    """
    named = _named(folders)
    methods = {name: _measured(folder, name, steps) for name, folder in named.items()}
    known = [
        {key.removeprefix(SCORE) for e in m.logs[0] for key in e["metrics"] if SCORE in key} for m in methods.values()
    ]
    scores = sorted(set.intersection(*known))
    if not scores:
        raise ValueError("these runs have no quantity of validation in common; was trainer.test_freq set?")
    watched = [str(method.logs[0][-1].get("headline")) for method in methods.values()]
    headline = score or next((name for name in (*watched, "f1") if name in scores), scores[0])
    if headline not in scores:
        raise ValueError(unknown_name("--score", headline, scores))
    study = Study(
        name=output.name,
        title="Finished runs",
        headline=headline,
        scores=[headline, *(name for name in scores if name != headline)],
        seeds=[0],
        # What each of them has used up by a validated step.
        budget={name: max(1, int(min(_reached(m, name) for m in methods.values()))) for name in BUDGETS},
        overrides=[],
        methods=[Method(name=name, label=method.label) for name, method in methods.items()],
    )
    about = [
        f"{date.today()} · `{command}` · one run each, at the first validated step that has used up what all have.",
        *_differing({name: settings_of(folder) for name, folder in named.items()}),
    ]
    output.mkdir(parents=True, exist_ok=True)
    return write_tables(study, methods, about, output)


def _named(folders: Sequence[Path]) -> dict[str, Path]:
    """The shortest ends of their paths that tell them apart."""
    whole = [folder.resolve() for folder in folders]
    for parts in range(1, max(len(folder.parts) for folder in whole) + 1):
        named = {"/".join(folder.parts[-parts:]): folder for folder in whole}
        if len(named) == len(whole):
            return named
    raise ValueError(f"a folder is given twice: {' '.join(map(str, folders))}")


def _differing(settings: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """A table of the settings that differ between the runs that have recorded theirs, seeds left out."""
    runs = {name: given for name, given in settings.items() if given}
    keys = sorted({key for given in runs.values() for key in given if not key.startswith(CONTENTS)})
    values = {key: [given.get(key) for given in runs.values()] for key in keys if key.split(".")[-1] != "seed"}
    rows = [[key, *map(_short, found)] for key, found in values.items() if any(one != found[0] for one in found)]
    unknown = [f"No settings are recorded of {', '.join(none)}."] if (none := [*settings.keys() - runs.keys()]) else []
    if not rows:
        return unknown
    return ["", "## Settings that differ", "", *markdown(["setting", *runs], rows), "", *unknown]


def _short(value: Any) -> str:
    text = "–" if value is None else str(value)
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 1]}…"


def _measured(folder: Path, name: str, steps: int | None) -> Measured:
    log = read_log(folder / NAME) if (folder / NAME).is_file() else []
    log = [entry for entry in log if steps is None or entry["step"] <= steps]
    if not log:
        raise ValueError(f"{folder} has no {NAME}: give folders of runs (trainer.default_local_dir)")
    seconds = log[-1]["time"] - log[0]["time"]
    return Measured(name, name, {0: log}, {0: {"seconds": seconds}}, policies=policies_of(folder))


def _reached(method: Measured, budget: str) -> float:
    validated = [entry for entry in method.logs[0] if any(key.startswith(SCORE) for key in entry["metrics"])]
    return used(validated[-1], budget) if validated else 0
