"""Fits the coefficients of the load model to measured runs, and says how wrong it is for a run that it has not seen."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from verl_ext.plan.formulas import PHASES, Terms, rollout, seconds, synchronisation, training
from verl_ext.plan.workload import Point

# Phases that are fitted. old_log_prob has the coefficients of ref.
FITTED = ("gen", "ref", "update_actor", "update_weights", "rest")


def terms_of(point: Point) -> Terms:
    """All terms of a run on one device."""
    load, sizes, device = point.load, point.sizes, point.device
    trained = training(load, sizes, device, shared=point.shared, passes=point.passes)
    rest = {"rows": load.rows, "once": 1.0}
    return rollout(load, sizes, device, slots=point.slots) | trained | synchronisation(sizes, device) | rest


def least_squares(terms: np.ndarray, measured: np.ndarray) -> np.ndarray:
    """Coefficients that are at least 0 and make the squared relative errors least.

    A coefficient that would be negative is set to 0, the most negative first, and the others are fitted again.

    Args:
        terms: (points, terms).
        measured: (points,), seconds above 0.
    """
    kept = [column for column in range(terms.shape[1]) if terms[:, column].any()]
    found = np.zeros(terms.shape[1])
    while kept:
        scaled = terms[:, kept] / measured[:, None]
        length = np.linalg.norm(scaled, axis=0)  # columns of one length: seconds and counts differ by orders
        values = np.linalg.lstsq(scaled / length, np.ones(len(measured)), rcond=None)[0] / length
        if (values >= 0).all():
            found[kept] = values
            break
        kept.pop(int(np.argmin(values * length)))
    return found


def fit(points: Sequence[Point]) -> Terms:
    """Coefficients of all terms from the runs; 0 where a term does not help, or no run has its phase.

    Raises:
        ValueError: there are no runs.
    """
    if not points:
        raise ValueError("nothing to fit. Remedy: --fit runs/A runs/B …, runs of at least 2 steps")
    found: Terms = {}
    rows = [terms_of(point) for point in points]
    for phase in FITTED:
        names = PHASES[phase]
        have = [number for number, point in enumerate(points) if point.seconds.get(phase, 0) > 0]
        if have:
            table = np.array([[rows[number].get(name, 0.0) for name in names] for number in have])
            measured = np.array([points[number].seconds[phase] for number in have])
            found |= dict(zip(names, map(float, least_squares(table, measured)), strict=True))
    return {name: found.get(name, 0.0) for names in PHASES.values() for name in names} | {"tools": 1.0}


def predict(point: Point, coefficients: Terms) -> dict[str, float]:
    """Seconds of each phase that the run has, and of its step."""
    terms = terms_of(point)
    phases = {phase: seconds(phase, terms, coefficients) for phase in FITTED if phase in point.seconds}
    return phases | {"step": sum(phases.values())}


def leave_one_out(points: Sequence[Point]) -> list[dict[str, float]]:
    """For each run, what the fit to all the others predicts.

    Raises:
        ValueError: there are fewer than 3 runs.
    """
    if len(points) < 3:
        raise ValueError(
            f"{len(points)} runs: leaving one out needs 3. Remedy: further runs, of other strategies or batches"
        )
    return [predict(one, fit([other for other in points if other is not one])) for one in points]
