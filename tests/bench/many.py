"""(v) One rollout worker with 2,000 trajectories open at once: work, memory, and the lag of its event loop.

    python -m tests.bench.many

The three-agent search of mhgpo_tiny with its own tokenizer, prompts, search tool and rows. The engine is a stub that
answers after 2 to 20 s with some words of the prompt, and rows are made but not stored: what is left is the worker. The
lag is what the thread of the worker's event loop works (processor time) while a coroutine there sleeps 5 ms.
"""

from __future__ import annotations

import asyncio
import random
import time
from types import SimpleNamespace
from typing import Any

import psutil
import pyarrow.parquet as pq
from hydra.utils import call
from omegaconf import DictConfig, OmegaConf

from verl_ext.check import compose
from verl_ext.reports import machine
from verl_ext.trainer.rollout.worker import RolloutWorker

QUESTIONS, SAMPLES = 500, 4
LAG = 0.05  # s, wanted at most
OVERRIDES = ("+recipe=mhgpo_tiny", "actor_rollout_ref.rollout.name=vllm", "mas.sampling.strategy=is")


class Stub:
    """verl's client of an engine without one."""

    def __init__(self) -> None:
        self.calls, self._random = 0, random.Random(0)

    async def generate(self, request_id: str, prompt_ids: list[int], sampling_params: dict[str, Any]) -> Any:
        """Some tokens of the prompt's end."""
        self.calls += 1
        await asyncio.sleep(min(2 * self._random.paretovariate(1.2), 20))
        token_ids = prompt_ids[-self._random.randrange(4, 24) :]
        return SimpleNamespace(
            token_ids=token_ids, log_probs=[-0.5] * len(token_ids), stop_reason="completed", extra_fields={}
        )


class Unstored:
    """In place of TransferQueue's writer."""

    def __init__(self) -> None:
        self.rows, self.questions, self.most = 0, 0, 0

    async def begin(self, uids: list[str], partition: str) -> None:
        """See `RowWriter`."""

    async def end(self, uid: str, partition: str, rows: list[Any]) -> None:
        """See `RowWriter`."""
        self.rows, self.questions = self.rows + len(rows), self.questions + 1


async def _watch(lags: list[float], ended: asyncio.Event) -> None:
    while not ended.is_set():
        start = time.thread_time()
        await asyncio.sleep(0.005)
        lags.append(time.thread_time() - start)


def _questions(config: DictConfig) -> list[dict[str, Any]]:
    """Of the generated world, which is made where the recipe has it."""
    call(OmegaConf.to_container(config.mas.prepare, resolve=True))
    rows = pq.read_table(config.data.train_files).slice(0, 1 + QUESTIONS).to_pylist()
    return [
        {
            "uid": str(number),
            "index": number,
            "raw_prompt": row["prompt"],
            "reward_model": row["reward_model"],
            "data_source": row["data_source"],
            "global_steps": 1,
        }
        for number, row in enumerate(rows)
    ]


def run() -> list[str]:
    """All measurements."""
    config = compose([*OVERRIDES, f"actor_rollout_ref.rollout.n={SAMPLES}"])
    first, *questions = _questions(config)
    worker = RolloutWorker(config, Stub())
    worker._writer = writer = Unstored()  # type: ignore[assignment]
    client: Any = worker.llm.client
    lags: list[float] = []
    ended = asyncio.Event()
    process = psutil.Process()
    worker.submit([first], validate=False)
    while writer.questions < 1:
        time.sleep(0.01)
    before, used, start = process.memory_info().rss, time.process_time(), time.perf_counter()
    asked = client.calls
    asyncio.run_coroutine_threadsafe(_watch(lags, ended), worker._loop)
    worker.submit(questions, validate=False)
    most = at = 0
    while writer.questions < 1 + len(questions):
        time.sleep(0.1)
        now = SAMPLES * len(worker._forests)
        most, at = max((most, at), (now, process.memory_info().rss))
    used, wall = time.process_time() - used, time.perf_counter() - start
    worker._loop.call_soon_threadsafe(ended.set)
    calls, lags = client.calls - asked, sorted(lags)
    return [
        f"{most:,} trajectories at once, {calls:,} calls in {wall:.1f} s: {1000 * used / calls:.2f} ms of processor a "
        f"call, {(at - before) / max(most, 1) / 1024:.0f} KiB a trajectory, {writer.rows:,} rows",
        f"lag of the event loop: median {1000 * lags[len(lags) // 2]:.1f} ms, 99th percentile "
        f"{1000 * lags[len(lags) * 99 // 100]:.1f} ms, longest {1000 * lags[-1]:.0f} ms (aim: {1000 * LAG:.0f} ms)",
    ]


if __name__ == "__main__":
    print(machine())
    print("\n".join(run()))
