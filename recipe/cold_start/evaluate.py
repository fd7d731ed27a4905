"""Run a multi-agent system with a tiny model, without verl: the report of a cold start.

forests = run_workflow(model, tokenizer, SearchQA("tiny"), tasks, {"search": search}, greedy=True)
summary(forests)["f1"]
"""

import asyncio
from collections.abc import Sequence
from functools import partial
from statistics import fmean
from typing import Any

import torch

from verl_ext.engine.hf.loop import EngineLoop
from verl_ext.engine.hf.params import Request, SamplingParams
from verl_ext.engine.hf.slots import SlotEngine
from verl_ext.mas import Status, Task, Workflow
from verl_ext.mas.forest import Forest, Tools
from verl_ext.mas.llm import TokenLLM
from verl_ext.mas.types import Generation
from verl_ext.sampling import run_once
from verl_ext.trainer.rollout.llm import encode_plain

MAX_TOKENS = 32  # of every agent
SLOTS, MAX_LENGTH = 64, 512


class ModelLLM(TokenLLM):
    """A model and its tokenizer as an `LLM` for agents."""

    def __init__(self, model: Any, tokenizer: Any):
        self.tokenizer, self.end_token = tokenizer, tokenizer.eos_token_id
        self.loop = EngineLoop(partial(self._make, model))

    def _make(self, model: Any) -> SlotEngine:
        torch.set_num_threads(1)
        return SlotEngine(model, SLOTS, MAX_LENGTH, [self.end_token], self.decode)

    def encode(self, messages: list[dict[str, str]]) -> list[int]:
        return list(self.tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False))

    def encode_text(self, text: str) -> list[int]:
        return encode_plain(self.tokenizer, text)

    def decode(self, token_ids: list[int]) -> str:
        return self.tokenizer.decode(token_ids, skip_special_tokens=True)

    async def generate(self, prompt_ids: list[int], sampling: dict[str, Any], key: tuple[str, ...]) -> Generation:
        params = SamplingParams.from_mapping(sampling, MAX_TOKENS)
        done = await asyncio.wrap_future(self.loop.submit(Request("/".join(key), tuple(prompt_ids), params)))
        return Generation(list(done.token_ids), list(done.log_probs), done.stop_reason)


def run_workflow(
    model: Any, tokenizer: Any, workflow: Workflow, tasks: Sequence[Task], tools: Tools, greedy: bool, seed: int = 0
) -> list[Forest]:
    """One trajectory per task, all at once; in the order of `tasks`."""
    llm = ModelLLM(model, tokenizer)
    sampling = {"temperature": 0.0 if greedy else 1.0, "max_tokens": MAX_TOKENS}
    forests = [
        Forest(task, workflow, llm, tools, seed=seed * 1_000_003 + task.index, sampling=sampling, name=str(task.index))
        for task in tasks
    ]

    async def run_all() -> None:
        await asyncio.gather(*[run_once(forest) for forest in forests])

    try:
        asyncio.run(run_all())
    finally:
        llm.loop.close()
    return forests


def summary(forests: Sequence[Forest]) -> dict[str, float]:
    """Means of the metrics over finished trajectories that report them, and each agent's share of parsable calls."""
    done = [trajectory for forest in forests for trajectory in forest.trajectories if trajectory.ok]
    names = dict.fromkeys(name for t in done for name in t.metrics)
    scores = {name: fmean(t.metrics[name] for t in done if name in t.metrics) for name in names}
    calls = [call for trajectory in done for call in trajectory.calls]
    for agent in dict.fromkeys(call.agent for call in calls):
        scores[f"{agent} parsable"] = fmean(
            call.status is not Status.UNPARSABLE for call in calls if call.agent == agent
        )
    return scores | {"finished": len(done) / len(forests)}
