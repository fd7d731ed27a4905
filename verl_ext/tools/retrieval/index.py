"""Building, saving and opening indexes: one folder per index.

    INDEX/meta.json       format, backend, library, options, number of passages, corpus hash, size and hash of each file
    INDEX/passages.jsonl  the passages; INDEX/offsets.npy where each begins
    INDEX/bm25/* or INDEX/dense.faiss

An index is written to a temporary folder beside its place and moved when it is complete.
To add a backend: a class with `backend`, `options_type`, `build`, `save`, `load`, `options`, `search`, `__len__`
as in bm25.py, and a line each in FORMATS, LIBRARIES, FLAGS and BACKENDS.
"""

import json
import os
import shlex
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from verl_ext.storage.files import file_sha256
from verl_ext.tools.retrieval.bm25 import BM25Retriever
from verl_ext.tools.retrieval.corpus import (
    PASSAGES,
    PassageStore,
    check_not_empty,
    corpus_sha256,
    load_corpus,
    write_store,
)
from verl_ext.tools.retrieval.dense import DenseRetriever
from verl_ext.tools.retrieval.types import Passage, Retriever
from verl_ext.tools.settings import options_from

META = "meta.json"
# Versions of the files of each backend; indexes of other versions are refused. bm25 2: tokens in NFKC, weighted titles.
# dense 2: without the options of HNSW graphs.
FORMATS = {"bm25": 2, "dense": 2}
BACKENDS: dict[str, Any] = {"bm25": BM25Retriever, "dense": DenseRetriever}
LIBRARIES = {"bm25": "bm25s", "dense": "faiss-cpu"}
# Options of each backend -> flags of data_prep/corpus.py.
FLAGS = {
    "bm25": {name: name for name in ("k1", "b", "title_weight")},
    "dense": {name: name for name in ("model", "similarity", "query_prefix", "passage_prefix", "ivf_probes")}
    | {"index": "dense_index"},
}
RECORDED = ("model_sha256",)  # options that a build fills in, not the user


def backend_class(backend: str) -> Any:
    """The retriever class of a backend; its heavy libraries are imported only when it builds or loads."""
    if backend not in BACKENDS:
        raise ValueError(f"retrieval backend: given {backend!r}, allowed {list(BACKENDS)}.")
    return BACKENDS[backend]


def build_retriever(
    passages: Sequence[Passage],
    backend: str = "bm25",
    options: Mapping[str, Any] | None = None,
    progress: bool = False,
    **runtime: Any,
) -> Any:
    """Index `passages` in memory. options: fields of BM25Options or DenseOptions; dense also: device."""
    kind = backend_class(backend)
    check_not_empty(list(passages[:1]), "a list of passages")
    chosen = options_from(kind.options_type, options or {}, f"{backend} options")
    return kind.build(passages, chosen, progress, **runtime)


def build_index(
    corpus: str | Path | Sequence[str | Path] | Sequence[Passage],
    folder: str | Path,
    backend: str = "bm25",
    options: Mapping[str, Any] | None = None,
    *,
    overwrite: bool = False,
    progress: bool = False,
    **runtime: Any,
) -> dict[str, Any]:
    """Build an index and save it as `folder`; returns its meta.json.

    corpus: file(s) as `load_corpus` reads them, or passages. options, runtime: see `build_retriever`.
    Raises ValueError when `folder` exists and is not an index to overwrite, or the corpus is malformed or empty.
    """
    folder = Path(folder).absolute()
    check_target(folder, overwrite)
    in_memory = not isinstance(corpus, str | Path) and all(isinstance(passage, Passage) for passage in corpus)
    passages: list[Passage] = list(corpus) if in_memory else load_corpus(corpus)  # type: ignore[arg-type]
    retriever = build_retriever(passages, backend, options, progress, **runtime)
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        write_store(passages, temporary)
        retriever.save(temporary)
        meta = {
            "format": FORMATS[backend],
            "backend": backend,
            "library": _library(backend),
            "options": options_as_json(retriever.options),
            "passages": len(passages),
            "corpus_sha256": corpus_sha256(passages),
            "files": _fingerprints(temporary),
        }
        (temporary / META).write_text(json.dumps(meta, indent=2) + "\n", encoding="utf-8")
        temporary.chmod(0o755)  # mkdtemp's 0o700 would lock out the other users of a shared index
        _move(temporary, folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return meta


def load_index(folder: str | Path, *, verify: bool = True, **runtime: Any) -> Retriever:
    """Open a saved index.

    verify: compare every file's hash with meta.json (seconds per gigabyte; sizes are compared in any case).
    runtime: device, batch_invariant, index_device (dense).
    Raises ValueError, with the remedy, when there is no index or it is incomplete, corrupted or of another format.
    """
    folder = Path(folder)
    meta = read_meta(folder)
    _check_files(folder, meta, verify)
    kind = backend_class(meta["backend"])
    try:
        options = options_from(kind.options_type, meta["options"], f"{meta['backend']} options")
        passages = PassageStore(folder)
        if len(passages) != meta["passages"]:
            raise ValueError(f"{PASSAGES} holds {len(passages)} passages, {META} says {meta['passages']}")
        return kind.load(folder, passages, options, **runtime)
    except (ValueError, TypeError, OSError, KeyError, EOFError, RuntimeError) as error:  # from the libraries
        written = f"written by {meta.get('library')}, here is {_library(meta['backend'])}"
        raise ValueError(f"the index {folder} cannot be used: {error} ({written}). {rebuild(folder, meta)}") from error


def read_meta(folder: Path) -> dict[str, Any]:
    """The index's meta.json, checked for format and fields. Raises ValueError."""
    if not (folder / META).is_file():
        raise ValueError(
            f"no index at {folder} ({META} is missing). Build one with "
            f"`python -m verl_ext.data_prep.corpus --input CORPUS.jsonl --output_dir {folder}`, or correct the path."
        )
    try:
        meta = dict(json.loads((folder / META).read_text(encoding="utf-8")))
        missing = {"format", "backend", "options", "passages", "corpus_sha256", "files"} - set(meta)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{folder / META} is corrupted ({error}). {rebuild(folder)}") from error
    readable = FORMATS.get(str(meta.get("backend")), 1)
    if missing or meta["format"] != readable:
        raise ValueError(
            f"{folder / META} is of format {meta.get('format')!r} (missing fields: {sorted(missing)}), "
            f"this version reads format {readable}. {rebuild(folder, meta)}"
        )
    return meta


def check_fresh(folder: str | Path, corpus: str | Path | Sequence[str | Path]) -> None:
    """Raises ValueError when `corpus` no longer has the passages from which the index was built."""
    folder = Path(folder)
    meta = read_meta(folder)
    if meta["corpus_sha256"] != corpus_sha256(load_corpus(corpus)):
        raise ValueError(f"the index {folder} is stale: {corpus} has changed since. {rebuild(folder, meta)}")


def rebuild(folder: Path, meta: Mapping[str, Any] | None = None) -> str:
    """The remedy for an unusable index: the command that builds it again, with the options of its meta.json."""
    backend, options = (meta or {}).get("backend"), (meta or {}).get("options")
    command = f"python -m verl_ext.data_prep.corpus --input CORPUS.jsonl --output_dir {shlex.quote(str(folder))}"
    flags, lost = FLAGS.get(str(backend)), {}
    if flags is not None and isinstance(options, dict):
        command += f" --backend {backend}"
        given = {flag: options[name] for name, flag in flags.items() if options.get(name, "") != ""}
        command += "".join(f" --{flag} {shlex.quote(str(value))}" for flag, value in given.items())
        defaults = options_as_json(backend_class(str(backend)).options_type())
        own = {name: value for name, value in options.items() if name in defaults and name not in (*flags, *RECORDED)}
        lost = {name: value for name, value in own.items() if value != defaults[name]}
    advice = f", but with build_index for {lost}, which have no flag" if lost else ""
    return f"Rebuild it with `{command} --overwrite`{advice}."


def options_as_json(options: Any) -> dict[str, Any]:
    """All options of an index, defaults included."""
    return json.loads(json.dumps(asdict(options)))


def check_target(folder: Path, overwrite: bool) -> None:
    """Raises ValueError when `folder` holds an index that must not be overwritten, or other files."""
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return
    if not (folder / META).is_file():
        raise ValueError(f"{folder} exists and is not an index; choose another folder or remove it yourself.")
    if not overwrite:
        raise ValueError(f"{folder} already holds an index; pass overwrite=True (--overwrite) to replace it.")


def _fingerprints(folder: Path) -> dict[str, dict[str, Any]]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {
        path.relative_to(folder).as_posix(): {"bytes": path.stat().st_size, "sha256": file_sha256(path)}
        for path in files
    }


def _check_files(folder: Path, meta: dict[str, Any], verify: bool) -> None:
    for name, expected in meta["files"].items():
        path = folder / name
        size = path.stat().st_size if path.is_file() else None
        if size != expected["bytes"]:
            found = "is missing" if size is None else f"has {size} bytes"
            raise ValueError(
                f"the index {folder} is corrupted: {name} {found}, expected {expected['bytes']} bytes. "
                f"{rebuild(folder, meta)}"
            )
        if verify and file_sha256(path) != expected["sha256"]:
            raise ValueError(
                f"the index {folder} is corrupted or stale: {name} changed after the index was built. "
                f"{rebuild(folder, meta)}"
            )


def _move(temporary: Path, folder: Path) -> None:
    """Move the complete index to its place. A previous one is moved aside first, and back if that fails."""
    if not folder.exists():
        os.replace(temporary, folder)
        return
    previous = Path(tempfile.mkdtemp(prefix=f".{folder.name}.old.", dir=folder.parent))
    os.replace(folder, previous / "index")
    try:
        os.replace(temporary, folder)
    except OSError:
        os.replace(previous / "index", folder)
        raise
    finally:
        shutil.rmtree(previous, ignore_errors=True)


def _library(backend: str) -> str:
    try:
        return f"{LIBRARIES[backend]} {version(LIBRARIES[backend])}"
    except PackageNotFoundError:  # faiss also comes as faiss-gpu-*
        return LIBRARIES[backend]
