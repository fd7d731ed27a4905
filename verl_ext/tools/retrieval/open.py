"""`open_retriever`: a retriever from a recipe's configuration, a path or a url."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field
from pydantic.dataclasses import dataclass

from verl_ext.tools.retrieval.client import ATTEMPTS, TIMEOUT_S, HttpRetriever
from verl_ext.tools.retrieval.corpus import as_paths, load_corpus
from verl_ext.tools.retrieval.index import build_retriever, check_fresh, load_index, read_meta
from verl_ext.tools.retrieval.types import Retriever
from verl_ext.tools.settings import STRICT, AtLeastOne, options_from


@dataclass(frozen=True, config=STRICT)
class RetrieverConfig:
    """Where passages come from: give `index`, or `url`, or `corpus` alone. Null means not given.

    index: folder built by data_prep/corpus.py. url: http://HOST:PORT of a retrieval server.
    corpus: jsonl file(s). Alone, they are indexed in memory at start-up (`backend`, `options`). With `index`, the index
        is refused as stale unless it was built from them.
    verify: with `index`, compare the hashes of its files.
    device: of the encoder of a dense index, as torch names it. index_device: of the vectors of one that has been built.
    batch_invariant: with a dense index; false encodes queries together, see dense.py.
    ivf_probes: cells of an ivf index to search; null: as many as it was built with.
    timeout_s, attempts: with `url`, seconds per attempt and tries per request.
    check: with `url`, ask the server's /health at once, so that a wrong address stops the run at start-up.
    """

    index: str | None = None
    url: str | None = None
    corpus: str | Sequence[str] | None = None
    backend: str = "bm25"
    options: Mapping[str, Any] | None = None
    device: str | None = None
    index_device: str = "cpu"
    batch_invariant: bool = True
    ivf_probes: int | None = None
    verify: bool = True
    timeout_s: Annotated[float, Field(gt=0)] = TIMEOUT_S  # client.py says why it is so short
    attempts: AtLeastOne = ATTEMPTS
    check: bool = True

    def __post_init__(self) -> None:
        if bool(self.index) + bool(self.url) > 1 or (self.url and self.corpus):
            raise ValueError(
                f"given index={self.index!r}, url={self.url!r}, corpus={self.corpus!r}; "
                "give one source: an index (with its corpus, to check that it is fresh), or a url, or a corpus."
            )
        if not (self.index or self.url or self.corpus):
            raise ValueError(
                "no source given. Set index (folder built by `python -m verl_ext.data_prep.corpus`), "
                "url (http://HOST:PORT of `python -m verl_ext.tools.retrieval_server`) or corpus (a jsonl file)."
            )
        of_an_index = (self.index_device, self.batch_invariant, self.ivf_probes)
        if not self.index and of_an_index != ("cpu", True, None):
            raise ValueError(
                f"given index_device={self.index_device}, batch_invariant={self.batch_invariant}, ivf_probes="
                f"{self.ivf_probes} without index; they are for an index that has been built. Remedy: build it with "
                "`python -m verl_ext.data_prep.corpus` and give index, or leave them out."
            )


def check_source(config: RetrieverConfig) -> None:
    """Check quickly, without loading anything, that the server answers and that the index or corpus exists.

    Raises ValueError, or ToolError when the server does not answer.
    """
    if config.url:
        _client(config)
    if config.index:
        read_meta(Path(config.index))
    for path in as_paths(config.corpus or ()):
        if not path.is_file():
            raise ValueError(f"the corpus {path} does not exist; data_prep/ has scripts that write one")


def open_retriever(config: str | Path | Mapping[str, Any] | RetrieverConfig) -> Retriever:
    """Open a retriever.

    config: a folder (index), a .jsonl or .jsonl.gz file (corpus, BM25 in memory), a url, or the fields of
        RetrieverConfig (a plain or OmegaConf mapping).
    Raises ValueError for a bad configuration, index or corpus; ToolError when the server does not answer.
    """
    if isinstance(config, str | Path):
        config = _from_string(str(config))
    if not isinstance(config, RetrieverConfig):
        config = options_from(RetrieverConfig, config, "retrieval settings")
    if config.url:
        return _client(config)
    runtime: dict[str, Any] = {"device": config.device} if config.device else {}
    if config.index:
        if config.corpus:
            check_fresh(config.index, config.corpus)
        if read_meta(Path(config.index))["backend"] == "dense":
            runtime |= {"batch_invariant": config.batch_invariant, "index_device": config.index_device}
            runtime["ivf_probes"] = config.ivf_probes
        elif config.ivf_probes is not None:
            raise ValueError(f"ivf_probes={config.ivf_probes} is for a dense ivf index, {config.index} is another one.")
        return load_index(config.index, verify=config.verify, **runtime)
    if config.backend == "bm25":
        runtime = {}  # runs on the CPU
    return build_retriever(load_corpus(config.corpus or ()), config.backend, config.options, **runtime)


def _client(config: RetrieverConfig) -> HttpRetriever:
    client = HttpRetriever(config.url or "", timeout_s=config.timeout_s, attempts=config.attempts)
    if config.check:
        client.health()
    return client


def _from_string(text: str) -> dict[str, Any]:
    if text.startswith(("http://", "https://")):
        return {"url": text}
    return {"corpus": text} if text.endswith((".jsonl", ".jsonl.gz")) else {"index": text}
