"""Embeddings from the hidden states of a frozen language model, for policy heads (Puppeteer's orchestrator).

The paper's policy reads the states of a 70B reward model. Here: any causal model of transformers, as a folder or a hub
name. It is never trained.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from verl_ext.memory.similarity import model_hash

PREFIX = "states:"
# The most numbers of an embedding: a head has their square as weights. Wider states are projected.
WIDEST = 512
_encoding = threading.Lock()


@dataclass(frozen=True)
class HiddenStateSimilarity:
    """The last layer's state at a text's last token, as a unit vector; the text is a user's message of the model's chat
    template, if it has one. Of a text that is longer than the model takes, the end is read.

    States wider than WIDEST are projected by a fixed random matrix, which keeps inner products up to about 1/√WIDEST.
    Texts are encoded one at a time and the last few thousand are kept, as by `EncoderSimilarity`.

    model: a folder, or a hub name; device: as torch names it, None: a GPU if there is one.
    """

    model: str
    device: str | None = None

    @property
    def name(self) -> str:
        return f"{PREFIX}{model_hash(self.model) or self.model}"

    @property
    def width(self) -> int:
        return len(_state(self.model, self.device, "width"))

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        vectors = [_state(self.model, self.device, text) for text in texts]
        return np.stack(vectors) if vectors else np.empty((0, self.width), dtype=np.float32)


@lru_cache(maxsize=1)
def _loaded(model: str, device: str | None) -> tuple[Any, Any]:
    """(tokenizer, model without its output layer)."""
    import torch
    from transformers import AutoModel, AutoTokenizer

    place = device or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        dtype = torch.float32 if place == "cpu" else torch.bfloat16
        return AutoTokenizer.from_pretrained(model), AutoModel.from_pretrained(model, dtype=dtype).to(place).eval()
    except (OSError, ValueError) as error:
        raise ValueError(
            f"the encoder {PREFIX}{model} could not be loaded ({str(error).splitlines()[0]:.200}). Remedy: a folder "
            "with a model and a tokenizer as transformers saves them, or a hub name that is reachable"
        ) from error


@lru_cache(maxsize=8192)
def _state(model: str, device: str | None, text: str) -> np.ndarray:
    """(width,) float32 unit vector of one text; zeros for a blank one."""
    import torch

    with _encoding:
        tokenizer, network = _loaded(model, device)
        shown = text
        if tokenizer.chat_template:
            shown = tokenizer.apply_chat_template([{"role": "user", "content": text}], tokenize=False)
        ids = tokenizer(shown or " ", return_tensors="pt", add_special_tokens=not tokenizer.chat_template).input_ids
        most = getattr(network.config, "max_position_embeddings", 0)  # 0: there is no limit (BLOOM, Mamba); all is read
        with torch.no_grad():
            state = network(ids[:, -most:].to(network.device)).last_hidden_state
    vector = state[0, -1].float().cpu().numpy()
    if len(vector) > WIDEST:
        vector = _projection(len(vector)) @ vector
    length = np.linalg.norm(vector)
    return (vector / length if text.strip() and length else np.zeros_like(vector)).astype(np.float32)


@lru_cache(maxsize=1)
def _projection(width: int) -> np.ndarray:
    """(WIDEST, width) float32, the same on every machine."""
    return np.random.Generator(np.random.PCG64(0)).standard_normal((WIDEST, width), dtype=np.float32)
