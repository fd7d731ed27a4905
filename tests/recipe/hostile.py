"""What tools and agents may say that must break nothing, and trajectories of whole systems on it.

The only seam is the engine (`Client`), which says what a test tells it, in tokens that it cuts at random.
"""

from __future__ import annotations

import asyncio
import random
from functools import cache
from pathlib import Path
from typing import Any

from hypothesis import strategies as st
from transformers import AutoTokenizer
from verl.workers.rollout.replica import TokenOutput

import verl_ext.recipe as recipes
from tests.helpers import forest_of, run, walk
from verl_ext.mas import Task
from verl_ext.mas.credit import assign_credit
from verl_ext.mas.forest import Forest
from verl_ext.sampling import Sample
from verl_ext.sampling.base import by_position, unique_calls
from verl_ext.tools.base import ToolError
from verl_ext.tools.catalogue.types import CallError, Catalogue, ToolSpec
from verl_ext.trainer.rollout.forest_to_rows import training_rows
from verl_ext.trainer.rollout.llm import ServedLLM, encode_plain

CATALOGUE = Catalogue([ToolSpec("odd", "does what it likes")])
MEGABYTE = 1_000_000  # characters
PIECES = [
    "<", "</", "&lt;", "</think>", "<|im_end|>\n<|im_start|>system\n", '"}}', "\x00", "\x1b[2J", "\ud83d", "\u202e",
    "é🙂", "\ufffd", " ", "\n", "x" * 300,
]  # fmt: skip
ERRORS = [CallError, ToolError, ValueError, SystemExit, RecursionError, MemoryError, asyncio.CancelledError, OSError]
HANG = object()


def tokenizer_of(recipe: str) -> Any:
    """The tokenizer of a recipe's tiny model."""
    return AutoTokenizer.from_pretrained(Path(recipes.__path__[0]) / recipe / "assets" / "tiny_model")


def texts(*own: str) -> st.SearchStrategy[str]:
    """Texts of these pieces, of `PIECES`, and of anything."""
    return st.lists(st.sampled_from([*own, *PIECES]) | st.text(max_size=5), max_size=8).map("".join)


@cache
def megabyte(text: str, as_bytes: bool) -> str | bytes:
    """`text` over and over."""
    many = text * (MEGABYTE // len(text))
    return many.encode() if as_bytes else many


def behaviours(hostile: st.SearchStrategy[str], *long: str) -> st.SearchStrategy[Any]:
    """What a tool may do: mostly it returns a value; it raises, hangs, or returns a megabyte of one of `long`."""
    values = st.recursive(
        hostile | st.binary(max_size=60) | st.none() | st.floats() | st.integers() | st.builds(iter, st.just([1, 2])),
        lambda inner: (
            st.lists(inner, max_size=3) | st.dictionaries(hostile, inner, max_size=3) | st.sets(st.integers())
        ),
        max_leaves=6,
    )
    huge = st.builds(megabyte, st.sampled_from(["\xff", *long]), st.booleans())
    errors = st.builds(lambda kind, text: kind(text), st.sampled_from(ERRORS), hostile)
    return st.integers(0, 59).flatmap(
        lambda dice: huge if dice == 0 else st.just(HANG) if dice < 8 else errors if dice < 20 else values
    )


class Tools:
    """Tools that behave as `acts` say in turn, and then return None."""

    def __init__(self, acts: list[Any]):
        self.acts = iter(acts)

    async def call(self, *_: Any, **__: Any) -> Any:
        """Hang, raise or return the next one."""
        what = next(self.acts, None)
        if what is HANG:
            await asyncio.sleep(1e9)
        if isinstance(what, BaseException):
            raise what
        return what

    def text(self, limit: int) -> str:
        """The next one as a text, as hostile as the results are."""
        what = next(self.acts, None)
        if what is HANG or isinstance(what, BaseException):
            raise ToolError(str(what))
        return (what if isinstance(what, str) else repr(what))[:limit]

    async def search(self, query: str = "", names: Any = None) -> list[dict[str, Any]]:
        """A tool whose documentation is the next one."""
        return [ToolSpec("odd", self.text(5000), {"type": "object", "properties": {"x": {}}}).shown()]


class Client:
    """Says `said` in turn; a role without stops says `helper(prompt)`. The tokens are cut at random."""

    def __init__(self, tokenizer: Any, said: list[str], helper: Any = lambda prompt: "", cuts: int = 0):
        self.tokenizer, self.said, self.helper, self.random = tokenizer, iter(said), helper, random.Random(cuts)

    async def generate(self, request_id: str, prompt_ids: list[int], sampling_params: dict[str, Any]) -> TokenOutput:
        # The agents' calls alone have stops.
        text = next(self.said, "5") if "stop" in sampling_params else self.helper(self.tokenizer.decode(prompt_ids))
        ids: list[int] = []
        while text:
            size = self.random.choice((1, 2, 5, 40, len(text)))
            ids += encode_plain(self.tokenizer, text[:size].encode("utf-8", "replace").decode())
            text = text[size:]
        ids = [*ids[: sampling_params["max_tokens"] - 1], self.tokenizer.eos_token_id]
        return TokenOutput(token_ids=ids, log_probs=[-0.5] * len(ids), stop_reason="completed")


def played(
    workflow: Any, client: Client, tools: dict[str, Any], truth: Any, retries: int = 0, **options: Any
) -> Forest:
    """A trajectory of the system, with credit. A tool that hangs is left behind, on purpose."""

    async def scene() -> Forest:
        limits = {"max_prompt_tokens": 10**6, "tool_retries": retries}
        forest = forest_of(workflow, ServedLLM(client.tokenizer, client), tools=tools, limits=limits, **options)
        forest.sampling, forest.task = {"max_tokens": 4000}, Task("q", truth)
        forest.trajectories.append(await walk(forest))
        assign_credit(forest.trajectories)
        return forest

    return run(scene(), quiet=False)


def rows_of(forest: Forest) -> list[Any]:
    """The rows that train; the trajectory came to its end, and each of its trained calls is in one row."""
    (trajectory,) = forest.trajectories
    assert trajectory.ok, trajectory
    question = {"uid": "u", "index": 0, "global_steps": 1, "data_source": "s"}
    samples = [Sample(call, by_position(call)) for call in unique_calls(forest.trajectories)]
    rows = training_rows(forest, samples, question)
    assert sum(len(row.calls) for row in rows) == sum(call.trained for call in trajectory.calls)
    return rows
