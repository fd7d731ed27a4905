"""The caches into which tools record, e.g. the simulator's: a checkpoint knows what they held."""

from __future__ import annotations

from typing import Any

from hydra.utils import get_object
from omegaconf import DictConfig

from verl_ext.trainer.sections import arguments_of
from verl_ext.trainer.state import checkpoint
from verl_ext.trainer.state.run_settings import plain

Results = dict[str, dict[str, Any]]


def recorded_results(config: DictConfig, known: Results | None = None) -> Results:
    """Name of a setting -> {"results", "content"} of the cache into which it records.

    A cache that is only read counts among the settings of the run (`identity`).

    Args:
        known: an earlier answer: the content is that of the results that were stored by then.
    """
    return _recorded(plain(config.mas.get("tools")), known or {}, "mas.tools")


def _recorded(section: Any, known: Results, name: str) -> Results:
    if not isinstance(section, dict):
        return {}
    found: Results = {}
    for key, value in section.items():
        found |= _recorded(value, known, f"{name}.{key}")
    recorded = getattr(get_object(section["_target_"]), "recorded", None) if "_target_" in section else None
    if recorded is not None:
        results = recorded(known.get(name, {}).get("results", -1), **arguments_of(section))
        found |= {} if results is None else {name: results}
    return found


def lost_results(config: DictConfig) -> list[str]:
    """A line for each cache that lacks results which it held at the checkpoint from which the run continues."""
    place = checkpoint.resumed_from(config)
    before = checkpoint.read_marker(place)["recorded"] if place is not None else {}
    now = recorded_results(config, before) if before else {}
    return [
        f"{name}: the cache lacks some of the {held['results']} results that it held at {place}: it is another one, or "
        "has removed them (max_rows, max_mb). Answers of the tool may differ from those of the run so far."
        for name, held in before.items()
        if now.get(name, {}).get("content") != held["content"]
    ]
