"""Reading corpora: layouts, errors with file and line, and the on-disk store."""

import gzip
import hashlib
import json

import pytest

from verl_ext.tools.retrieval import Passage, load_corpus
from verl_ext.tools.retrieval.corpus import PASSAGES, PassageStore, corpus_sha256, read_corpus, write_store


def write(path, *lines):
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def test_both_layouts_and_blank_lines(tmp_path):
    file = write(
        tmp_path / "c.jsonl",
        json.dumps({"pid": 0, "title": "A", "text": "first", "datasets": ["x"]}),
        "",
        json.dumps({"id": "w1", "contents": '"The "B" side"\nsecond\nthird'}),
        json.dumps({"id": "w2", "contents": "no line break"}),
        json.dumps({"pid": "n", "text": "no title"}),
    )
    assert load_corpus(file) == [
        Passage("0", "A", "first"),
        Passage("w1", 'The "B" side', "second\nthird"),
        Passage("w2", "no line break", ""),
        Passage("n", "", "no title"),
    ]


def test_several_files_and_gzip(tmp_path):
    first = write(tmp_path / "a.jsonl", '{"pid": 1, "title": "A", "text": "a"}')
    second = tmp_path / "b.jsonl.gz"
    with gzip.open(second, "wt", encoding="utf-8") as out:
        out.write('{"pid": 2, "title": "Ż", "text": "b"}\n')
    assert [passage.pid for passage in load_corpus([first, second])] == ["1", "2"]


GOOD = '{"pid": 1, "title": "A", "text": "a"}'


@pytest.mark.parametrize(
    "bad, message",
    [
        ("{broken", "not valid JSON"),
        ("[1]", "given list"),
        pytest.param("[" * 100_000, "not valid JSON", id="deep"),
        ('{"title": "A", "text": "a"}', "field 'pid'"),
        ('{"pid": true, "title": "A", "text": "a"}', "field 'pid'"),
        ('{"pid": 2, "title": 3, "text": "a"}', "field 'title'"),
        ('{"pid": 2, "title": "A"}', "field 'text'"),
        ('{"pid": 2, "title": " ", "text": ""}', "both empty"),
        ('{"pid": 1, "title": "A", "text": "b"}', "pid '1' is taken by .*c.jsonl:1 for another passage"),
    ],
)
def test_a_bad_line_is_named_with_file_and_line(tmp_path, bad, message):
    with pytest.raises(ValueError, match=rf"c\.jsonl:3: .*{message}"):
        load_corpus(write(tmp_path / "c.jsonl", GOOD, "", bad))


def test_repeated_passages_are_kept_once_and_their_pids_stay_taken(tmp_path):
    again = '{"pid": 2, "title": "A", "text": "a"}'
    first, second = write(tmp_path / "a.jsonl", GOOD, again, GOOD), write(tmp_path / "b.jsonl", again)
    assert read_corpus([first, second]) == ([Passage("1", "A", "a")], 3)
    assert load_corpus(first) == [Passage("1", "A", "a")]
    write(second, '{"pid": 2, "title": "B", "text": "b"}')
    with pytest.raises(ValueError, match=r"b\.jsonl:1: pid '2' is taken by .*a\.jsonl:2 for another passage"):
        load_corpus([first, second])


def test_broken_utf8_empty_and_missing_files(tmp_path):
    (tmp_path / "u.jsonl").write_bytes(b'{"pid": 1, "title": "\xff", "text": "a"}\n')
    with pytest.raises(ValueError, match=r"u\.jsonl:1: not valid JSON"):
        load_corpus(tmp_path / "u.jsonl")
    with pytest.raises(ValueError, match="corpus is empty"):
        load_corpus(write(tmp_path / "e.jsonl", ""))
    with pytest.raises(ValueError, match="does not exist"):
        load_corpus(tmp_path / "none.jsonl")


def test_a_truncated_or_corrupted_gzip_file_is_named(tmp_path):
    """What a killed download leaves behind."""
    whole = gzip.compress(b"".join(b'{"pid": %d, "title": "A", "text": "%d"}\n' % (i, i * i) for i in range(3000)))
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 0xFF
    for damaged in (whole[:-20], bytes(flipped), b"no gzip at all\n"):
        (tmp_path / "c.jsonl.gz").write_bytes(damaged)
        with pytest.raises(ValueError, match=r"c\.jsonl\.gz"):
            load_corpus(tmp_path / "c.jsonl.gz")


def test_store_gives_the_passages_back_and_its_hash_is_the_corpus_hash(tmp_path):
    passages = [Passage("0", "Ż", "東京\n\u2028 line"), Passage("1", "", "\ud800 surrogate"), Passage("2", "t", "")]
    write_store(passages, tmp_path)
    store = PassageStore(tmp_path)
    assert list(store) == passages and len(store) == 3
    with pytest.raises(IndexError):
        store[3]
    assert hashlib.sha256((tmp_path / PASSAGES).read_bytes()).hexdigest() == corpus_sha256(passages)
    assert corpus_sha256(passages) != corpus_sha256(passages[::-1])


def test_store_whose_files_do_not_belong_together_is_refused(tmp_path):
    write_store([Passage("0", "a", "b")], tmp_path)
    with open(tmp_path / PASSAGES, "ab") as out:
        out.write(b"{}\n")
    with pytest.raises(ValueError, match="does not describe"):
        PassageStore(tmp_path)
