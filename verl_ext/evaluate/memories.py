"""The agents' memories in an evaluation: read from a checkpoint, never changed."""

from __future__ import annotations

from pathlib import Path

from verl_ext.evaluate.config import EvaluateConfig
from verl_ext.memory import View, read_snapshot
from verl_ext.trainer.build import similarity_of
from verl_ext.trainer.config import MasConfig
from verl_ext.trainer.state.agent_memory import FOLDER


def open_memory(section: EvaluateConfig, mas: MasConfig) -> View | None:
    """Open `evaluate.memory`, or the memory in the checkpoint that `evaluate.model` names; None: no memory.

    Raises:
        ValueError: the named folder holds no memory, it is damaged or of another encoder, or `mas.memory` is not set.
    """
    if mas.memory is None:
        if section.memory is not None:
            raise ValueError(f"evaluate.memory={section.memory} needs the section mas.memory, e.g. mas.memory={{}}")
        return None
    beside = Path(section.model).expanduser() / FOLDER if section.model and section.endpoint is None else None
    folder = section.memory or (beside if beside is not None and beside.is_dir() else None)
    return None if folder is None else read_snapshot(Path(folder).expanduser(), similarity_of(mas.memory.encoder))
