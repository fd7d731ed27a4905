"""(k) Tool searches per second over 16,000 tools, 32 concurrent clients of the tool, over plain numpy scans.

Generated data: tools with 40 words of documentation drawn by Zipf's law and a unit vector of 384 numbers each; 256
queries of 8 words of one tool, with its vector and noise. The encoder looks vectors up (the seam: encoding is the
model's speed, not ours). One thread, its CPU time, the clients' included: event loop, batching, the tools' documents.

The scan answers as a script would, without clients: BM25 one query at a time over the words of all tools, the vectors
of all queries in one matrix product, fusion of the two with a sort over all tools.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Sequence
from unittest import mock

import faiss
import numpy as np
from threadpoolctl import threadpool_limits

from tests.bench.retrieval import QUERIES as ASKED
from tests.bench.retrieval import LookUp, per_second, scan_words
from verl_ext.tools.catalogue import Catalogue, ToolSearch, ToolSpec
from verl_ext.tools.catalogue.search.documents import passages
from verl_ext.tools.catalogue.search.fusion import DENSE, DEPTH
from verl_ext.tools.catalogue.search.tool import open_search
from verl_ext.tools.retrieval import Retriever
from verl_ext.tools.retrieval.bm25 import tokenize

TOOLS, WORDS, WIDTH, K, CLIENTS = 16_000, 40, 384, 5, 32


def tools(rng: np.random.Generator) -> tuple[Catalogue, list[str]]:
    """Tools, the last word of whose description is the row of its vector, and queries that end alike."""
    words = np.minimum(rng.zipf(1.3, size=(TOOLS, WORDS)), 20_000)
    made = [
        ToolSpec(
            f"tool_{i:05}", " ".join([*(f"w{word}" for word in row), str(i)]), {"type": "object", "properties": {}}
        )
        for i, row in enumerate(words)
    ]
    asked = rng.choice(TOOLS, ASKED, replace=False)
    said = [" ".join(f"w{word}" for word in rng.choice(words[row], 8)) for row in asked]
    return Catalogue(made), [f"{text} {TOOLS + i}" for i, text in enumerate(said)]


def vectors(rng: np.random.Generator) -> np.ndarray:
    """(TOOLS + ASKED, WIDTH) float32 unit vectors, the queries last."""
    found = rng.standard_normal((TOOLS, WIDTH))
    asked = found[rng.choice(TOOLS, ASKED)] + rng.standard_normal((ASKED, WIDTH))
    both = np.concatenate([found, asked])
    return (both / np.linalg.norm(both, axis=1, keepdims=True)).astype(np.float32)


def clients(catalogue: Catalogue, retriever: Retriever, queries: Sequence[str]) -> list[list[str]]:
    """Names found for each query, by clients of one tool that ask one query after the other."""
    tool = ToolSearch(catalogue, retriever, top_k=K)

    async def client(part: Sequence[str]) -> list[list[str]]:
        return [[found["name"] for found in await tool(query=query)] for query in part]

    async def run() -> list[list[str]]:
        parts = await asyncio.gather(*(client(queries[number::CLIENTS]) for number in range(CLIENTS)))
        await tool.close()
        return [parts[number % CLIENTS][number // CLIENTS] for number in range(len(queries))]

    return asyncio.run(run())


def ranked(scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rows of the DEPTH highest scores, best first, and these scores; ties by row."""
    rows = np.argsort(-scores, kind="stable")[:DEPTH]
    return rows, scores[rows]


def scans(
    words: Callable[[], list[tuple[np.ndarray, np.ndarray]]], table: np.ndarray
) -> dict[str, Callable[[], list[np.ndarray]]]:
    """Method -> the K best rows of every query, by looking at everything."""
    stored, asked = table[:TOOLS], table[TOOLS:]

    def fused() -> list[np.ndarray]:
        rankings = [words(), [ranked(scores) for scores in asked @ stored.T]]
        rows = []
        for pair in zip(*rankings, strict=True):
            scores = np.zeros(TOOLS)
            for weight, lowest, (ranking, values) in zip((1 - DENSE, DENSE), (0.0, -1.0), pair, strict=True):
                share = weight * (values - lowest) / (values[0] - lowest)
                scores += share[-1]  # of all that the ranking leaves out
                scores[ranking] += share - share[-1]
            rows.append(ranked(scores)[0][:K])
        return rows

    return {
        "bm25": lambda: [rows[:K] for rows, _ in words()],
        "dense": lambda: [ranked(scores)[0][:K] for scores in asked @ stored.T],
        "hybrid": fused,
    }


def run() -> list[str]:
    """Lines, one per method."""
    rng = np.random.default_rng(0)
    catalogue, queries = tools(rng)
    table, lines = vectors(rng), []
    threads = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1)
    try:
        with (
            threadpool_limits(1),
            tempfile.TemporaryDirectory() as cache,
            mock.patch("verl_ext.tools.retrieval.dense.load_encoder", return_value=LookUp(table)),
        ):
            opened = {method: open_search(catalogue, method, cache_dir=cache) for method in ("bm25", "dense", "hybrid")}
            known = [" ".join(tokenize(" ".join(query.split()[:-1]), stems=True)) for query in queries]
            words = scan_words(passages(catalogue.values()), opened["bm25"], known, ranked)
            for method, scan in scans(words, table).items():
                plain, rows = per_second(scan)
                ours, found = per_second(lambda method=method: clients(catalogue, opened[method], queries))
                same = np.mean([
                    len({int(name[5:]) for name in names} & set(best.tolist())) / K
                    for names, best in zip(found, rows, strict=True)
                ])  # fmt: skip
                lines.append(
                    f"  {method:<8} {ours:>7,.0f} queries/s  {ours / plain:>5.2f} x  "
                    f"(scan {plain:,.0f}/s; {same:.3f} of its five found)"
                )
    finally:
        faiss.omp_set_num_threads(threads)
    return lines


if __name__ == "__main__":
    print("\n".join(run()))
