"""Write demonstrations of the three agents on real questions, by rule from the gold answers, for a cold start.

    python -m verl_ext.recipe.mhgpo.cold_start.questions --questions data/hotpotqa/train.parquet \
           --index data/hotpotqa/index --output_dir data/hotpotqa/demonstrations --first 220

    rewriter   the gold titles that stand in the question, then the question itself
    reranker   the ids of the gold titles among what these queries find
    answerer   the gold answer, where one of these passages contains it, or yes / no

A call that the rule cannot answer is left out. One row of demonstrations.parquet:

    {"agent": "reranker", "messages": [..., {"role": "assistant", "content": "2, 0"}]}

rl.parquet holds the questions that the rule answers to the end, with demonstrations or without, for RL: where the
search finds nothing, or the answer is not in the passages, every sample would get the same reward.
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet

from verl_ext.arguments import Parser, exit_status
from verl_ext.mas.messages import Messages
from verl_ext.recipe.mhgpo import prompts
from verl_ext.storage.parquet import write_parquet
from verl_ext.tools.retrieval import SearchTool, search_tool

CLOSED = ("yes", "no")
Doc = Mapping[str, str]


def queries(question: str, gold_titles: Sequence[str]) -> list[str]:
    """The titles that the question names, in its order, without a disambiguation in brackets; then the question."""
    said = question.lower()
    names = dict.fromkeys(title.split(" (")[0] for title in gold_titles)  # two may begin at the same place
    # A separator of queries inside a query would make two of it.
    found = sorted((name for name in names if name.lower() in said), key=lambda name: said.index(name.lower()))
    return [query.replace(";", ",").replace("###", "") for query in (*found, question)]


def demonstrate(
    question: str, answers: Sequence[str], gold_titles: Sequence[str], docs: Sequence[Doc]
) -> dict[str, str]:
    """What each agent should write, given the documents that `queries` found; an agent is missing where no rule says.

    Args:
        docs: {"title", "text"}, as the reranker sees them.
    """
    shown = {"rewriter": f"### {'; '.join(queries(question, gold_titles))} ###"}
    chosen = gold_ids(gold_titles, docs)
    if not chosen:
        return shown
    shown["reranker"] = ", ".join(map(str, chosen))
    text = " ".join(f"{docs[i]['title']} {docs[i]['text']}" for i in chosen).lower()
    told = [answer for answer in answers if answer.lower() in text]
    if answers[0].lower() in CLOSED and len(chosen) == len(set(gold_titles)):
        told = [answers[0].lower()]
    return shown | ({"answerer": told[0]} if told else {})


def gold_ids(gold_titles: Sequence[str], docs: Sequence[Doc]) -> list[int]:
    """Where the gold titles stand among `docs`."""
    return [i for i, doc in enumerate(docs) if doc["title"] in gold_titles]


def _conversations(
    question: str, shown: Mapping[str, str], gold: Sequence[str], docs: Sequence[Doc]
) -> list[dict[str, Any]]:
    asked: dict[str, Messages] = {
        "rewriter": prompts.rewriter(question),
        "reranker": prompts.reranker(question, docs),
        "answerer": prompts.answerer(question, [docs[i] for i in gold_ids(gold, docs)]),
    }
    said = {agent: {"role": "assistant", "content": text} for agent, text in shown.items()}
    return [{"agent": agent, "messages": [*asked[agent], said[agent]]} for agent in said]


async def _write(questions: Path, search: SearchTool, output_dir: Path, first: int) -> str:
    table = pyarrow.parquet.read_table(questions)
    rows, answered, count = [], [], Counter[str]()
    for number, row in enumerate(table.to_pylist()):
        question, gold = row["extra_info"]["question"], row["extra_info"]["gold_titles"]
        answers = row["reward_model"]["ground_truth"]["target"]
        docs = await search(queries=queries(question, gold))
        shown = demonstrate(question, answers, gold, docs)
        answered.append("answerer" in shown)
        if number < first:
            rows += _conversations(question, shown, gold, docs)
            count.update(list(shown))
    if not rows or not any(answered):
        raise ValueError(
            f"{questions}: for none of {len(table)} questions does the search find a gold passage with the answer: "
            "was the index made from the passages of these questions?"
        )
    output_dir.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(table.filter(answered), output_dir / "rl.parquet")
    write_parquet(rows, output_dir / "demonstrations.parquet")  # last: for `make real` it says that all is there
    told = ", ".join(f"{agent} {number}" for agent, number in count.items())
    asked = min(first, len(table))
    return (
        f"{output_dir}/demonstrations.parquet: {len(rows)} conversations of {asked} questions ({told})\n"
        f"{output_dir}/rl.parquet: {sum(answered)} of {len(table)} questions"
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Command line. Returns the exit status; user errors are printed without a traceback."""
    parser = Parser(description=__doc__)
    parser.add_argument("--questions", type=Path, required=True, help="train.parquet of data_prep/qa.py")
    parser.add_argument("--index", required=True, help="of data_prep/corpus.py, or the address of a retrieval server")
    parser.add_argument("--output_dir", type=Path, required=True, help="folder of the two files")
    parser.add_argument("--first", type=int, default=220, help="so many questions are demonstrated (220)")
    parser.add_argument("--top_k", type=int, default=5, help="passages per query, as mas.tools.search.top_k (5)")
    parser.add_argument("--max_documents", type=int, default=5, help="as mas.tools.search.max_documents (5)")
    given = parser.parse_args(argv)

    async def write() -> str:
        search = search_tool(index=given.index, top_k=given.top_k, max_documents=given.max_documents)
        try:
            return await _write(given.questions, search, given.output_dir, given.first)
        finally:
            await search.close()

    return exit_status(lambda: print(asyncio.run(write())))


if __name__ == "__main__":
    sys.exit(main())
