"""(i) Searches per second: BM25, dense exact and approximate, and the server, over plain numpy scans of everything.

Generated data: 20,000 passages of 60 words drawn by Zipf's law, and as many unit vectors of 384 numbers around 4,000
centres; 256 queries of 8 words of one passage, or a passage's vector with noise. The dense backend runs behind an
encoder that looks vectors up (the seam: encoding is the model's speed, not ours). One thread, its CPU time.

A scan reads everything for every query, so its floor is memory traffic: 4 bytes x 60 words, or 4 bytes x 384 numbers,
per passage. Its matrix product takes all queries at once, the best a user would write; ours answers as if each query
came alone (a replayed trajectory must find the same), which is what the exact index pays for.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from unittest import mock

import faiss
import numpy as np
import psutil
from threadpoolctl import threadpool_limits

from verl_ext.tools.retrieval import HttpRetriever, Passage, build_index, build_retriever, load_index
from verl_ext.tools.retrieval.dense import DenseRetriever

PASSAGES, WORDS, WIDTH, CENTRES, QUERIES, K, CLIENTS = 20_000, 60, 384, 4000, 256, 10, 32
PROBES = (8, 32, 128)


class LookUp:
    """An encoder: the last word of a text is the row of its vector (other texts: the first row)."""

    def __init__(self, vectors: np.ndarray) -> None:
        self.vectors = vectors

    def encode(self, texts: Sequence[str], **_: object) -> np.ndarray:
        words = [text.split()[-1] for text in texts]
        return self.vectors[[int(word) if word.isdigit() else 0 for word in words]]


def texts(rng: np.random.Generator) -> tuple[list[Passage], list[str]]:
    """Passages and queries in words."""
    words = np.minimum(rng.zipf(1.3, size=(PASSAGES, WORDS)), 50_000)
    passages = [Passage(str(i), f"w{row[0]}", " ".join(f"w{word}" for word in row)) for i, row in enumerate(words)]
    asked = rng.choice(PASSAGES, QUERIES, replace=False)
    return passages, [" ".join(f"w{word}" for word in rng.choice(words[row], 8)) for row in asked]


def vectors(rng: np.random.Generator) -> np.ndarray:
    """(PASSAGES + QUERIES, WIDTH) float32 unit vectors, the queries last."""
    centres = rng.standard_normal((CENTRES, WIDTH))
    found = centres[rng.integers(CENTRES, size=PASSAGES)] + rng.standard_normal((PASSAGES, WIDTH))
    asked = found[rng.choice(PASSAGES, QUERIES)] + rng.standard_normal((QUERIES, WIDTH))
    both = np.concatenate([found, asked])
    return (both / np.linalg.norm(both, axis=1, keepdims=True)).astype(np.float32)


def best(scores: np.ndarray) -> np.ndarray:
    """Rows of the K highest scores, unordered."""
    return np.argpartition(scores, len(scores) - K)[-K:]


def scan_words(
    passages: Sequence[Passage],
    retriever: object,
    queries: Sequence[str],
    pick: Callable[[np.ndarray], np.ndarray] = best,
) -> Callable[[], list]:
    """BM25 without an inverted index: the weight of every word of every passage, looked at for every query.

    pick: scores of all passages -> the rows that are found.
    """
    columns, vocabulary = retriever._model.scores, retriever._vocabulary
    sizes = np.diff(columns["indptr"][: len(vocabulary) + 1])
    words, rows = np.repeat(np.arange(len(vocabulary), dtype=np.int32), sizes), np.asarray(columns["indices"])
    order = np.argsort(rows[: len(words)], kind="stable")  # passage by passage, as a corpus lies on disk
    words, rows, weights = words[order], rows[order], np.asarray(columns["data"])[order]

    def run() -> list[np.ndarray]:
        found = []
        for query in queries:
            asked = np.zeros(len(vocabulary), dtype=np.float32)
            for word in query.split():
                asked[vocabulary[word]] += 1
            times = asked[words]
            hit = np.flatnonzero(times)
            found.append(pick(np.bincount(rows[hit], weights[hit] * times[hit], minlength=len(passages))))
        return found

    return run


def per_second(run: Callable[[], object], repeats: int = 3) -> tuple[float, object]:
    """(queries per second of CPU time, best of `repeats`; what `run` returned)."""
    times, result = [], None
    for _ in range(repeats):
        start = time.process_time()
        result = run()
        times.append(time.process_time() - start)
    return QUERIES / min(times), result


def bm25(passages: list[Passage], queries: list[str]) -> tuple[list[str], float]:
    """Lines, and queries per second in process."""
    retriever = build_retriever(passages)
    scan, reference = per_second(scan_words(passages, retriever, queries))
    ours, hits = per_second(lambda: retriever.search(queries, K))
    for found, rows, query in zip(hits, reference, queries, strict=True):
        worst = min(hit.score for hit in found)
        assert len({int(hit.passage.pid) for hit in found if hit.score > worst + 1e-4} - set(rows)) == 0, query
    floor = 4e-6 * PASSAGES * WORDS
    return [_line("BM25", ours, scan, f"scan {scan:,.0f}/s, at least {floor:.1f} MB a query")], ours


def dense(table: np.ndarray) -> list[str]:
    """Lines for the exact index and for ivf at several probes."""
    passages = [Passage(str(i), "", str(i)) for i in range(PASSAGES)]
    queries, stored, asked = [f"q {PASSAGES + i}" for i in range(QUERIES)], table[:PASSAGES], table[PASSAGES:]
    scan, reference = per_second(lambda: [best(scores) for scores in asked @ stored.T])
    floor = f"scan {scan:,.0f}/s, {2e-6 * stored.size:.0f} MFLOP a query and {4e-6 * stored.size:.0f} MB a scan"
    lines = []
    with mock.patch("verl_ext.tools.retrieval.dense.load_encoder", return_value=LookUp(table)):
        exact = build_retriever(passages, "dense")
        start = time.perf_counter()
        ivf = build_retriever(passages, "dense", {"index": "ivf"})
        seconds = time.perf_counter() - start
        with tempfile.TemporaryDirectory() as folder:
            ivf.save(Path(folder))
            others = [DenseRetriever.load(Path(folder), passages, ivf.options, ivf_probes=probes) for probes in PROBES]
    names = ["exact", *(f"ivf, {probes} probes" for probes in PROBES)]
    for name, retriever in zip(names, [exact, *others], strict=True):
        ours, hits = per_second(lambda retriever=retriever: retriever.search(queries, K))
        same = [
            len({int(hit.passage.pid) for hit in found} & set(rows.tolist())) / K
            for found, rows in zip(hits, reference, strict=True)
        ]
        assert name != "exact" or min(same) == 1
        note = floor if name == "exact" else f"{np.mean(same):.3f} of the exact ten; built in {seconds:.0f} s"
        lines.append(_line(f"dense {name}", ours, scan, note))
    return lines


def server(passages: list[Passage], queries: list[str], in_process: float) -> list[str]:
    """A line: 32 clients of a server process, each with a connection, one query after the other.

    Speed in CPU time of the server process, and by the clock, in which the clients on this machine take part.
    """
    with tempfile.TemporaryDirectory() as folder:
        build_index(passages, Path(folder) / "index")
        local = load_index(Path(folder) / "index")
        command = [sys.executable, "-m", "verl_ext.tools.retrieval_server", "--index", f"{folder}/index", "--port", "0"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            url = process.stdout.readline().rsplit(" ", 1)[-1].strip()

            async def client(part: list[str]) -> list:
                retriever = HttpRetriever(url)
                found = [(await retriever.asearch([query], K))[0] for query in part]
                await retriever.close()
                return found

            async def clients() -> list:
                return await asyncio.gather(*(client(queries[i::CLIENTS] * 4) for i in range(CLIENTS)))

            before, start = sum(psutil.Process(process.pid).cpu_times()[:2]), time.perf_counter()
            found = asyncio.run(clients())
            seconds = time.perf_counter() - start
            speed = 4 * len(queries) / (sum(psutil.Process(process.pid).cpu_times()[:2]) - before)
        finally:
            process.terminate()
            process.communicate(timeout=30)
    assert found[0][: len(queries[::CLIENTS])] == local.search(queries[::CLIENTS], K)
    note = f"over BM25 in process; {4 * len(queries) / seconds:,.0f}/s by the clock"
    return [_line(f"server, {CLIENTS} clients", speed, in_process, note)]


def _line(name: str, ours: float, other: float, note: str) -> str:
    return f"  {name:<22} {ours:>7,.0f} queries/s  {ours / other:>5.2f} x  ({note})"


def run() -> list[str]:
    """Lines, one per backend."""
    rng = np.random.default_rng(0)
    passages, queries = texts(rng)
    threads = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1)
    try:
        with threadpool_limits(1):
            lines, in_process = bm25(passages, queries)
            return [*lines, *dense(vectors(rng)), *server(passages, queries, in_process)]
    finally:
        faiss.omp_set_num_threads(threads)


if __name__ == "__main__":
    print("\n".join(run()))
