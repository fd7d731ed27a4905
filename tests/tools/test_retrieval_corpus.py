"""Reading corpora and questions: layouts, errors with file and line, the on-disk store, recall by hand."""

import gzip
import hashlib
import json
import unicodedata

import pytest

from verl_ext.data_prep import qa
from verl_ext.tools.retrieval import Passage, load_corpus
from verl_ext.tools.retrieval.corpus import PASSAGES, PassageStore, corpus_sha256, read_corpus, write_store
from verl_ext.tools.retrieval.recall import Question, read_questions, recall, same_title

GOOD = '{"pid": 1, "title": "A", "text": "a"}'
DEEP = "[" * 100_000


def write(path, *rows):
    lines = (row if isinstance(row, str) else json.dumps(row) for row in rows)
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def test_both_layouts_several_files_and_gzip(tmp_path):
    first = write(
        tmp_path / "c.jsonl",
        {"pid": 0, "title": "A", "text": "first", "datasets": ["x"]},
        "",
        {"id": "w1", "contents": '"The "B" side"\nsecond\nthird'},
        {"id": "w2", "contents": "no line break"},
        {"pid": "n", "text": "no title"},
    )
    second = tmp_path / "b.jsonl.gz"
    second.write_bytes(gzip.compress('{"pid": 2, "title": "Ż", "text": "b"}\n'.encode()))
    assert load_corpus([first, second]) == [
        Passage("0", "A", "first"),
        Passage("w1", 'The "B" side', "second\nthird"),
        Passage("w2", "no line break", ""),
        Passage("n", "", "no title"),
        Passage("2", "Ż", "b"),
    ]


@pytest.mark.parametrize(
    "bad, message",
    [
        ("{broken", "not valid JSON"),
        ("[1]", "given list"),
        pytest.param(DEEP, "not valid JSON", id="deep"),
        ('{"title": "A", "text": "a"}', "field 'pid'"),
        ('{"pid": 2, "title": 3, "text": "a"}', "field 'title'"),
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
    write(second, {"pid": 2, "title": "B", "text": "b"})
    with pytest.raises(ValueError, match=r"b\.jsonl:1: pid '2' is taken by .*a\.jsonl:2 for another passage"):
        load_corpus([first, second])


def test_unreadable_files_are_named(tmp_path):
    """Among them compressed files as a killed download leaves them."""
    whole = gzip.compress(b"".join(b'{"pid": %d, "title": "A", "text": "%d"}\n' % (i, i * i) for i in range(3000)))
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 0xFF
    for damaged in (whole[:-20], bytes(flipped), b"no gzip at all\n"):
        (tmp_path / "c.jsonl.gz").write_bytes(damaged)
        with pytest.raises(ValueError, match=r"c\.jsonl\.gz"):
            load_corpus(tmp_path / "c.jsonl.gz")
    (tmp_path / "u.jsonl").write_bytes(b'{"pid": 1, "title": "\xff", "text": "a"}\n')
    for name, message in (("u.jsonl", r"u\.jsonl:1: not valid JSON"), ("none.jsonl", "does not exist")):
        with pytest.raises(ValueError, match=message):
            load_corpus(tmp_path / name)
    with pytest.raises(ValueError, match="corpus is empty"):
        load_corpus(write(tmp_path / "e.jsonl", ""))


def test_store_gives_the_passages_back_and_its_hash_is_the_corpus_hash(tmp_path):
    passages = [Passage("0", "Ż", "東京\n\u2028 line"), Passage("1", "", "\ud800 surrogate"), Passage("2", "t", "")]
    write_store(passages, tmp_path)
    store = PassageStore(tmp_path)
    assert list(store) == passages and len(store) == 3
    with pytest.raises(IndexError):
        store[3]
    assert hashlib.sha256((tmp_path / PASSAGES).read_bytes()).hexdigest() == corpus_sha256(passages)
    assert corpus_sha256(passages) != corpus_sha256(passages[::-1])
    with open(tmp_path / PASSAGES, "ab") as out:
        out.write(b"{}\n")
    with pytest.raises(ValueError, match="does not describe"):
        PassageStore(tmp_path)


def question(*gold):
    return Question("?", frozenset(map(same_title, gold)))


def test_recall_and_all_by_hand():
    questions = [question("A", "B"), question("C"), question("D", "E", "F", "G")]
    found = [["x", "A", "x", "x", "x", "B"], ["C"], ["E", "x", "D", "G", "x", "x", "F"]]
    # among five: 1 of 2, 1 of 1, 3 of 4; among ten: all of them
    assert recall(questions, found, 5) == (pytest.approx((0.5 + 1 + 0.75) / 3), pytest.approx(1 / 3))
    assert recall(questions, found, 10) == (1.0, 1.0)
    assert recall(questions, [[], [], []], 5) == (0.0, 0.0)
    repeated = [["A", "A", "A", "A", "A", "B"]]  # counts once, and takes five places
    assert recall(questions[:1], repeated, 5) == (0.5, 0.0) and recall(questions[:1], repeated, 6) == (1.0, 1.0)


@pytest.mark.parametrize(
    "one, other, same",
    [
        ("Andrzej Żuławski", unicodedata.normalize("NFD", "Andrzej Żuławski"), True),
        ("Straße", "STRASSE", True),
        ("Fast Cars &amp; Freedom", "Fast Cars & Freedom", True),
        ("  New\u00a0York\tCity ", "New York City", True),
        ("Zulawski", "Żuławski", False),
        ("Paris", "Paris (Texas)", False),
    ],
)
def test_which_titles_are_the_same(one, other, same):
    assert one != other and recall([question(one)], [[other]], 5) == (same, same)


def test_questions_without_gold_titles_are_counted_and_left_out(tmp_path):
    rows = [{"question": str(gold), "gold_titles": gold} for gold in ([], None, [" "])]
    rows = [{"question": "one", "gold_titles": ["A", "a", "B"]}, *rows, {"question": "missing"}]
    rows.append({"extra_info": {"question": "two", "gold_titles": ["C"]}, "question": "not this one"})
    path = write(tmp_path / "q.jsonl", "", *rows)
    questions, without = read_questions(path)
    assert [(q.text, sorted(q.gold)) for q in questions] == [("one", ["a", "b"]), ("two", ["c"])] and without == 4
    assert read_questions(path, 2) == (questions[:1], 1)
    rows = [{"id": 1, "question": "who?", "answers": ["x"], "gold_titles": ["A", "Ż"]}]
    rows.append({"id": 2, "question": "what?", "answers": ["y"]})
    source = write(tmp_path / "rows.jsonl", *rows)
    given = ["--output_dir", str(tmp_path), "--local_dataset_path", str(source), "--val_size", "0"]
    assert qa.main(["musique", *given]) == 0
    assert read_questions(tmp_path / "train.parquet") == ([Question("who?", frozenset({"a", "ż"}))], 1)


@pytest.mark.parametrize(
    "name, text, message",
    [
        ("q.jsonl", "{broken", r"q.jsonl:1: not valid JSON"),
        ("q.jsonl", '{"question": "a", "gold_titles": ["A"]}\n[1]', r"q.jsonl:2: given list \[1\], expected"),
        ("q.jsonl", '{"question": 3, "gold_titles": ["A"]}', "q.jsonl:1: given"),
        ("q.jsonl", '{"question": "a", "gold_titles": "A"}', "q.jsonl:1: given"),
        ("q.jsonl", '{"question": "a"}', "none of its 1 questions has gold titles"),
        ("q.csv", "a,b", "suffix '.csv'; give a .parquet or .jsonl"),
        ("q.parquet", "PAR1", "not a readable parquet"),
        ("none.jsonl", None, "none.jsonl does not exist"),
    ],
)
def test_wrong_questions_files_are_named_with_the_line(tmp_path, name, text, message):
    if text is not None:
        write(tmp_path / name, text)
    with pytest.raises(ValueError, match=message):
        read_questions(tmp_path / name)
