"""Similarity of texts: unit vectors, whose inner product is the cosine in [-1, 1]. Used for recall and as Sim.

The paper names no encoder. The default needs no model: hashed character n-grams, which find queries that share words,
names and numbers. `EncoderSimilarity` finds queries with the same meaning.
"""

from __future__ import annotations

import hashlib
import threading
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

import numpy as np

ORDERS = (3, 4, 5)  # bytes of an n-gram
CHUNK_BYTES, CHUNK_TEXTS = 1 << 20, 2048  # hashed at once
_encoding = threading.Lock()  # one text at a time: an encoder uses all cores, and is loaded once


class Similarity(Protocol):
    """Turns texts into vectors. Picklable; a text's vector must not depend on the other texts of a call."""

    @property
    def name(self) -> str:
        """Identifies everything on which the vectors depend; vectors of different names are never compared."""

    @property
    def width(self) -> int:
        """Numbers per vector."""

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        """(texts, width) float32: unit vectors, or zeros for a blank text."""


@dataclass(frozen=True)
class HashingSimilarity:
    """Signed feature hashing (Weinberger et al., 2009) of the n-grams of a text's UTF-8 bytes.

    Texts are compared in Unicode's form NFKC and case folded, which later versions of Unicode do not change, with runs
    of blanks as one. An n-gram's column and sign come from tabulation hashing with tables drawn from BLAKE2b, never
    from Python's salted `hash`. A column holds sign(c)·sqrt(|c| / Σ|c|) of its signed count c: from sums of integers,
    so that a vector has the same bits on every machine and in every batch.

    width: columns. With 128 the first five of 100,000 hold what a query means nearly as often as with 2,048
        (docs/memory.md), and comparing it with all of them takes under 5 ms.
    """

    width: int = 128

    def __post_init__(self) -> None:
        if isinstance(self.width, bool) or not isinstance(self.width, int) or not 8 <= self.width <= 65536:
            raise ValueError(
                f"width of the hashing similarity must be an integer from 8 to 65536, given {self.width!r}."
            )

    @property
    def name(self) -> str:
        return f"hashing-{self.width}-v1"

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        vectors = np.empty((len(texts), self.width), dtype=np.float32)
        part: list[bytes] = []
        first = size = 0
        for position, text in enumerate(texts):
            part.append(_normal(text))
            size += len(part[-1])
            if size >= CHUNK_BYTES or len(part) == CHUNK_TEXTS or position == len(texts) - 1:
                vectors[first : position + 1] = self._hash(part)
                part, first, size = [], position + 1, 0
        return vectors

    def _hash(self, texts: list[bytes]) -> np.ndarray:
        """(texts, width) float64 unit vectors."""
        data = np.frombuffer(b"".join(texts), dtype=np.uint8)
        row = np.repeat(np.arange(len(texts)), [len(text) for text in texts])
        counts = np.zeros(len(texts) * self.width)
        gram = np.zeros(len(data), dtype=np.uint64)
        for order in range(1, min(max(ORDERS), len(data)) + 1):
            last = order - 1
            gram = gram[: len(data) - last] ^ _table()[last][data[last:]]
            if order in ORDERS:
                inside = row[: len(gram)] == row[last:]
                hashed = gram[inside]
                column = row[: len(gram)][inside] * self.width + (hashed % np.uint64(self.width)).astype(np.int64)
                sign = 1.0 - 2.0 * (hashed >> np.uint64(63))
                counts += np.bincount(column, weights=sign, minlength=len(counts))
        table = counts.reshape(len(texts), self.width)
        total = np.abs(table).sum(axis=1, keepdims=True)
        return np.sign(table) * np.sqrt(np.abs(table) / np.maximum(total, 1.0))


@dataclass(frozen=True)
class EncoderSimilarity:
    """A sentence encoder; needs `pip install 'verl_ext[retrieval]'`.

    Texts are encoded one at a time: padding and the shape of a matrix product move a cosine by about 1e-7, enough to
    swap near ties, and a replayed trajectory must recall the same. The last few thousand vectors are kept in each
    process.

    model: "minilm" (no hub), a folder, or a hub name; device: as torch names it, null chooses.
    """

    model: str = "minilm"
    device: str | None = None

    @property
    def name(self) -> str:
        return f"encoder-{model_hash(self.model) or self.model}"

    @property
    def width(self) -> int:
        return len(_encoded(self.model, self.device, "width"))

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        vectors = [_encoded(self.model, self.device, text) for text in texts]
        return np.stack(vectors) if vectors else np.empty((0, self.width), dtype=np.float32)


def inner(vectors: np.ndarray, vector: np.ndarray) -> np.ndarray:
    """(m,) float64 inner products of (m, width) and (width,) float32, the same bits whatever the other rows are."""
    return (np.ascontiguousarray(vectors, dtype=np.float64) * vector.astype(np.float64)).sum(axis=1)


def _normal(text: str) -> bytes:
    """The bytes of which n-grams are taken: normalised words between single blanks; empty for a blank text."""
    words = unicodedata.normalize("NFKC", text).casefold().split()
    return f" {' '.join(words)} ".encode("utf-8", "replace") if words else b""


@lru_cache(maxsize=1)
def _table() -> np.ndarray:
    """(positions, 256) uint64: a random word per position and byte."""
    numbers = range(max(ORDERS) * 256 // 8)  # BLAKE2b gives eight words at a time
    words = b"".join(
        hashlib.blake2b(number.to_bytes(4, "little"), digest_size=64, person=b"verl_ext.memory").digest()
        for number in numbers
    )
    return np.frombuffer(words, dtype="<u8").astype(np.uint64).reshape(-1, 256)


@lru_cache(maxsize=2)
def _encoder(model: str, device: str | None) -> Any:
    from verl_ext.tools.retrieval.dense import load_encoder

    return load_encoder(model, device)


@lru_cache(maxsize=8)
def model_hash(model: str) -> str:
    """Hash of a model that is a folder, see `dense.model_sha256`; its files are read once."""
    from verl_ext.tools.retrieval.dense import model_sha256

    return model_sha256(model)


@lru_cache(maxsize=8192)
def _encoded(model: str, device: str | None, text: str) -> np.ndarray:
    """(width,) float32 unit vector of one text; zeros for a blank one."""
    with _encoding:
        encoder = _encoder(model, device)
        vector = encoder.encode([text], normalize_embeddings=True, convert_to_numpy=True, show_progress_bar=False)[0]
    return vector.astype(np.float32) if text.strip() else np.zeros(len(vector), dtype=np.float32)
