"""Write demonstrations of the single agent on real questions, by rule: the gold answer, where its passages have it.

    python -m verl_ext.recipe.mhgpo.cold_start.single --questions data/hotpotqa/train.parquet \\
           --index data/hotpotqa/index --output data/cold_start/single.parquet
"""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from verl_ext.mas import Task
from verl_ext.recipe.cold_start import gold
from verl_ext.recipe.mhgpo import SingleQA
from verl_ext.recipe.mhgpo.cold_start.questions import demonstrate
from verl_ext.tools.retrieval import search_tool


def rule_of(task: Task) -> gold.Rule:
    """What the agent should write for a question: as MHGPO's answerer, who is shown the gold passages alone."""

    def rule(agent: str, turn: int, inputs: Mapping[str, Any]) -> str:
        answers, titles = task.ground_truth["target"], task.extra["gold_titles"]
        shown = demonstrate(task.question, answers, titles, inputs["docs"])
        if "answerer" not in shown:
            raise gold.Unsolved
        return shown["answerer"]

    return rule


def made(given: Namespace) -> Any:
    """System, tools and rule."""
    tools = {"search": search_tool(index=str(given.index), top_k=given.top_k, max_documents=given.top_k)}
    return SingleQA(), tools, rule_of


def main(argv: Sequence[str] | None = None) -> int:
    """Command line. Returns the exit status; user errors are printed without a traceback."""
    parser = gold.options(__doc__)
    parser.add_argument("--index", type=Path, required=True, help="folder that data_prep/corpus.py has written")
    parser.add_argument("--top_k", type=int, default=5, help="passages, as mas.tools.search.top_k (5)")
    return gold.run(parser, argv, made)


if __name__ == "__main__":
    sys.exit(main())
