"""Forward passes that compute a prompt once for all of its rows, and logits for response tokens only.

verl pads every row of a micro-batch to the longest one and computes logits for prompts, too. In group-relative training
most tokens are prompt tokens, and the same prompt occurs many times: G outputs are sampled from one prompt, and similar
outputs of one agent lead to the same prompt of the next agent. Here rows with equal prompts become one sequence under a
tree mask:

    tokens      p0 p1 p2 | a0 a1 | b0 b1 b2         prompt, then each response but for its last token
    positions    0  1  2 |  3  4 |  3  4  5         a response sees the prompt and itself, at its own positions
    scored            p2 | a0 a1 | b0 b1 b2         p2 twice: it predicts the first token of each response

Sequences go through the model in batches of similar length. They are padded on the left, so the scored positions are
the last columns. Log-probs, entropies, values and gradients equal those of verl's padded pass up to rounding.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from tensordict import TensorDict
from verl.utils import tensordict_utils as tu
from verl.utils.torch_functional import entropy_from_logits

from verl_ext.engine.fsdp.batching import Shared, batches, merge_batches, share, split_rows
from verl_ext.engine.fsdp.masked_logits import limited, limits_of
from verl_ext.engine.fsdp.memory import Footprint, budget, machine_memory, measure
from verl_ext.engine.replaced import replaced

if TYPE_CHECKING:  # the engine of verl that the mixin goes in front of
    from verl.workers.engine.fsdp.transformer_impl import FSDPEngine as Engine
else:
    Engine = object


@dataclass
class Layout:
    """A batch of B sequences as the model's inputs, padded on the left to the longest, L.

    input_ids, position_ids: (B, L). attention_mask: (B, 1, L, L) bool, True = attends; None = plainly causal.
    tail: the last `tail` columns hold all scored positions.
    scored: (T,) indices into the flattened tail (B * tail), one per response token.
    labels: (T,) the response tokens. rows, offsets: (T,) the row of each, and its place in the response of that row.
    """

    input_ids: torch.Tensor
    position_ids: torch.Tensor
    attention_mask: torch.Tensor | None
    tail: int
    scored: torch.Tensor
    labels: torch.Tensor
    rows: torch.Tensor
    offsets: torch.Tensor


def lay_out(sequences: Sequence[Shared], pad: int) -> Layout:
    """The model's inputs for one batch; `pad` is any token id."""
    lengths = [len(sequence) for sequence in sequences]
    width = max(lengths)
    tail = 1 + max(length - len(sequence.prompt) for length, sequence in zip(lengths, sequences, strict=True))
    ids, positions, parts, scored, labels, rows, offsets = ([] for _ in range(7))
    for number, (length, sequence) in enumerate(zip(lengths, sequences, strict=True)):
        margin, before = width - length, len(sequence.prompt)
        line, place, part = [pad] * margin + sequence.prompt, [0] * margin + list(range(before)), [-1] * margin
        part += [0] * before
        base = number * tail + tail - width  # column c of this sequence is base + c in the flattened tail
        for branch, (row, tokens) in enumerate(sequence.responses, start=1):
            new = len(tokens) - 1
            scored += [base + margin + before - 1, *range(base + len(line), base + len(line) + new)]
            line, place = line + tokens[:-1], place + list(range(before, before + new))
            part += [branch] * new
            labels += tokens
            rows += [row] * len(tokens)
            offsets += range(len(tokens))
        ids.append(line)
        positions.append(place)
        parts.append(part)
    plain = min(lengths) == width and all(len(sequence.responses) == 1 for sequence in sequences)
    mask = None if plain else tree_mask(torch.tensor(parts))
    flat = [torch.tensor(values) for values in (scored, labels, rows, offsets)]
    return Layout(torch.tensor(ids), torch.tensor(positions), mask, tail, *flat)


def tree_mask(parts: torch.Tensor) -> torch.Tensor:
    """(B, 1, L, L) bool from (B, L) part numbers: -1 padding, 0 prompt, 1, 2, … responses.

    A token sees what precedes it in the prompt and in its own part, and itself: no row is empty, which would be nan.
    """
    query, key = parts[:, :, None], parts[:, None, :]
    length = parts.shape[1]
    past = torch.ones(length, length, dtype=torch.bool).tril()
    itself = torch.eye(length, dtype=torch.bool)
    return ((((key == 0) | (key == query)) & (key >= 0) & past) | itself)[:, None]


def scored_logits(model: torch.nn.Module, layout: Layout) -> torch.Tensor:
    """(T, vocabulary), or (T, 1) of a critic: the model's output where it predicts the layout's response tokens."""
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model  # peft's takes any keyword
    tail = {"logits_to_keep": layout.tail} if "logits_to_keep" in inspect.signature(inner.forward).parameters else {}
    output = model(
        input_ids=layout.input_ids,
        attention_mask=layout.attention_mask,
        position_ids=layout.position_ids,
        use_cache=False,
        **tail,
    )
    # Not `[layout.scored]`: responses share the end of their prompt, and the backward pass of indexing adds such
    # repetitions up in whatever order the threads come (parallel atomic additions); that of index_select does not.
    return output.logits[:, -layout.tail :].flatten(0, 1).index_select(0, layout.scored)


class SharedPrompts(Engine):
    """Mixin of a verl FSDP engine: `forward_step` as described above wherever that is possible, else verl's own.

    It can for text-only models with sdpa attention over the whole context, in fp32 or bf16, and rows that have prompts
    and responses, or are conversations with a mask of what trains (fine-tuning).
    """

    def forward_backward_batch(
        self, data: TensorDict, loss_function: Callable[..., Any] | None, forward_only: bool = False
    ) -> Any:
        """As verl's method, but rows of one prompt share a micro-batch, whose token limit counts their prompt once.

        verl assigns rows to micro-batches by length alone, which separates rows of one prompt.
        """
        dynamic = tu.get_non_tensor_data(data=data, key="use_dynamic_bsz", default=True)
        if not (dynamic and self._can_share(data)):
            return super().forward_backward_batch(data, loss_function, forward_only)
        from verl.workers.engine.fsdp import transformer_impl  # not at the top: it imports this module itself

        split = partial(self._micro_batches, trains=not forward_only)
        with replaced(transformer_impl, prepare_micro_batches=split):
            return super().forward_backward_batch(data, loss_function, forward_only)

    def _micro_batches(
        self, data: TensorDict, dp_group: Any, trains: bool = False, **_: Any
    ) -> tuple[list[TensorDict], list[list[int]]]:
        """As verl's prepare_micro_batches: the micro-batches, equally many on every rank, and the rows of each.

        There are as many as the token limit asks for, and in training as the memory for activations asks for.
        """
        prompts, responses = prompts_and_responses(data)
        sequences = share(prompts, responses, self.kinds_of(data))
        limit = tu.get_non_tensor_data(data=data, key="max_token_len_per_gpu", default=None)
        tokens = sum(map(len, sequences))
        least = -(-tokens // limit)
        if trains:
            least = max(least, math.ceil(self._footprint.of(tokens, sum(map(len, responses))) / self._budget))
        number = torch.tensor(least)
        if self.get_data_parallel_size() > 1:
            torch.distributed.all_reduce(number, torch.distributed.ReduceOp.MAX, group=dp_group)
        if number == 1:
            return [data], [list(range(len(data)))]
        rows = split_rows(sequences, min(int(number), len(data)))
        return [tu.index_select_tensor_dict(data, part) for part in rows], rows

    def forward_step(
        self, micro_batch: TensorDict, loss_function: Callable[..., Any] | None, forward_only: bool
    ) -> tuple[torch.Tensor, dict[str, Any]]:
        """verl's contract: the loss (with its graph) and {"model_output", "loss", "metrics"}.

        Model outputs are jagged like `input_ids`. Entry t belongs to token t + 1; it is 0 if that is not scored.
        """
        if not self._can_share(micro_batch):
            return super().forward_step(micro_batch, loss_function, forward_only)
        model_output = self._score(micro_batch)
        loss, metrics = torch.tensor(1.0), {}
        if loss_function is not None:
            loss, metrics = loss_function(
                model_output=model_output, data=micro_batch, dp_group=self.get_data_parallel_group()
            )
        shown = {name: value.detach() for name, value in model_output.items()}
        return loss, {"model_output": shown, "loss": loss.detach().item(), "metrics": metrics}

    @cached_property
    def _footprint(self) -> Footprint:
        """Measured at the first update; all ranks come here together."""

        def forward(tokens: int, scored: int) -> object:
            ids = [1] * tokens
            batch = [Shared(ids[: tokens - scored], [(0, ids[tokens - scored :])])]
            with self.forward_pass([0]):
                layout = lay_out(batch, pad=0)
                with self._precision():
                    logits = scored_logits(self.module, layout)
                return self.response_outputs(logits, layout.labels, torch.ones(scored), entropy=True)

        return measure(forward)

    @property
    def _budget(self) -> float:
        return budget(machine_memory(), self.get_data_parallel_size())

    def _precision(self) -> AbstractContextManager[Any]:
        """As verl's forward_step: what the engine's mixed precision says."""
        if self._autocast_dtype == torch.float32:
            return nullcontext()
        return torch.autocast(device_type="cpu", dtype=self._autocast_dtype)

    def _can_share(self, micro_batch: TensorDict) -> bool:
        """Whether this batch can share prompts. All ranks agree: it depends on configuration and columns only."""
        config = self.module.config.get_text_config(decoder=True)
        # A model without layer types has one kind of layer, which a window makes local.
        window = getattr(config, "sliding_window", None)
        kinds = set(getattr(config, "layer_types", None) or ["sliding_attention" if window else "full_attention"])
        keys = set(micro_batch.keys())
        asked = ("use_fused_kernels", "distillation_use_topk", "distillation_only", "calculate_sum_pi_squared")
        return (
            ({"prompts", "responses"} <= keys or ("loss_mask" in keys and micro_batch["loss_mask"].is_nested))
            and micro_batch["position_ids"].dim() == 2
            and not any(tu.get_non_tensor_data(data=micro_batch, key=key, default=False) for key in asked)
            and kinds == {"full_attention"}
            and not hasattr(self.module.config, "vision_config")
            and getattr(config, "_attn_implementation", None) == "sdpa"
            and self._autocast_dtype in (torch.float32, torch.bfloat16)
        )

    def _score(self, micro_batch: TensorDict) -> dict[str, torch.Tensor]:
        """Model outputs of all rows, each (total tokens,) jagged."""
        ids = micro_batch["input_ids"]
        prompts, responses = prompts_and_responses(micro_batch)
        starts, prompt_lengths = ids.offsets()[:-1], torch.tensor([len(prompt) for prompt in prompts])
        sequences = share(prompts, responses, self.kinds_of(micro_batch))
        temperature = torch.as_tensor(micro_batch["temperature"], dtype=torch.float32).expand(len(prompt_lengths))
        entropy = tu.get_non_tensor_data(data=micro_batch, key="calculate_entropy", default=False)
        pad = tu.get_non_tensor_data(data=micro_batch, key="pad_token_id", default=0)
        places, parts = [], []
        for batch in self._in_step(batches(sequences)):
            batch.sort(key=lambda sequence: sequence.kind)
            layout = lay_out(batch, pad)
            with self.forward_pass([sequence.kind for sequence in batch]), self._precision():
                logits = scored_logits(self.module, layout)
            scored = (starts + prompt_lengths - 1)[layout.rows] + layout.offsets
            logits = self.limited(logits, micro_batch, scored, starts + prompt_lengths - 1)
            parts.append(self.response_outputs(logits, layout.labels, temperature[layout.rows], entropy))
            places.append(scored)
        place, empty = torch.cat(places), torch.zeros(ids.values().shape[0])
        return {
            name: torch.nested.nested_tensor_from_jagged(
                empty.index_copy(0, place, torch.cat([part[name] for part in parts])), ids.offsets()
            )
            for name in parts[0]
        }

    def kinds_of(self, micro_batch: TensorDict) -> list[int] | None:
        """The kind of each row; rows of different kinds do not share a prompt. None: all rows are of one kind."""
        return None

    def limited(
        self, logits: torch.Tensor, micro_batch: TensorDict, scored: torch.Tensor, starts: torch.Tensor
    ) -> torch.Tensor:
        """Logits (T, …) of the flat places `scored` (T,), without the tokens that their rows do not allow there.

        Args:
            starts: (B,) flat place of each row's first response token.
        """
        return logits

    def forward_pass(self, kinds: list[int]) -> AbstractContextManager[None]:
        """A context for the forward pass of a batch; `kinds`: of its sequences, in ascending order."""
        return nullcontext()

    def _in_step(self, own: list[list[Shared]]) -> list[list[Shared]]:
        """Merge batches until every rank has the same number: FSDP gathers parameters in each forward pass."""
        if self.get_data_parallel_size() == 1:
            return own
        number = torch.tensor(len(own))
        torch.distributed.all_reduce(number, torch.distributed.ReduceOp.MIN, group=self.get_data_parallel_group())
        return merge_batches(own, int(number))


class SharedPromptsLM(SharedPrompts):
    """Actor and reference model: log-probs and entropies; those of decisions are over allowed tokens only."""

    def limited(
        self, logits: torch.Tensor, micro_batch: TensorDict, scored: torch.Tensor, starts: torch.Tensor
    ) -> torch.Tensor:
        """See `SharedPrompts.limited`."""
        places, tokens = limits_of(micro_batch, starts)
        if not len(places):
            return logits
        index = torch.full((int(max(places.max(), scored.max())) + 1,), -1).index_copy(
            0, scored, torch.arange(len(scored))
        )
        here = index[places] >= 0  # the other places belong to other batches
        return limited(logits, index[places][here], tokens[here])

    def response_outputs(
        self, logits: torch.Tensor, labels: torch.Tensor, temperature: torch.Tensor, entropy: bool
    ) -> dict[str, torch.Tensor]:
        """`log_probs` (T,), and `entropy` (T,) if `entropy` is set, of logits (T, V) at temperatures (T,)."""
        logits = logits.float() / temperature[:, None]
        outputs = {"log_probs": -F.cross_entropy(logits, labels, reduction="none")}
        return outputs | ({"entropy": entropy_from_logits(logits)} if entropy else {})


class SharedPromptsValue(SharedPrompts):
    """Critic: values."""

    def response_outputs(
        self, logits: torch.Tensor, labels: torch.Tensor, temperature: torch.Tensor, entropy: bool
    ) -> dict[str, torch.Tensor]:
        """`values` (T,) of the head's output (T, 1)."""
        return {"values": logits.float()[:, 0]}


def prompts_and_responses(data: TensorDict) -> tuple[list[list[int]], list[list[int]]]:
    """Of each row what is read and what is predicted.

    Conversations of fine-tuning have a mask instead: they are read up to the first token that trains, and predicted up
    to the last one. One without such a token predicts its last, which the loss leaves out.
    """
    if "prompts" in data.keys():
        return _lists(data["prompts"]), _lists(data["responses"])
    prompts, responses = [], []
    for ids, mask in zip(_lists(data["input_ids"]), _lists(data["loss_mask"]), strict=True):
        places = [place for place, trains in enumerate(mask) if trains and place]
        first, last = (places[0], places[-1]) if places else (len(ids) - 1, len(ids) - 1)
        prompts.append(ids[:first])
        responses.append(ids[first : last + 1])
    return prompts, responses


def _lists(jagged: torch.Tensor) -> list[list[int]]:
    """The rows of a jagged tensor of token ids."""
    return [part.tolist() for part in jagged.values().split(jagged.offsets().diff().tolist())]
