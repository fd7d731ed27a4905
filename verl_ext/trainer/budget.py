"""How much a run may use: `mas.budget`, so that methods can be compared at equal tokens or equal questions."""

from __future__ import annotations

from typing import Any

from verl_ext.trainer.config import BudgetSection


class Budget:
    """Counts what training has used, over kills and resumes.

    Args:
        section: the limits; None means none.
    """

    def __init__(self, section: BudgetSection):
        self.limits = {name: limit for name, limit in vars(section).items() if limit is not None}
        self.used = dict.fromkeys(vars(section), 0)

    def resume(self, entries: list[dict[str, Any]]) -> None:
        """Go on from the log of the steps that are kept."""
        for name in self.used:
            self.used[name] = int(entries[-1]["metrics"].get(f"budget/{name}") or 0) if entries else 0

    def spend(self, metrics: dict[str, float]) -> bool:
        """Add one step's `sampling/*`, write the sums as `budget/*`; True if a limit was reached by this step."""
        before = self._reached()
        for name in self.used:
            self.used[name] += int(metrics.get(f"sampling/{name}", 0))
            metrics[f"budget/{name}"] = self.used[name]
        return self._reached() > before

    @property
    def exhausted(self) -> bool:
        """True if there are limits and all have been reached."""
        return bool(self.limits) and self._reached() == len(self.limits)

    def _reached(self) -> int:
        return sum(self.used[name] >= limit for name, limit in self.limits.items())
