"""(m) Finding ToolPO's M: the tokens of tool calls and folds in 1,000 sequences of 8,192 generated tokens.

Generated outputs: reasoning in words, a hundredth of them not ASCII, and a search, a call or a fold at the end of each,
as generation stops there: 16 outputs of some 512 tokens in a sequence. A byte-level BPE with Qwen2's pre-tokenizer,
made here of such text. What a rollout does for each output is measured: `Agent.actions` on its text, `ServedLLM.locate`
for its tokens. CPU time of one thread. Every token is one that the agent said; of results nothing is looked at.

The floor is one look at each token: joining the bytes of all of them and searching a tag in them. The share is of a
forward and backward pass of the tiny recipe's model over the same sequences, the least that a training step on them
takes; a few of them are measured. Beside it the tiny recipe's own size, over a step of part (e).
"""

from __future__ import annotations

import json
import random
import time
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast, Qwen2Tokenizer

from verl_ext.plugin import package_path
from verl_ext.recipe.deepagent import DeepAgent, grammar
from verl_ext.trainer.rollout.llm import ServedLLM

SEQUENCES, OUTPUTS, TOKENS = 1_000, 16, 512  # tokens of an output
KINDS = 40  # different sequences; the 1,000 are these again and again
TINY = 128  # trajectories of a step of the tiny recipe, each of at most as many tokens


@dataclass(frozen=True)
class Output:
    """What an agent said: its tokens, their text, and its action (None: a search, which M leaves out)."""

    ids: list[int]
    text: str
    action: str | None


def words(rng: random.Random, count: int) -> str:
    """Reasoning of so many words."""
    made = [
        f"{rng.choice('bdfgklmnprst')}{rng.choice('aeiou')}{rng.choice('lnrst')}{rng.randint(0, 9)}" for _ in range(8)
    ]
    some = [*made, "the", "of", "so", "then", "tool", "needs", "an", "id,", "which", "I", "look", "up."]
    return " ".join("façade 日本" if rng.random() < 0.01 else rng.choice(some) for _ in range(count))


def action(rng: random.Random) -> str:
    """A search, a call or a fold."""
    what = rng.random()
    if what < 0.3:
        return f"<{grammar.SEARCH}> {words(rng, 6)} </{grammar.SEARCH}>"
    if what > 0.95:
        return f"<{grammar.FOLD}>"
    arguments = {"query": words(rng, 4), "page": rng.randint(1, 9)}
    said = json.dumps({"name": f"GET /{words(rng, 1)}/{{id}}", "arguments": arguments}, ensure_ascii=False)
    return f"<{grammar.CALL}> {said} </{grammar.CALL}>"


def tokenizer(rng: random.Random) -> PreTrainedTokenizerFast:
    """Byte-level BPE of 4,096 tokens; tags are cut into several."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer, made.decoder = Qwen2Tokenizer().backend_tokenizer.pre_tokenizer, decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=4096, special_tokens=["<|im_end|>"], initial_alphabet=alphabet, show_progress=False
    )
    made.train_from_iterator((f"{words(rng, 300)} {action(rng)}" for _ in range(200)), trainer)
    return PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<|im_end|>")


def outputs(coder: Any, rng: random.Random, tokens: int) -> list[Output]:
    """The outputs of one sequence, each of `tokens` tokens or a few less."""
    made = []
    for _ in range(OUTPUTS):
        last = action(rng)
        tail = coder.encode(f" {last}", add_special_tokens=False)
        room = tokens - len(tail) - 1
        ids = [*coder.encode(words(rng, tokens), add_special_tokens=False)[:room], *tail, coder.eos_token_id]
        text = coder.decode(ids, skip_special_tokens=True)
        made.append(Output(ids, text, None if last.startswith(f"<{grammar.SEARCH}") else last))
    return made


def find(workflow: DeepAgent, llm: ServedLLM, said: list[Output]) -> list[list[tuple[int, int]]]:
    """Ranges of tokens of the actions of each output, as a rollout finds them."""
    actions = workflow.agents["agent"].actions
    return [llm.locate(output.ids, output.text, actions(output.text)) for output in said]


def check(coder: Any, said: list[Output], found: list[list[tuple[int, int]]]) -> None:
    """What was found decodes to the action, and to nothing besides but for a blank in its first token."""
    for output, spans in zip(said, found, strict=True):
        marked = [coder.decode(output.ids[first:stop]).strip() for first, stop in spans]
        assert marked == ([output.action] if output.action else []), (marked, output.action)


def floor(pieces: dict[int, bytes], said: list[Output]) -> int:
    """One look at every token."""
    return sum(b"</" in b"".join([pieces[token] for token in output.ids]) for output in said)


def passes(sequences: int, length: int) -> float:
    """Seconds of CPU time of a forward and backward pass over so many sequences, from two of them."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_pretrained(
        package_path("recipe/deepagent/assets/tiny_model"), attn_implementation="sdpa", max_position_embeddings=length
    )
    ids = torch.randint(6, 500, (1, length))
    spent = []
    for _ in range(2):
        start = time.process_time()
        logits = model(input_ids=ids, use_cache=False).logits
        F.cross_entropy(logits[0, :-1], ids[0, 1:]).backward()
        spent.append(time.process_time() - start)
    return min(spent) * sequences


def run(per_step: float | None = None, sequences: int = SEQUENCES, tokens: int = TOKENS) -> list[str]:
    """Lines.

    Args:
        per_step: seconds of a step of the tiny training run, part (e); None leaves its line out.
        sequences, tokens: how many sequences, and tokens of each of their outputs.
    """
    rng = random.Random(0)
    coder, workflow = tokenizer(rng), DeepAgent()
    llm = ServedLLM(coder, client=None)
    kinds = [outputs(coder, rng, tokens) for _ in range(min(KINDS, sequences))]
    for said in kinds:
        check(coder, said, find(workflow, llm, said))
    pieces = {token: bytes(llm._bytes._look_up(token)) for token in range(len(coder))}
    start = time.process_time()
    for number in range(sequences):
        find(workflow, llm, kinds[number % len(kinds)])
    ours = time.process_time() - start
    start = time.process_time()
    for number in range(sequences):
        floor(pieces, kinds[number % len(kinds)])
    least = time.process_time() - start
    length = OUTPUTS * tokens
    step, total = passes(sequences, length), sequences * length
    lines = [
        f"  {sequences:,} sequences of {length:,} tokens: {ours:.2f} s, {1e9 * ours / total:.0f} ns a token; "
        f"the floor {least:.2f} s: {ours / least:.1f} x",
        f"  forward and backward pass over them, 0.8M parameters, from two of them: {step:,.0f} s; "
        f"M is {100 * ours / step:.3f} % of it (limit 1 %)",
    ]
    if per_step:
        tiny = ours / total * TINY * TINY
        lines.append(
            f"  at the tiny recipe's size, {TINY} trajectories of {TINY} tokens: {1e3 * tiny:.1f} ms, "
            f"{100 * tiny / per_step:.2f} % of a step of (e)"
        )
    return lines


if __name__ == "__main__":
    torch.set_num_threads(1)
    print("\n".join(run()))
