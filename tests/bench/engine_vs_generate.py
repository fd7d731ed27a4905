"""Our engine against `transformers.generate()` on the same multi-agent load, tokens per second.

Load: 16 questions, 4 trajectories each, three agents in a row (rewriter, reranker, answerer). The 4 trajectories of a
question start from one prompt; a trajectory's next call exists when its previous one has ended; answers are as long as
drawn from a log-normal per agent (median 20, 6, 24 tokens), the same lengths for both sides.

`generate()` gets the best static batching a user would write: whenever a batch has ended, all calls that exist by then
form the next one, left-padded, temperature 1 without filters, and a stopping criterion ends every row at its own length
(the batch still runs until its longest row ends). It returns no log-probs; our engine does.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from transformers import PreTrainedModel, Qwen2Config, Qwen2ForCausalLM, StoppingCriteria

from verl_ext.engine.hf.params import Request, SamplingParams
from verl_ext.engine.hf.slots import SlotEngine

FLOOR = 1.5
QUESTIONS, TRAJECTORIES, CONTEXT = 16, 4, 512
AGENTS = ((48, 20, 0.6), (120, 6, 0.3), (96, 24, 0.8))  # prompt length about, median and spread of the answer's length
MODELS = {
    "tiny (0.1M)": {"vocab_size": 512, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
    | {"num_attention_heads": 2, "num_key_value_heads": 1},
    "small (9.4M)": {"vocab_size": 4096, "hidden_size": 384, "intermediate_size": 1024, "num_hidden_layers": 5}
    | {"num_attention_heads": 12, "num_key_value_heads": 4},
}


@dataclass(frozen=True)
class Call:
    """One agent call of one trajectory."""

    trajectory: int
    agent: int
    prompt: tuple[int, ...]
    new_tokens: int


def load(vocab_size: int, seed: int = 0) -> list[list[Call]]:
    """Per trajectory its calls, in order."""
    rng = random.Random(seed)

    def prompt(length: int) -> tuple[int, ...]:
        return tuple(rng.randrange(2, vocab_size) for _ in range(rng.randint(int(0.75 * length), int(1.25 * length))))

    trajectories = []
    for _ in range(QUESTIONS):
        first = prompt(AGENTS[0][0])
        for _ in range(TRAJECTORIES):
            prompts = [first] + [prompt(length) for length, _, _ in AGENTS[1:]]
            lengths = [max(2, min(128, round(median * rng.lognormvariate(0, s)))) for _, median, s in AGENTS]
            calls = zip(prompts, lengths, strict=True)
            trajectories.append([Call(len(trajectories), agent, *call) for agent, call in enumerate(calls)])
    return trajectories


def ours(model: PreTrainedModel, trajectories: list[list[Call]]) -> Callable[[], int]:
    """Calls join the running batch as soon as they exist."""
    return ours_with_engine(model, trajectories, CONTEXT)[0]


def ours_with_engine(
    model: PreTrainedModel, trajectories: list[list[Call]], context: int
) -> tuple[Callable[[], int], SlotEngine]:
    """As `ours`, and the engine that it uses."""
    engine = SlotEngine(model, slots=len(trajectories), max_model_len=context)

    def request(call: Call) -> Request:
        seed = call.trajectory * len(AGENTS) + call.agent
        return Request(str(seed), call.prompt, SamplingParams(call.new_tokens, seed=seed, ignore_eos=True))

    def run() -> int:
        tokens = 0
        for calls in trajectories:
            engine.add(request(calls[0]))
        while engine.busy:
            for done in engine.step():
                tokens += len(done.token_ids)
                trajectory, agent = divmod(int(done.request.request_id), len(AGENTS))
                if agent + 1 < len(AGENTS):
                    engine.add(request(trajectories[trajectory][agent + 1]))
        return tokens

    return run, engine


class _EachRowItsLength(StoppingCriteria):
    def __init__(self, prompt_length: int, new_tokens: list[int]) -> None:
        self.ends = prompt_length + torch.tensor(new_tokens)

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor, **kwargs: object) -> torch.Tensor:
        return self.ends <= input_ids.shape[1]


def theirs(model: PreTrainedModel, trajectories: list[list[Call]], batch: int) -> Callable[[], int]:
    """Static batches of the calls that exist, at most `batch` at a time."""

    def generate(calls: list[Call]) -> None:
        width = max(len(call.prompt) for call in calls)
        ids = torch.tensor([(0,) * (width - len(call.prompt)) + call.prompt for call in calls])
        lengths = [call.new_tokens for call in calls]
        model.generate(
            ids,
            attention_mask=(ids > 0).long(),
            do_sample=True,
            top_k=0,
            max_new_tokens=max(lengths),
            stopping_criteria=[_EachRowItsLength(width, lengths)],
            pad_token_id=0,
        )

    def run() -> int:
        ready = [calls[0] for calls in trajectories]
        while ready:
            now, ready = ready[:batch], ready[batch:]
            generate(now)
            ready += [trajectories[c.trajectory][c.agent + 1] for c in now if c.agent + 1 < len(AGENTS)]
        return sum(call.new_tokens for calls in trajectories for call in calls)

    return run


def speeds(runs: list[Callable[[], int]], repeats: int) -> list[float]:
    """Best tokens per second of each, measured in turns.

    In CPU time of this process: with one thread that is the wall-clock time on an idle machine, and the figure does not
    change when other programs run.
    """
    best = [0.0] * len(runs)
    for _ in range(repeats):
        for index, run in enumerate(runs):
            start = time.process_time()
            tokens = run()
            best[index] = max(best[index], tokens / (time.process_time() - start))
    return best


def run() -> list[dict[str, str | float]]:
    """One row per model: name, ours and theirs in tokens/s (one thread), their ratio and its floor."""
    rows: list[dict[str, str | float]] = []
    torch.set_num_threads(1)
    for name, shape in MODELS.items():
        torch.manual_seed(0)
        config = Qwen2Config(**shape, max_position_embeddings=CONTEXT, tie_word_embeddings=True, eos_token_id=None)
        config.bos_token_id = None
        plain, slots = Qwen2ForCausalLM(config).eval(), Qwen2ForCausalLM(config).eval()
        trajectories = load(config.vocab_size)
        everything = QUESTIONS * TRAJECTORIES
        us, *them = speeds(
            [
                ours(slots, trajectories),
                theirs(plain, trajectories, everything),
                theirs(plain, trajectories, everything // 2),
            ],
            repeats=3 if "tiny" in name else 2,
        )
        rows.append(
            {
                "model": name,
                "ours tokens/s": us,
                "generate() tokens/s": max(them),
                "ratio": us / max(them),
                "floor": FLOOR,
            }
        )
    return rows


if __name__ == "__main__":
    for row in run():
        print(row)
