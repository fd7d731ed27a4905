"""`mas.budget`: ends a run after so many tokens or questions, so that methods can be compared at equal cost."""

from __future__ import annotations

from typing import Any

from verl_ext.trainer.sections import BudgetSection


class Budget:
    """Counts the tokens and questions that training has used, also over kills and resumes.

    Args:
        section: the limits; None: no limit.
    """

    def __init__(self, section: BudgetSection):
        self.limits = {name: limit for name, limit in vars(section).items() if limit is not None}
        self.used = dict.fromkeys(vars(section), 0)

    def resume(self, entries: list[dict[str, Any]]) -> bool:
        """Continue the counts from the entries of the run log up to the restored step; True if it reached a limit."""
        before = self._reached()
        for entry in entries[-2:] or [{"metrics": {}}]:
            before = self._reached()
            self.used = {name: int(entry["metrics"].get(f"budget/{name}") or 0) for name in self.used}
        return self._reached() > before

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
