"""Indexes of catalogues on disk: built once, by one process, for all processes that search the same tools alike.

CACHE/bm25-0a1b2c3d4e5f/index    written by retrieval/index.py: complete or absent
CACHE/dense-…/vectors            while the index is built: a killed build resumes from it
CACHE/…/.lock                    held by the process that builds

The folder's name is a hash of everything on which the index depends: the tools' texts, the backend and its options, the
model if it is a folder, and the format. An index is never stale; unused ones can be deleted.
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
from verl_ext.tools.retrieval.dense import model_sha256
from verl_ext.tools.retrieval.index import FORMATS, META, backend_class, build_index, load_index, options_as_json
from verl_ext.tools.retrieval.targets import digest
from verl_ext.tools.retrieval.types import Passage, Retriever
from verl_ext.tools.settings import options_from

logger = logging.getLogger(__name__)
POLL_S = 0.1


def default_cache() -> Path:
    """The default folder of indexes, in the user's cache folder."""
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

    Waits while another process builds it. runtime: device (dense).

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
    warned = False
    while (found := _opened(place / "index", runtime)) is None:
        lock = lock_folder(place)
        if lock is not None:
            with lock:
                opened = _opened(place / "index", runtime)
                return opened or _built(place, passages, backend, options, progress, runtime)
        if not warned:
            logger.warning("another process builds %s; waiting for it", place)
        warned = True
        time.sleep(POLL_S)
    return found


def described(backend: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """All options of an index, defaults included, and the hash of a model that is a folder.

    Raises:
        ValueError: unknown backend or option, or a value out of range.
    """
    found = options_as_json(options_from(backend_class(backend).options_type, options, f"{backend} options"))
    return found | {"model_sha256": model_sha256(found["model"])} if backend == "dense" else found


def _opened(index: Path, runtime: Mapping[str, Any]) -> Retriever | None:
    """The index, or None if it is missing or damaged."""
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
    """Build the index in a folder that this process has locked. Of a killed build only the vectors are used.

    An index that is there stays until the new one is complete: it may be sound although its model cannot be loaded.
    """
    index, vectors = place / "index", place / "vectors"
    for rest in [*([] if (index / META).is_file() else [index]), *place.glob(".index.*")]:
        shutil.rmtree(rest, ignore_errors=True)
    logger.warning("building the %s index of %d tools, once, in %s", backend, len(passages), place)
    build: dict[str, Any] = {"overwrite": True, "progress": progress}
    build |= {"device": runtime.get("device"), "vectors": vectors} if backend == "dense" else {}
    try:
        build_index(passages, index, backend, options, **build)
    except ValueError:
        if not vectors.exists():
            raise
        shutil.rmtree(vectors)  # embeddings of a killed build, which are broken
        build_index(passages, index, backend, options, **build)
    shutil.rmtree(vectors, ignore_errors=True)
    return load_index(index, **runtime)
