"""One call to the worker groups, or to the weight managers, of all policies, in the order of `mas.policies`."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from typing import Any

from verl_ext.storage.files import write_file
from verl_ext.trainer.policies.checkpoints import RECORD
from verl_ext.trainer.policies.settings import PolicySection

# Metrics of a policy begin with this and its name. They are added once they are reduced: verl chooses mean, sum or
# maximum by what a name contains, and would sum those of a policy "summariser".
PREFIX = "policies"


class Fan:
    """Stands where verl's trainer has one worker group or manager; any method is called on each in turn.

    Args:
        groups: by policy.
    """

    def __init__(self, groups: Mapping[str, Any]):
        self.groups = dict(groups)

    def __getattr__(self, method: str) -> Callable[..., list[Any]]:
        if method.startswith("__"):
            raise AttributeError(method)
        return lambda *args, **kwargs: [getattr(group, method)(*args, **kwargs) for group in self.groups.values()]


class WorkerGroups(Fan):
    """Worker groups; of a checkpoint's part (actor or critic) each has a folder of its own.

    Args:
        saved: the policies that have one: weights that are frozen are those of their model.
        record: what is written beside the folders (checkpoints.py); "": nothing.
    """

    def __init__(self, groups: Mapping[str, Any], saved: Collection[str], record: str = ""):
        super().__init__(groups)
        self._record = record
        self._saved = [name for name in groups if name in saved]

    def save_checkpoint(self, local_path: str, hdfs_path: str | None, *args: Any, **kwargs: Any) -> None:
        """As verl's worker group, into `<path>/<policy>`."""
        for name in self._saved:
            remote = None if hdfs_path is None else os.path.join(hdfs_path, name)
            self.groups[name].save_checkpoint(os.path.join(local_path, name), remote, *args, **kwargs)
        if self._record:
            write_file(os.path.join(local_path, RECORD), self._record)

    def load_checkpoint(self, local_path: str, **kwargs: Any) -> None:
        """As verl's worker group, from `<path>/<policy>`."""
        for name in self._saved:
            self.groups[name].load_checkpoint(local_path=os.path.join(local_path, name), **kwargs)


class WeightManagers(Fan):
    """verl's managers of weights for rollouts on ranks of their own, whose engines keep what they have.

    A policy that does not train in a step is not sent again. The version of its engine's weights stays that of the step
    after which they were sent.

    Args:
        sections: `mas.policies`.
    """

    def __init__(self, groups: Mapping[str, Any], sections: Mapping[str, PolicySection]):
        super().__init__(groups)
        self._sections = sections
        self._sent: set[str] = set()

    def update_weights(self, step: int) -> dict[str, float]:
        """As verl's manager, for one policy after another: the engines of the others go on. Returns metrics."""
        total: Counter[str] = Counter()
        own: dict[str, float] = {}
        for name, manager in self.groups.items():
            if name in self._sent and not self._sections[name].trains(step):
                continue
            found = manager.update_weights(step) or {}
            self._sent.add(name)
            total.update(found)
            own |= {f"{PREFIX}/{name}/{key}": value for key, value in found.items()}
        return dict(total) | (own if len(self.groups) > 1 else {})
