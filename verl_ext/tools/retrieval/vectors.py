"""Embeddings of a corpus on disk: a killed computation continues, and several indexes share the embeddings.

Only one process at a time computes them.

VECTORS/state.json    key (passages and model), number of complete rows, width, seconds spent
VECTORS/vectors.f32   (passages, width) float32, row after row
"""

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from verl_ext.storage.files import LOCK, lock_folder, write_file
from verl_ext.tools.retrieval.types import Passage

STATE, VECTORS = "state.json", "vectors.f32"
CHUNK = 1024  # passages between two saves. Chunks begin at multiples of it, so that a resumed file has the same bytes


def stored_vectors(
    folder: Path,
    key: Mapping[str, Any],
    passages: Sequence[Passage],
    encode: Callable[[Sequence[Passage]], Any],
    progress: bool = False,
) -> Any:
    """The embeddings of `passages`, read-only and memory-mapped: (passages, width) float32.

    folder: keeps the embeddings; missing ones are computed and saved every CHUNK passages.
    key: what the embeddings depend on (corpus, model, prefix); compared with the key in the folder.
    encode: some passages -> (passages, width) float32. progress: a bar on stderr.
    Raises ValueError when the folder holds other embeddings or other files, or another process computes there.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / STATE).is_file() and any(path.name != LOCK for path in folder.iterdir()):
        raise ValueError(f"{folder} holds files that are not embeddings; choose another folder for the embeddings.")
    lock = lock_folder(folder)
    if lock is None:
        raise ValueError(f"another process computes the embeddings in {folder}; wait for it, or choose another folder.")
    with lock:
        return _stored(folder, key, passages, encode, progress)


def _stored(
    folder: Path,
    key: Mapping[str, Any],
    passages: Sequence[Passage],
    encode: Callable[[Sequence[Passage]], Any],
    progress: bool,
) -> Any:
    """`stored_vectors`, once this process has locked the folder."""
    import numpy as np
    from tqdm import tqdm

    state = _read_state(folder, key)
    path, row_bytes = folder / VECTORS, 4 * state["width"]
    on_disk = path.stat().st_size // row_bytes if row_bytes and path.is_file() else 0
    done = min(state["rows"], on_disk)
    if done < len(passages):
        done -= done % CHUNK
    with tqdm(total=len(passages), initial=done, desc="embed", unit="passage", disable=not progress) as bar:
        for start in range(done, len(passages), CHUNK):
            began = time.monotonic()
            vectors = np.ascontiguousarray(encode(passages[start : start + CHUNK]), dtype=np.float32)
            state |= {"width": vectors.shape[1], "rows": start + len(vectors)}
            _write_rows(path, start, vectors)
            state["seconds"] += time.monotonic() - began
            _write_state(folder, state)
            bar.update(len(vectors))
    return np.memmap(path, dtype=np.float32, mode="r", shape=(len(passages), state["width"]))


def embedding_seconds(folder: Path) -> float:
    """Seconds that all calls together have spent on the embeddings in `folder`; 0 if there are none."""
    path = folder / STATE
    return float(json.loads(path.read_text(encoding="utf-8"))["seconds"]) if path.is_file() else 0.0


def _read_state(folder: Path, key: Mapping[str, Any]) -> dict[str, Any]:
    path = folder / STATE
    if not path.is_file():
        state = {"key": dict(key), "rows": 0, "width": 0, "seconds": 0.0}
        _write_state(folder, state)
        return state
    try:
        state = json.loads(path.read_text(encoding="utf-8"))
        found = state["key"]
        if not all(isinstance(state[name], int | float) and state[name] >= 0 for name in ("rows", "width", "seconds")):
            raise ValueError("a number is missing")
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is corrupted ({error!r}); remove {folder} to compute them again.") from error
    if found != dict(key):
        raise ValueError(f"{folder} holds embeddings for {found}, needed are {dict(key)}; remove it or take another.")
    return state


def _write_rows(path: Path, start: int, vectors: Any) -> None:
    """Write rows from `start` on, and cut off everything after them. They are on disk before the state counts them.

    Raises ValueError when earlier rows are missing: truncating would fill the gap with zeros.
    """
    with open(path, "r+b" if path.exists() else "w+b") as out:
        before = start * vectors.shape[1] * 4
        if out.seek(0, os.SEEK_END) < before:
            raise ValueError(f"{path} has lost rows since they were written; the same command computes them again.")
        out.truncate(before)
        out.seek(before)
        out.write(vectors.tobytes())
        out.flush()
        os.fsync(out.fileno())


def _write_state(folder: Path, state: Mapping[str, Any]) -> None:
    write_file(folder / STATE, json.dumps(state) + "\n")
