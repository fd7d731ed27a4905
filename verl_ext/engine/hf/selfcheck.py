"""Checks at start-up that SlotEngine can run a model: by its config, and by comparing log-probs with a plain pass."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from verl_ext.engine.hf.cache import ATTENTION, ROUND
from verl_ext.engine.hf.params import Request, SamplingParams

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

    from verl_ext.engine.hf.slots import SlotEngine

NEW_TOKENS = 4


def require_full_attention(config: PreTrainedConfig, max_model_len: int) -> None:
    """Refuse layers that are not full attention over the whole context, and positions that depend on other rows.

    Raises:
        ValueError: linear-attention or recurrent layers, or sliding windows shorter than `max_model_len`; or rotary
            positions whose factors change, for all rows of a pass, once one row is long (LongRoPE).
    """
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    window = getattr(config, "sliding_window", None) or getattr(config, "attention_chunk_size", None) or 0
    local = kinds & {"sliding_attention", "chunked_attention"}
    if not getattr(config, "layer_types", None) and getattr(config, "sliding_window", None):
        local = {"sliding_window"}
    other = kinds - {"full_attention", "sliding_attention", "chunked_attention"}
    if other:
        raise ValueError(f"rollout.name=hf runs attention layers only; this model has {sorted(other)} layers")
    if local and window < max_model_len:
        raise ValueError(
            f"rollout.name=hf keeps the whole context of every layer; this model has {sorted(local)} of {window} "
            f"tokens and max_model_len is {max_model_len}. Set rollout.max_model_len to at most {window}"
        )
    rope = getattr(config, "rope_parameters", None) or {}
    for one in (rope, *(part for part in rope.values() if isinstance(part, dict))):
        short = one.get("original_max_position_embeddings")
        if one.get("rope_type") == "longrope" and short is not None and short < max_model_len:
            raise ValueError(
                f"rollout.name=hf computes requests together, and this model (longrope) has other positions for all of "
                f"them once one has more than {short} tokens; max_model_len is {max_model_len}. Set "
                f"rollout.max_model_len to at most {short}"
            )


@torch.no_grad()  # not inference mode, in which the plain passes, too, would use packed weights
def check_model(engine: SlotEngine) -> None:
    """Generate a few tokens in slots and compare their log-probs with one plain forward pass per sequence.

    Notices models that ignore the cache interface, position ids or the mask; takes a handful of tiny forward passes.

    Raises:
        ValueError: the log-probs differ by more than rounding explains (`_allowed`).
    """
    name, largest = type(engine.model).__name__, 0.0
    lengths = [min(length, engine.max_model_len - 1) for length in (1, 5, 5, ROUND + 3)]
    params = SamplingParams(max_tokens=NEW_TOKENS, temperature=0.0, ignore_eos=True)
    prompts = [tuple((7 * i * i + 3 * n) % engine.vocab_size for i in range(n)) for n in lengths]
    try:
        ended = engine.generate(Request("self-check", prompt, params) for prompt in prompts)
        engine.model.set_attn_implementation("sdpa")
        errors = []
        for done in ended:
            ids = [*done.request.prompt_ids, *done.token_ids]
            logits = engine.model(input_ids=torch.tensor([ids], device=engine.device), use_cache=False).logits
            largest = max(largest, logits.abs().max().item())
            plain = logits[0, -len(done.token_ids) - 1 : -1].float().log_softmax(-1)
            chosen = plain.gather(1, torch.tensor(done.token_ids, device=engine.device)[:, None])[:, 0]
            errors.append((chosen - torch.tensor(done.log_probs, device=engine.device)).abs().max().item())
    except Exception as error:  # whatever it is: this model does not run here
        raise ValueError(f"rollout.name=hf cannot run {name}: {type(error).__name__}: {error}") from error
    allowed = _allowed(engine.model.dtype, largest)
    if not max(errors) <= allowed:
        raise ValueError(
            f"rollout.name=hf cannot run {name}: its log-probs differ by {max(errors):.3g} between the slots and a "
            f"plain forward pass (allowed: {allowed:.3g}). Use another rollout backend for this architecture"
        )
    engine.model.set_attn_implementation(ATTENTION)


def _allowed(dtype: torch.dtype, logit: float) -> float:
    """The largest difference of log-probs (nats) that is rounding.

    2e-3 in float32. In half precision 0.3, or two steps of the largest logit: the head's logits are rounded to that.
    """
    return 2e-3 if dtype == torch.float32 else max(0.3, 2 * torch.finfo(dtype).eps * logit)
