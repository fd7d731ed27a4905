"""Forward passes that compute common prefixes of rows once, and logits where response tokens are predicted only.

verl pads every row of a micro-batch to the longest one and computes logits for prompts, too. In multi-agent training
most tokens are prompt tokens, and most of those occur many times: an agent's rows begin with its system prompt, those
of a question go on with its passages, G outputs are sampled from one prompt. Here rows with a common prefix become one
sequence, a tree, under a mask, or, where that takes less time, block by block (tree_attention.py):

    tokens      s0 s1 p0 | a0 a1 | q0 | b0 b1       two rows that share s0 s1; each response but for its last token
    positions    0  1  2 |  3  4 |  2 |  3  4       a token sees those before it in its own row, at its own position
    ends         8  8  5 |  5  5 |  8 |  8  8       so column j is seen by columns j ... ends[j] - 1
    scored            p0 | a0 a1 | q0 | b0 b1

Trees go through the model in batches of similar length. The model's output layer gets the scored columns only.
Log-probs, entropies, values and gradients equal those of verl's padded pass up to rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from tensordict import TensorDict
from verl.utils import tensordict_utils as tu
from verl.utils.torch_functional import entropy_from_logits

from verl_ext.engine.fsdp import memory
from verl_ext.engine.fsdp.batching import Tree, batches, cheapest_number, merge_batches, share, split_rows
from verl_ext.engine.fsdp.layout import lay_out, scored_logits
from verl_ext.engine.fsdp.lighter_layers import lighten
from verl_ext.engine.fsdp.masked_logits import limited, limits_of
from verl_ext.engine.fsdp.tree_attention import NAME
from verl_ext.engine.replaced import replaced

if TYPE_CHECKING:  # the engine of verl that the mixin goes in front of
    from verl.workers.engine.fsdp.transformer_impl import FSDPEngine as Engine
else:
    Engine = object


class SharedPrefixes(Engine):
    """Mixin of a verl FSDP engine: `forward_step` as described above wherever that is possible, else verl's own.

    It can for text-only models with sdpa attention over the whole context, in fp32 or bf16, and rows that have prompts
    and responses, or are conversations with a mask of what trains (fine-tuning).
    """

    def _build_module(self) -> torch.nn.Module:
        """verl's model, with attention that reads masks and blocks in the place of `sdpa`, and lighter layers."""
        module = super()._build_module()
        lighten(module)
        config = module.config
        if getattr(config, "_attn_implementation", None) == "sdpa" and not hasattr(config, "vision_config"):
            module.set_attn_implementation(NAME)
        return module

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

        There are as many as the token limit asks for, and in training as many as is cheapest with the memory for
        activations.
        """
        prompts, responses = prompts_and_responses(data)
        trees = share(prompts, responses, self.kinds_of(data), self._reach)
        limit = tu.get_non_tensor_data(data=data, key="max_token_len_per_gpu", default=None)
        tokens = sum(map(len, trees))
        least = -(-tokens // limit)
        if trains:
            least = self._cheapest(data, trees, least)
        number = torch.tensor(least)
        if self.get_data_parallel_size() > 1:
            torch.distributed.all_reduce(number, torch.distributed.ReduceOp.MAX, group=dp_group)
        if number == 1:
            return [data], [list(range(len(data)))]
        rows = split_rows(trees, min(int(number), len(data)))
        return [tu.index_select_tensor_dict(data, part) for part in rows], rows

    def _cheapest(self, data: TensorDict, trees: list[Tree], least: int) -> int:
        """Micro-batches with which an update computes least."""
        prompts, responses = prompts_and_responses(data)
        kinds = self.kinds_of(data) or [0] * len(prompts)
        config = self.module.config.get_text_config(decoder=True)
        twice = self._footprint
        if getattr(self.module, "supports_gradient_checkpointing", False):
            twice = twice.of_layers_twice(config.num_hidden_layers, config.hidden_size)

        def shared(rows: list[int]) -> list[Tree]:
            own = [kinds[row] for row in rows]
            return share([prompts[row] for row in rows], [responses[row] for row in rows], own, self._reach)

        return cheapest_number(
            trees, shared, least, lambda part: not self._too_long(part), partial(self._fits, twice), self._reach
        )

    def forward_step(
        self, micro_batch: TensorDict, loss_function: Callable[..., Any] | None, forward_only: bool
    ) -> tuple[torch.Tensor, dict[str, Any]]:
        """verl's contract: the loss (with its graph) and {"model_output", "loss", "metrics"}.

        Model outputs are jagged like `input_ids`. Entry t belongs to token t + 1; it is 0 if that is not scored.
        """
        if not self._can_share(micro_batch):
            return super().forward_step(micro_batch, loss_function, forward_only)
        model_output = self._score(micro_batch, trains=not forward_only)
        loss, metrics = torch.tensor(1.0), {}
        if loss_function is not None:
            loss, metrics = loss_function(
                model_output=model_output, data=micro_batch, dp_group=self.get_data_parallel_group()
            )
        shown = {name: value.detach() for name, value in model_output.items()}
        return loss, {"model_output": shown, "loss": loss.detach().item(), "metrics": metrics}

    @cached_property
    def _footprint(self) -> memory.Footprint:
        """Measured at the first update; all ranks come here together."""

        def forward(tokens: int, scored: int) -> object:
            layout = lay_out(share([[1] * (tokens - scored)], [[1] * scored]), pad=0)
            with self.forward_pass([0]):
                with self._precision():
                    logits = scored_logits(self.module, layout)
                return self.response_outputs(logits, layout.labels, torch.ones(scored), entropy=True)

        return memory.measure(forward)

    @cached_property
    def _budget(self) -> float:
        """Bytes that a micro-batch of this rank may keep; chosen, and logged, at the first update."""
        ranks, free = self.get_data_parallel_size(), memory.available_memory()
        own = memory.still_to_come([*self.module.parameters()], self.optimizer)
        chosen = memory.budget(memory.machine_memory(), ranks, max(0, free - ranks * own))
        memory.report(self._footprint, chosen, free)
        return chosen

    @property
    def _reach(self) -> int:
        """See `share`; measured with 135M parameters, bf16: 1,500 keys forward, 1,800 with the backward pass."""
        return 3 * self.module.config.get_text_config(decoder=True).hidden_size

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
            and getattr(config, "_attn_implementation", None) in ("sdpa", NAME)
            and self._autocast_dtype in (torch.float32, torch.bfloat16)
        )

    def _too_long(self, trees: list[Tree]) -> bool:
        """Whether a micro-batch keeps more than it may, unless its layers are computed twice."""
        return not self._fits(self._footprint, trees)

    def _fits(self, footprint: memory.Footprint, trees: list[Tree]) -> bool:
        scored = sum(len(response) for tree in trees for _, _, response in tree.rows)
        return footprint.of(sum(map(len, trees)), scored) <= memory.SLACK * self._budget

    def _score(self, micro_batch: TensorDict, trains: bool) -> dict[str, torch.Tensor]:
        """Model outputs of all rows, each (total tokens,) jagged."""
        ids = micro_batch["input_ids"]
        prompts, responses = prompts_and_responses(micro_batch)
        starts, prompt_lengths = ids.offsets()[:-1], torch.tensor([len(prompt) for prompt in prompts])
        trees = share(prompts, responses, self.kinds_of(micro_batch), self._reach)
        temperature = torch.as_tensor(micro_batch["temperature"], dtype=torch.float32).expand(len(prompt_lengths))
        entropy = tu.get_non_tensor_data(data=micro_batch, key="calculate_entropy", default=False)
        pad = tu.get_non_tensor_data(data=micro_batch, key="pad_token_id", default=0)
        places, parts = [], []
        for batch in self._in_step(batches(trees)):
            batch.sort(key=lambda tree: tree.kind)
            layout = lay_out(batch, pad)
            again = memory.recomputing(self.module, trains and self._too_long(trees), self.checkpoint_options())
            with self.forward_pass([tree.kind for tree in batch]), self._precision(), again:
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
        """A context for the forward pass of a batch; `kinds`: of its trees, in ascending order."""
        return nullcontext()

    def checkpoint_options(self) -> dict[str, Any]:
        """Options of torch.utils.checkpoint for layers that are computed twice."""
        return {"use_reentrant": False}

    def _in_step(self, own: list[list[Tree]]) -> list[list[Tree]]:
        """Merge batches until every rank has the same number: FSDP gathers parameters in each forward pass."""
        if self.get_data_parallel_size() == 1:
            return own
        number = torch.tensor(len(own))
        torch.distributed.all_reduce(number, torch.distributed.ReduceOp.MIN, group=self.get_data_parallel_group())
        return merge_batches(own, int(number))


class SharedPrefixesLM(SharedPrefixes):
    """Actor and reference model: log-probs and entropies; those of decisions are over allowed tokens only."""

    def limited(
        self, logits: torch.Tensor, micro_batch: TensorDict, scored: torch.Tensor, starts: torch.Tensor
    ) -> torch.Tensor:
        """See `SharedPrefixes.limited`."""
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


class SharedPrefixesValue(SharedPrefixes):
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
