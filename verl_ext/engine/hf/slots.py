"""Continuous batching over KV slots under the unchanged Hugging Face forward of any causal LM.

Requests join and leave the running batch between two tokens. That is what multi-agent rollouts need: many short calls
of different length, and a call can start only when the calls before it have ended. In a static batch every row waits
for the longest one.

A request's life: `add` -> waiting -> admitted (its prompt but for the last token is prefilled into a slot, or copied
from slots that hold the same prompt or a prefix of it) -> one token per `step` -> `Finished`, and the last slot moves
into the hole. The last prompt token is fed by the request's first decode step, so prefill needs no logits and
tokens are sampled in one place.

Not here: threads (loop.py), Ray and verl (server.py, replica.py), paging, tensor parallelism.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping

import torch
from transformers import PreTrainedModel

from verl_ext.engine.hf.admission import Job, plan
from verl_ext.engine.hf.cache import ATTENTION, SlotCache, round_up
from verl_ext.engine.hf.packed_weights import pack, unpack
from verl_ext.engine.hf.params import Finished, Request
from verl_ext.engine.hf.passes import Passes
from verl_ext.engine.hf.prefixes import Held, Left, as_bytes, shared_from
from verl_ext.engine.hf.selfcheck import check_model, require_full_attention
from verl_ext.engine.hf.slot_table import SlotTable, View
from verl_ext.engine.hf.stats import Stats
from verl_ext.engine.hf.stops import StopStrings
from verl_ext.engine.hf.weights import matched_tensors

PATIENCE = 4  # decode steps that waiting requests wait, at most, for company in their prefill


class SlotEngine:
    """Runs requests on one model. Not thread-safe: one thread calls it (see loop.py).

    Args:
        model: causal LM on its device and in its precision; from here on the engine's own (its attention function and
            linear layers are replaced, see cache.py and packed_weights.py; `load_weights` changes its parameters).
        slots: requests that run at the same time, at most.
        max_model_len: context limit in tokens, prompt and answer together.
        eos_token_ids: the model's own end tokens.
        decode: token ids -> text, for requests with stop strings.

    Raises:
        ValueError: the architecture does not fit (sliding windows shorter than the context, no key-value cache, or a
            forward pass that gives other numbers through the slots than without).
    """

    def __init__(
        self,
        model: PreTrainedModel,
        slots: int,
        max_model_len: int,
        eos_token_ids: Iterable[int] = (),
        decode: Callable[[list[int]], str] | None = None,
    ) -> None:
        self.model = model.eval()
        self.slots, self.max_model_len = slots, max_model_len
        self.eos_token_ids = tuple(dict.fromkeys(int(token) for token in eos_token_ids))
        config = model.config.get_text_config(decoder=True)
        require_full_attention(config, max_model_len)
        self.vocab_size = config.vocab_size
        self.device = model.device
        self.model.set_attn_implementation(ATTENTION)
        pack(self.model)
        self.cache = SlotCache(config.num_hidden_layers, slots, max_model_len)
        self.table = SlotTable(self.device)
        self._stops = StopStrings(decode, self.vocab_size, self.device) if decode else None
        self.waiting: deque[Job] = deque()
        self.active: list[Job] = []  # in slot order: active[i] runs in slot i
        self.version: int | None = None  # of the weights; stamped on every result
        self._left = Left()
        # Tokens that prompts must have in common to share them; None: only whole prompts are shared.
        self.share_from = shared_from(model.num_parameters(exclude_embeddings=True), max_model_len)
        self._view: View | None = None
        self._steps = self._last_admission = 0
        # Token positions, and row numbers: there may be more slots than positions.
        self._positions = torch.arange(max(round_up(max_model_len), slots), device=self.device)
        self._passes = Passes(model, self.cache, self._positions, max_model_len)
        self.stats = Stats()
        check_model(self)
        unpack(self.model)
        self.cache.drop()
        self.stats = Stats()

    # -- requests in and out ------------------------------------------------------------------------------------------

    def add(self, request: Request) -> None:
        """Queue a request; one of the next steps admits it.

        Raises:
            ValueError: an empty prompt, a prompt that leaves no room for an answer, or a token id out of range.
        """
        prompt, params = request.prompt_ids, request.params
        if not prompt:
            raise ValueError(f"request {request.request_id}: the prompt is empty")
        if len(prompt) >= self.max_model_len:
            raise ValueError(
                f"request {request.request_id}: a prompt of {len(prompt)} tokens leaves no room for an answer within "
                f"max_model_len={self.max_model_len}; shorten the prompt or raise rollout.max_model_len"
            )
        for name, tokens in (("token ids", prompt), ("allowed_token_ids", params.allowed_token_ids)):
            if tokens and not 0 <= min(tokens) <= max(tokens) < self.vocab_size:
                raise ValueError(
                    f"request {request.request_id}: {name} must be in [0, {self.vocab_size}), "
                    f"got {min(tokens)}..{max(tokens)}"
                )
        if params.stop:
            if self._stops is None:
                raise ValueError(f"request {request.request_id}: stop strings need an engine with a tokenizer")
            self._stops.learn(params.stop)
        stop = params.stop_token_ids if params.ignore_eos else self.eos_token_ids + params.stop_token_ids
        limit = min(params.max_tokens, self.max_model_len - len(prompt))
        self.waiting.append(Job(request, tuple(dict.fromkeys(stop)), limit))
        self.stats.requests += 1
        self.stats.prompt_tokens += len(prompt)

    @property
    def busy(self) -> bool:
        """Whether a `step` would do something."""
        return bool(self.active or self.waiting)

    @torch.inference_mode()
    def step(self) -> list[Finished]:
        """Admit waiting requests, give every running one a token, and return those that have ended.

        Raises:
            Exception: whatever the forward pass raises; the caller must then `reset`.
        """
        start = time.perf_counter()
        try:
            self._admit()
            return self._decode() if self.active else []
        finally:
            self.stats.busy_seconds += time.perf_counter() - start

    def generate(self, requests: Iterable[Request]) -> list[Finished]:
        """Run requests to their ends; results in the order of the requests. The engine must be idle."""
        assert not self.busy, "generate() needs an idle engine"
        ordered = list(requests)
        for request in ordered:
            self.add(request)
        results: dict[int, Finished] = {}
        while self.busy:
            results |= {id(done.request): done for done in self.step()}
        return [results[id(request)] for request in ordered]

    @torch.inference_mode()
    def abort(self, which: Callable[[Request], bool] = lambda request: True, waiting: bool = True) -> list[Finished]:
        """End requests now; what they have so far is returned with stop reason "aborted".

        Args:
            which: chooses the requests.
            waiting: also those not admitted yet (they return no tokens); False leaves them in the queue.
        """
        rows = [slot for slot, job in enumerate(self.active) if which(job.request)]
        ended = self._remove(rows, aborted=True)
        if waiting:
            ended += [
                Finished(job.request, [], [], "aborted", self.version) for job in self.waiting if which(job.request)
            ]
            self.waiting = deque(job for job in self.waiting if not which(job.request))
        self.stats.aborted += len(ended)
        return ended

    def reset(self) -> list[Request]:
        """Forget the running requests, which are returned, and all keys and values. The queue stays."""
        dropped = [job.request for job in self.active]
        self.active, self._view = [], None
        self._left.clear()
        self.cache.drop()
        return dropped

    def drop_kv(self) -> list[Finished]:
        """Free the keys and values, and packed weights. Running requests are aborted and returned, partial."""
        ended = self.abort(waiting=False)
        self._left.clear()
        unpack(self.model)
        self.cache.free()
        return ended

    def load_weights(self, state: Mapping[str, torch.Tensor], version: int | None = None) -> list[Finished]:
        """New weights, in place (see weights.py), after `drop_kv`: nothing is ever continued on old keys and values.

        Args:
            state: the whole state dict, Hugging Face names, any float type.
            version: the weights' version from now on; None keeps the present one.

        Returns:
            The requests that were running, partial, under the old version.

        Raises:
            ValueError: the weights do not fit; nothing has been touched.
        """
        pairs = matched_tensors(self.model, state)
        ended = self.drop_kv()
        with torch.no_grad():
            for target, tensor in pairs:
                target.copy_(tensor)
        self.stats.weight_updates += 1
        self.version = self.version if version is None else version
        return ended

    # -- one step -----------------------------------------------------------------------------------------------------

    def _admit(self) -> None:
        """Move waiting requests into free slots, once enough of them have gathered to share a prefill."""
        ready = min(self.slots - len(self.active), len(self.waiting))
        few = ready < len(self.active) // 8
        if ready == 0 or (few and self._steps - self._last_admission < PATIENCE):
            return
        self._last_admission = self._steps
        first = len(self.active)
        batch = [self.waiting.popleft() for _ in range(ready)]
        admission = plan(batch, self.active, self._left, self.share_from)
        jobs = admission.jobs
        self.active += jobs  # before the forward pass: if that fails, `reset` returns them too
        self._view = None
        self.cache.reserve(len(self.active), max(job.prefill for job in jobs) + 1)
        self._left.overwrite(first, len(self.active))
        for one in admission.rounds:
            if one.prefixes:
                source, target, tokens = (list(column) for column in zip(*one.prefixes, strict=True))
                self.cache.move(source, target, max(tokens))
                self.stats.prefill_tokens_saved += sum(tokens)
            for slot, group in one.prefills:
                self._prefill(slot, group)
        for origin, start, stop, length in admission.copies:
            self.cache.spread(origin, start, stop, length)
            self.stats.prefill_tokens_saved += length * (stop - start)
        self.table.reserve(len(self.active), 1, max(len(job.stop) for job in jobs))
        self.table.fill(first, jobs)
        for job in jobs:
            job.start = self._steps
        self.stats.peak_slots = max(self.stats.peak_slots, len(self.active))

    def _prefill(self, first: int, group: list[Job]) -> None:
        """Put what remains of these jobs' prompts into the slots first, first + 1, ..."""
        self._passes.prefill(first, group)
        self.stats.prefill_tokens += sum(job.rest for job in group)

    def _decode(self) -> list[Finished]:
        """One token for every running request."""
        step = self._steps
        lengths = [job.position(step) + 1 for job in self.active]
        self.cache.reserve(len(self.active), max(lengths))
        if self.table.reserve(len(self.active), max(job.generated(step) for job in self.active) + 1):
            self._view = None
        view = self._view = self._view or View(self.table, self.active, self._positions)
        tokens, log_probs = view.sample(self._passes.decode(view, lengths))
        view.tokens[view.rows, view.count] = tokens
        view.log_probs[view.rows, view.count] = log_probs
        view.current.copy_(tokens)
        view.position += 1
        view.count += 1
        ended = (tokens[:, None] == view.stop).any(1) | (view.count >= view.limit) | log_probs.isnan()
        if view.stop_strings:
            for row in self._stops.reached(self.active, tokens, view.tokens, view.count):
                self.active[row].completed = ended[row] = True
        self._steps += 1
        self.stats.decode_steps += 1
        self.stats.generated_tokens += len(self.active)
        return self._remove(ended.nonzero()[:, 0].tolist())

    def _remove(self, rows: list[int], aborted: bool = False) -> list[Finished]:
        """Take requests out of the batch (`rows` ascending) and close the gaps with the last slots."""
        if not rows:
            return []
        table, step = self.table, self._steps
        tokens, log_probs = table.tokens[rows].tolist(), table.log_probs[rows].tolist()
        ended = []
        held: list[Held] = []
        for row, row_tokens, row_log_probs in zip(rows, tokens, log_probs, strict=True):
            job = self.active[row]
            count = job.generated(step)
            if count and math.isnan(row_log_probs[count - 1]):
                reason = "nan"
                self.cache.clean([row])
            else:
                complete = job.completed or (count and row_tokens[count - 1] in job.stop)
                reason = "aborted" if aborted else "completed" if complete else "length"
            if reason != "nan" and self.share_from is not None:
                fed = (*job.request.prompt_ids, *row_tokens)[: job.position(step)]
                held.append(Held(row, job.owner, as_bytes(fed)))
            ended.append(Finished(job.request, row_tokens[:count], row_log_probs[:count], reason, self.version))
        gone, left = set(rows), len(self.active) - len(rows)
        holes = [row for row in rows if row < left]
        movers = [row for row in range(left, len(self.active)) if row not in gone]
        if holes:
            # Exchanged, not only moved, where what an ended request has left may serve another.
            source, target = (movers + holes, holes + movers) if held else (movers, holes)
            self.cache.move(source, target, max(self.active[row].position(step) for row in source))
            table.move(movers, holes)
            for mover, hole in zip(movers, holes, strict=True):
                self.active[hole] = self.active[mover]
        self._left.put(held, dict(zip(holes, movers, strict=True)))
        del self.active[left:]
        self._view = None
        return ended
