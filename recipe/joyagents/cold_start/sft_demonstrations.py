"""Write noisy demonstrations of the tiny shop's agents for verl's SFTTrainer (+sft=joyagents_tiny): a file per agent.

    python -m verl_ext.recipe.joyagents.cold_start.sft_demonstrations --output_dir data/joyagents_sft_tiny --size 2000

One row:
    {"agent": "math_agent", "messages": [{"role": "user", "content": "math: total 7 + 5 - 3"},
                                         {"role": "assistant", "content": "<think> 12 9</think> 9"}]}
"""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from verl_ext.arguments import Parser, exit_status
from verl_ext.recipe.joyagents.cold_start.demonstrations import AGENTS, Teacher, scaled
from verl_ext.worlds.data_set import Rows, stamped_folder

VERSION = 2  # raise it whenever the same arguments would give other files: `ensure` then regenerates
STAMP = "joyagents_sft.json"
# Relative numbers of conversations. The master has the most kinds of questions; sums are short, and take long to learn.
SPECIALISTS = {"question_agent": 3, "shop_agent": 3, "function_agent": 5, "math_agent": 6}
PARTS = {"master": 4, **SPECIALISTS, "summary": 2, "intention": 1}
HELD_OUT = 512


def ensure(output_dir: str | Path, size: int = 20_000, habits: float = 1.0, seed: int = 0) -> Path:
    """Make sure that `output_dir` holds the tiny agents' demonstrations; make them only if it does not.

    Args:
        size: conversations of all agents together, 64 or more.
        habits: factor on the shares of wrong ones (demonstrations.Habits): 0 none, 1 the shipped model's.

    Raises:
        ValueError: size or habits out of range.
    """
    if size < 64 or habits < 0:
        raise ValueError(f"size={size}, habits={habits}: at least 64 conversations, and habits of 0 or more")
    stamp = {"version": VERSION, "size": size, "habits": habits, "seed": seed}
    names = [*(f"{agent}.parquet" for agent in AGENTS), "val.parquet"]
    return stamped_folder(output_dir, STAMP, names, lambda: rows_by_file(size, habits, seed), **stamp)


def rows_by_file(size: int, habits: float, seed: int) -> dict[str, Rows]:
    """Rows of each file; `val.parquet` holds conversations of all agents."""
    parts = sum(PARTS.values())
    counts = {agent: max(1, size * PARTS[agent] // parts) for agent in AGENTS}
    shares, teacher, examiner = scaled(habits), Teacher(seed), Teacher(seed + 1)

    def row(teacher: Teacher, agent: str) -> dict[str, Any]:
        return {"agent": agent, "messages": teacher.demonstrate(agent, shares)}

    files = {f"{agent}.parquet": [row(teacher, agent) for _ in range(count)] for agent, count in counts.items()}
    drawn = random.Random(f"{seed}/held out").choices(AGENTS, [PARTS[agent] for agent in AGENTS], k=HELD_OUT)
    return files | {"val.parquet": [row(examiner, agent) for agent in drawn]}


def main(argv: Sequence[str] | None = None) -> int:
    """Command line. Returns the exit status; user errors are printed without a traceback."""
    parser = Parser(description=__doc__)
    parser.add_argument("--output_dir", required=True, help="folder of the files")
    parser.add_argument("--size", type=int, default=20_000, help="conversations of all agents together")
    parser.add_argument("--habits", type=float, default=1.0, help="noise: 0 none, 1 that of the shipped model")
    parser.add_argument("--seed", type=int, default=0, help="of the conversations")
    arguments = parser.parse_args(argv)
    return exit_status(lambda: print(f"demonstrations in {ensure(**vars(arguments))}"))


if __name__ == "__main__":
    sys.exit(main())
