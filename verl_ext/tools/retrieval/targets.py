"""The indexes that a measurement compares, built and kept under its output folder."""

import argparse
import hashlib
import json
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from verl_ext.storage.files import file_sha256, write_file
from verl_ext.tools.retrieval.corpus import read_corpus
from verl_ext.tools.retrieval.dense import model_sha256
from verl_ext.tools.retrieval.index import FORMATS, build_index, read_meta
from verl_ext.tools.retrieval.vectors import embedding_seconds


@dataclass(frozen=True)
class Target:
    """An index to measure.

    probes: cells of an ivf index to search, None: as built. build_s: seconds, None: unknown.
    label: distinguishes it from others of its kind; "" if there are none.
    """

    folder: Path
    meta: dict[str, Any]
    probes: int | None = None
    build_s: float | None = None
    label: str = ""

    @property
    def kind(self) -> str:
        """Its name in the table: "inverted", "exact", "ivf, 32 probes", ..., then the label."""
        name = self.meta["options"].get("index", "inverted")
        probes = [f"{self.probes or self.meta['options']['ivf_probes']} probes"] if name == "ivf" else []
        return ", ".join([name, *probes, *([self.label] if self.label else [])])

    @property
    def backend(self) -> str:
        """Its backend in the table: "bm25", or "dense" and the model."""
        return "bm25" if self.meta["backend"] == "bm25" else f"dense {self.meta['options']['model']}"


def digest(*parts: Any) -> str:
    """The first twelve hexadecimal digits of a hash of `parts` (JSON values)."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:12]


def prepare(arguments: argparse.Namespace) -> list[Target]:
    """The indexes to measure. Missing ones of --corpus are built.

    Raises ValueError for a missing index or corpus file, and for flags without effect.
    """
    if arguments.index:
        several = len(arguments.index) > 1
        targets = [Target(folder, read_meta(folder), label=str(folder) * several) for folder in arguments.index]
        _check_flags(arguments, targets)
    else:
        for path in arguments.corpus:
            if not path.is_file():
                raise ValueError(f"corpus file {path} does not exist, or is no file; correct the path.")
        files = [file_sha256(path) for path in arguments.corpus]
        targets = [built(arguments, backend, options, files) for backend, options in plans(arguments)]
    return [
        replace(target, probes=probes)
        for target in targets
        for probes in (arguments.ivf_probes if target.meta["options"].get("index") == "ivf" else None) or [None]
    ]


def _check_flags(arguments: argparse.Namespace, targets: list[Target]) -> None:
    if arguments.device and all(target.meta["backend"] != "dense" for target in targets):
        raise ValueError("--device would do nothing: none of the indexes is dense; leave it out.")
    if arguments.ivf_probes and all(target.meta["options"].get("index") != "ivf" for target in targets):
        raise ValueError("--ivf_probes would do nothing: none of the indexes is an ivf index; leave it out.")


def plans(arguments: argparse.Namespace) -> list[tuple[str, dict[str, Any]]]:
    """(backend, options) of each index to build from --corpus."""
    found: list[tuple[str, dict[str, Any]]] = [("bm25", {})] if "bm25" in arguments.backend else []
    prefixes = {"query_prefix": arguments.query_prefix, "passage_prefix": arguments.passage_prefix}
    for model in arguments.model if "dense" in arguments.backend else []:
        content = model_sha256(model)
        options = {"model": model, **prefixes, **({"model_sha256": content} if content else {})}
        found += [("dense", {**options, "index": kind}) for kind in arguments.dense_index]
    return found


def built(arguments: argparse.Namespace, backend: str, options: dict[str, Any], files: list[str]) -> Target:
    """The index of `files` (hashes of the corpus) with `options`, which is built if it is missing."""
    indexes = arguments.output_dir / "indexes"
    name = "-".join([backend, *(str(options[key]).replace("/", "_") for key in ("index", "model") if key in options)])
    folder = indexes / f"{name}-{digest(backend, FORMATS[backend], options, files)}"
    log = folder.with_suffix(".build.json")
    if not folder.exists():
        passages, _ = read_corpus(arguments.corpus)
        print(f"building {folder}: {len(passages):,} passages", flush=True)
        runtime: dict[str, Any] = {}
        before, start = 0.0, time.monotonic()
        if backend == "dense":
            content = [options["model_sha256"]] if "model_sha256" in options else []
            key = digest(options["model"], options["passage_prefix"], files, *content)
            vectors = arguments.output_dir / "vectors" / f"{options['model'].replace('/', '_')}-{key}"
            runtime = {"vectors": vectors, "device": arguments.device}
            before = embedding_seconds(vectors)
        build_index(passages, folder, backend, options, progress=True, **runtime)
        seconds = time.monotonic() - start + before  # with the embedding time of earlier calls
        write_file(log, json.dumps({"seconds": seconds}) + "\n")
    build_s = json.loads(log.read_text())["seconds"] if log.is_file() else None
    return Target(folder, read_meta(folder), build_s=build_s)
