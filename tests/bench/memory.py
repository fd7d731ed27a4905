"""(j) The memory at 100,000 memories of one agent: recall, and the update of a training step of 64 trajectories.

Generated questions: words of a vocabulary of 20,000 drawn by Zipf's law, 12 to 40 in each. One thread. Beside recall
stand scans of the same unit vectors of 128 numbers, without text: numpy with a row per memory, as one would write it
(51 MB are read for each query, which is the floor), with a column per memory, as here, and faiss' exact index. Recall
and scans in CPU time; the rest by the clock, because it writes to the disk.
"""

from __future__ import annotations

import pickle
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import numpy as np
from threadpoolctl import threadpool_limits

from verl_ext.memory import Episode, HashingSimilarity, Memory, MemoryStore, Rules, Use, View
from verl_ext.memory.step import Changes, evolve

MEMORIES, QUESTIONS, TRAJECTORIES, K = 100_000, 8, 8, 5
PLAN = ("tool_intention", "tool_retrievals")


def texts(count: int, rng: np.random.Generator) -> list[str]:
    """Questions in words."""
    words = np.minimum(rng.zipf(1.3, size=(count, 40)), 20_000)
    sizes = rng.integers(12, 41, size=count)
    return [" ".join(f"w{word}" for word in row[:size]) for row, size in zip(words, sizes, strict=True)]


def filled(folder: Path, rng: np.random.Generator) -> MemoryStore:
    """A store with MEMORIES memories of one agent, none of which will wear out."""
    similarity = HashingSimilarity()
    queries, outputs = texts(MEMORIES, rng), texts(1000, rng)
    vectors = similarity.encode(queries)
    rows = [
        (Memory(number + 1, "agent", query, PLAN, outputs[number % 1000], 1, 100.0), vector)
        for number, (query, vector) in enumerate(zip(queries, vectors, strict=True))
    ]
    store = MemoryStore(folder, Rules(alpha=0.001, capacity=MEMORIES), similarity)
    store._database.write(View(1, similarity, {}, MEMORIES + 1), Changes(inserted=rows))
    store._show(store._database.load())
    return store


def milliseconds(
    run: Callable[[int], object], repeats: int, clock: Callable[[], float] = time.process_time
) -> tuple[float, float]:
    """(best, median) of the calls run(0), run(1), …"""
    times = []
    for number in range(repeats):
        start = clock()
        run(number)
        times.append(1e3 * (clock() - start))
    return min(times), median(times)


def recall(view: View, queries: list[str]) -> list[str]:
    """Lines: one query, 64 at a time, and bare scans of the same vectors."""
    vectors = view.shelves["agent"].vectors
    rows = np.ascontiguousarray(vectors.T)
    encoded = view.similarity.encode(queries)
    asked = [("agent", query) for query in queries]
    assert view.recall_many(asked[:8], K) == [view.recall("agent", query, K) for query in queries[:8]]
    count = len(queries)
    one = milliseconds(lambda number: view.recall("agent", queries[number % count], K), 100)
    many = [value / count for value in milliseconds(lambda _: view.recall_many(asked, K), 10)]
    by_row = milliseconds(lambda number: np.argpartition(rows @ encoded[number % count], -K)[-K:], 50)
    by_column = milliseconds(lambda number: encoded[number % count] @ vectors, 50)
    lines = [
        _line("recall, one query", one, by_row[0], f"k = {K}, the query's encoding included"),
        _line(f"recall, {count} queries at once", many, by_row[0], "per query"),
        _line("numpy, a row per memory", by_row, by_row[0], "scan and argpartition, nothing else"),
        _line("numpy, a column per memory", by_column, by_row[0], "scan only"),
    ]
    try:
        import faiss
    except ImportError:
        return [*lines, "  faiss is not installed"]
    faiss.omp_set_num_threads(1)
    index = faiss.IndexFlatIP(rows.shape[1])
    index.add(rows)
    exact = milliseconds(lambda number: index.search(encoded[number % count][None], K), 50)
    return [*lines, _line("faiss IndexFlatIP", exact, by_row[0], "search only")]


def update(store: MemoryStore, queries: list[str]) -> list[str]:
    """Lines: a step of 8 questions x 8 trajectories, each with K recalled memories; one of the eight stands out."""
    recalled = [tuple(m.id for m in store.view().recall("agent", q, K)) for q in queries[:QUESTIONS]]

    def made(step: int) -> list[Episode]:
        return [
            Episode(f"question {question}", f"{number}", float(number == 0), 1.0, (
                Use("agent", queries[question], PLAN, f"answer {step} {question} {number}", recalled[question]),))
            for question in range(QUESTIONS) for number in range(TRAJECTORIES)
        ]  # fmt: skip

    first = store.version + 1
    whole = milliseconds(lambda number: store.apply(first + number, made(number)), 10, time.perf_counter)
    last, view = store.version, store.view()
    alone = milliseconds(lambda number: evolve(view, last + 1, made(number), store.rules), 10, time.perf_counter)
    note = f"{MEMORIES:,} scores decay, 8 memories in, 8 out"
    lines = [f"  update of a step       {whole[1]:>7.0f} ms, best {whole[0]:.0f} ({note})"]
    return [
        *lines,
        f"  of it in memory        {alone[1]:>7.0f} ms, best {alone[0]:.0f} (the rest is SQLite, one transaction)",
    ]


def whole_store(store: MemoryStore, folder: Path) -> list[str]:
    """A line: what is done once per step for remote readers, or once per checkpoint."""
    view = store.view()
    sent = pickle.dumps(view, 5)
    seconds = {
        "pickle a view": milliseconds(lambda _: pickle.dumps(view, 5), 3, time.perf_counter)[1],
        "unpickle it": milliseconds(lambda _: pickle.loads(sent), 3, time.perf_counter)[1],
        "snapshot": milliseconds(lambda _: store.snapshot(folder / "copy"), 3, time.perf_counter)[1],
        "restore": milliseconds(lambda _: store.restore(folder / "copy"), 3, time.perf_counter)[1],
    }
    listed = ", ".join(f"{name} {1e-3 * value:.1f} s" for name, value in seconds.items())
    return [f"  {listed} ({len(sent) / 1e6:.0f} MB)"]


def _line(name: str, times: tuple[float, float] | list[float], other: float, note: str) -> str:
    best, middle = times
    return f"  {name:<28} {middle:>6.2f} ms, best {best:>5.2f}  {other / best:>4.1f} x  ({note})"


def run() -> list[str]:
    """All lines; the factors are of the best times, over numpy with a row per memory."""
    rng = np.random.default_rng(0)
    with threadpool_limits(1), tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        store = filled(folder / "memory", rng)
        queries = texts(64, rng)
        with store:
            return [*recall(store.view(), queries), *update(store, queries), *whole_store(store, folder)]


if __name__ == "__main__":
    print("\n".join(run()))
