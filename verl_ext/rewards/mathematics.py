"""Whether two answers to a mathematical question are the same: sign and decimal point count, LaTeX's spelling not."""

from __future__ import annotations

import re

from verl_ext.rewards.gaia import number

# The commas that set off thousands. Others stand between numbers: 1,2 is not 12.
THOUSANDS = re.compile(r"[-+]?\d{1,3}(?:,\d{3})+(?:\.\d*)?")


def math_match(answer: str, target: str) -> float:
    """1.0 if the answer is the target, else 0.0. Numbers must be equal; other texts are compared by Hendrycks' rules.

    Those are verl's (utils/reward_score/math_reward.py): blanks, \\left, \\dfrac, units and the like do not count.
    """
    said, wanted = (_number(text.strip().strip("$").replace("−", "-")) for text in (answer, target))
    if said is not None and wanted is not None:
        return float(said == wanted)
    from verl.utils.reward_score.math_reward import is_equiv  # imports torch

    return float(is_equiv(answer.strip().strip("$"), target.strip().strip("$")))


def _number(text: str) -> float | None:
    return number(text.replace(",", "") if THOUSANDS.fullmatch(text) else text)
