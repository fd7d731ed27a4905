"""Whether two answers to a mathematical question are the same: sign and decimal point count, LaTeX's spelling not."""

from __future__ import annotations

from verl_ext.rewards.gaia import number


def math_match(answer: str, target: str) -> float:
    """1.0 if the answer is the target, else 0.0. Numbers must be equal; other texts are compared by Hendrycks' rules.

    Those are verl's (utils/reward_score/math_reward.py): blanks, \\left, \\dfrac, units and the like do not count.
    """
    said, wanted = (number(text.strip().strip("$").replace(",", "").replace("−", "-")) for text in (answer, target))
    if said is not None and wanted is not None:
        return float(said == wanted)
    from verl.utils.reward_score.math_reward import is_equiv  # imports torch

    return float(is_equiv(answer.strip().strip("$"), target.strip().strip("$")))
