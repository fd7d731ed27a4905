"""Saved indexes: the same answers after loading, and a clear error for everything that can be wrong with a folder."""

import json
import os

import pytest

from verl_ext.tools.retrieval import Passage, build_index, build_retriever, load_index, open_retriever
from verl_ext.tools.retrieval import index as index_module
from verl_ext.tools.retrieval.index import FORMATS, check_fresh

PASSAGES = [Passage(str(i), f"Title {i}", f"word{i} shared word{i % 3} text") for i in range(30)]
QUERIES = ["word1 shared", "Title 7", "nothing known", "", "word29"]
OPTIONS = {"k1": 0.9, "stopwords": ["text"]}


@pytest.fixture
def index(tmp_path):
    build_index(PASSAGES, tmp_path / "index", options=OPTIONS)
    return tmp_path / "index"


def change_meta(index, **changes):
    meta = json.loads((index / "meta.json").read_text())
    (index / "meta.json").write_text(json.dumps({**meta, **changes}))


def every_file(index):
    return sorted(path.relative_to(index).as_posix() for path in index.rglob("*") if path.is_file())


def test_loaded_index_answers_as_the_one_that_was_built(index):
    built = build_retriever(PASSAGES, "bm25", OPTIONS)
    for loaded in (load_index(index), load_index(index, verify=False), open_retriever(str(index))):
        assert loaded.search(QUERIES, 7) == built.search(QUERIES, 7)
        assert loaded.search(["text"], 3) == [[]] and len(loaded) == 30
    with pytest.raises(ValueError, match="ivf_probes=8 is for a dense ivf index"):
        open_retriever({"index": str(index), "ivf_probes": 8})
    with pytest.raises(ValueError, match="ivf_probes=8 without index"):
        open_retriever({"corpus": "passages.jsonl", "backend": "dense", "ivf_probes": 8})


def test_meta_records_what_was_built_and_two_builds_are_the_same_files(index, tmp_path):
    meta = json.loads((index / "meta.json").read_text())
    assert (meta["backend"], meta["passages"], meta["options"]["k1"]) == ("bm25", 30, 0.9)
    assert meta["library"].startswith("bm25s ")
    assert set(meta["files"]) == {*every_file(index)} - {"meta.json"}
    assert build_index(PASSAGES, tmp_path / "again", options=OPTIONS) == meta


def test_every_file_is_guarded_against_a_flipped_byte_truncation_and_removal(index):
    for name in every_file(index):
        path = index / name
        content = path.read_bytes()
        flipped = bytearray(content)
        flipped[len(content) // 2] ^= 0x15
        for damaged in (bytes(flipped), content[:-2], b"", None):
            path.unlink()
            if damaged is not None:
                path.write_bytes(damaged)
            with pytest.raises(ValueError, match="data_prep.corpus"):
                load_index(index)
                pytest.fail(f"{name} was damaged and loaded all the same")
        path.write_bytes(content)
    load_index(index)


def test_content_or_meta_of_another_form_is_a_clear_error(index, tmp_path):
    path = index / "bm25" / "data.csc.index.npy"
    path.write_bytes(b"\0" * path.stat().st_size)
    with pytest.raises(ValueError, match="cannot be used: .*Rebuild it"):
        load_index(index, verify=False)
    for number in (99, 1):  # 1: its tokens are not those of today's queries
        change_meta(index, format=number)
        with pytest.raises(ValueError, match=f"format {number} .*reads format 2.*Rebuild it with"):
            load_index(index)
    for text in ("[]", "3", "null", '"text"'):
        (index / "meta.json").write_text(text)
        with pytest.raises(ValueError, match="Rebuild it with"):
            load_index(index)
    with pytest.raises(ValueError, match="no index at .*Build one with"):
        open_retriever(tmp_path / "none")


def test_a_stale_index_is_noticed_when_its_corpus_is_given(index, tmp_path):
    corpus = tmp_path / "corpus.jsonl"
    lines = [json.dumps({"pid": p.pid, "title": p.title, "text": p.text}) for p in PASSAGES]
    corpus.write_text("\n".join(lines))
    assert len(open_retriever({"index": str(index), "corpus": str(corpus)})) == 30
    corpus.write_text("\n".join(lines[:-1]))
    with pytest.raises(ValueError, match="stale"):
        open_retriever({"index": str(index), "corpus": str(corpus)})


E5 = {"model": "my models/e5", "index": "ivf", "query_prefix": "query: ", "passage_prefix": "", "ivf_probes": 32}


@pytest.mark.parametrize(
    "backend, options, command",
    [
        (
            "bm25",
            {"k1": 0.9, "b": 0.4, "title_weight": 3, "stopwords": []},
            "--backend bm25 --k1 0.9 --b 0.4 --title_weight 3 --overwrite`.",
        ),
        (
            "dense",
            {**E5, "removed_option": 3},
            "--model 'my models/e5' --query_prefix 'query: ' --ivf_probes 32 --dense_index ivf --overwrite`.",
        ),
        ("bm25", {"stopwords": ["text"]}, "--overwrite`, but with build_index for {{'stopwords': ['text']}}, which"),
        ("other", {"k1": 0.9}, "--output_dir {} --overwrite`."),
    ],
)
def test_the_suggested_rebuild_keeps_backend_and_options(index, tmp_path, backend, options, command):
    change_meta(index, format=FORMATS.get(backend, 1), backend=backend, options=options)
    (tmp_path / "corpus.jsonl").write_text('{"pid": 1, "title": "A", "text": "amber harbour"}\n')
    with pytest.raises(ValueError, match="stale") as error:
        check_fresh(index, tmp_path / "corpus.jsonl")
    assert command.format(index) in str(error.value)


def test_existing_folders_are_only_replaced_on_request(index, tmp_path):
    with pytest.raises(ValueError, match="--overwrite"):
        build_index(PASSAGES[:5], index)
    build_index(PASSAGES[:5], index, overwrite=True)
    assert len(load_index(index)) == 5
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    build_index(PASSAGES, foreign)  # empty
    (foreign / "meta.json").rename(foreign / "thesis.txt")
    with pytest.raises(ValueError, match="is not an index"):
        build_index(PASSAGES, foreign, overwrite=True)
    assert (foreign / "thesis.txt").exists()


@pytest.mark.parametrize("fails", ["_fingerprints", "replace"])
def test_a_failure_while_writing_or_moving_leaves_the_old_index_alone(index, tmp_path, monkeypatch, fails):
    replace, before, calls = os.replace, every_file(index), []

    def fail(*arguments):
        calls.append(arguments)
        if fails == "replace" and len(calls) != 2:  # the second one moves the new index to its place
            return replace(*arguments)
        raise OSError("disk full")

    monkeypatch.setattr(index_module.os if fails == "replace" else index_module, fails, fail)
    with pytest.raises(OSError, match="disk full"):
        build_index(PASSAGES[:5], index, overwrite=True)
    monkeypatch.undo()
    assert every_file(index) == before and len(load_index(index)) == 30 and os.listdir(tmp_path) == ["index"]


def test_a_corpus_alone_is_indexed_in_memory(tmp_path):
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text('{"pid": 1, "title": "A", "text": "amber harbour"}\n')
    for config in (str(corpus), {"corpus": str(corpus)}, {"corpus": [str(corpus)], "options": {"b": 0.5}}):
        assert open_retriever(config).search(["harbour"], 3)[0][0].passage == Passage("1", "A", "amber harbour")
