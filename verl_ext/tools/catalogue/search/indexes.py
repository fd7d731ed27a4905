"""Indexes of catalogues on disk: built once, by one process, for all that search the same tools in the same way.

CACHE/bm25-0a1b2c3d4e5f/index    as retrieval/index.py writes it: complete or not there
CACHE/dense-…/vectors            while it is built: a killed build goes on where it was
CACHE/…/.lock                    held by the process that builds

The folder is named after a hash of all that the index depends on: the tools' texts, the backend and its options, the
model if it is a folder, and the format. Nothing is ever stale; what is no longer used can be deleted.
"""

from __future__ import annotations

import logging
import os
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from verl_ext.storage.files import lock_folder
from verl_ext.tools.retrieval.corpus import corpus_sha256
from verl_ext.tools.retrieval.index import FORMATS, backend_class, build_index, load_index
from verl_ext.tools.retrieval.targets import digest
from verl_ext.tools.retrieval.types import Passage, Retriever, options_from

logger = logging.getLogger(__name__)
POLL_S = 0.1


def default_cache() -> Path:
    """Where indexes are kept unless a recipe says otherwise: the user's cache folder."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "verl_ext" / "tool_search"


def cached_index(
    passages: Sequence[Passage],
    backend: str,
    options: Mapping[str, Any],
    cache: Path,
    *,
    progress: bool = False,
    **runtime: Any,
) -> Retriever:
    """The index of `passages` in the folder `cache`, built there if it is missing or broken.

    Waits while another process builds it. runtime: device, batch_invariant (dense).

    Raises:
        ValueError: the options are wrong, or the folder cannot be written.
        ImportError: a library is missing.
    """
    options = described(backend, options)
    place = cache / f"{backend}-{digest(FORMATS[backend], options, corpus_sha256(passages))}"
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"the cache of tool indexes cannot be written ({error}); choose another cache_dir") from error
    found = _opened(place / "index", runtime)
    told = False
    while found is None:
        lock = lock_folder(place)
        if lock is None:
            if not told:
                logger.warning("another process builds %s; waiting for it", place)
            told = True
            time.sleep(POLL_S)
            found = _opened(place / "index", runtime)
            continue
        with lock:
            found = _opened(place / "index", runtime) or _built(place, passages, backend, options, progress, runtime)
    return found


def described(backend: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """All options of an index, with those that are not given, and the hash of a model that is a folder.

    Raises:
        ValueError: unknown backend or option, or a value out of range.
    """
    kind = backend_class(backend)
    read = options_from(kind.options_type, options, f"{backend} options")
    told = {name: getattr(read, name) for name in read.__dataclass_fields__}
    if backend == "dense":
        from verl_ext.tools.retrieval.dense import model_sha256

        told["model_sha256"] = model_sha256(told["model"])
    return {name: list(value) if isinstance(value, tuple) else value for name, value in told.items()}


def _opened(index: Path, runtime: Mapping[str, Any]) -> Retriever | None:
    """The index, or None if there is none that can be used."""
    if not index.exists():
        return None
    try:
        return load_index(index, **runtime)
    except ValueError as error:
        logger.warning("the index %s cannot be used and is built again: %s", index, error)
        return None


def _built(
    place: Path,
    passages: Sequence[Passage],
    backend: str,
    options: Mapping[str, Any],
    progress: bool,
    runtime: Mapping[str, Any],
) -> Retriever:
    """Build the index of a place that this process holds. What killed builds left is removed, or used (vectors)."""
    for rest in [place / "index", *place.glob(".index.*")]:
        shutil.rmtree(rest, ignore_errors=True)
    logger.warning("building the %s index of %d tools, once, in %s", backend, len(passages), place)
    vectors = place / "vectors"
    build = {"device": runtime.get("device"), "vectors": vectors} if backend == "dense" else {}
    try:
        build_index(passages, place / "index", backend, options, progress=progress, **build)
    except ValueError:
        if not vectors.exists():
            raise
        shutil.rmtree(vectors)  # the embeddings that a killed build left are broken
        build_index(passages, place / "index", backend, options, progress=progress, **build)
    shutil.rmtree(vectors, ignore_errors=True)
    return load_index(place / "index", **runtime)
