"""qa.py: every layout, verl's schema, splits, and errors that name the row, field, given and expected."""

import gzip
import json
import re

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.data_prep.shared import write_jsonl
from tests.public_data import SHARED, needs_shared
from verl_ext.data_prep import qa
from verl_ext.data_prep.qa_rows import join_sentences
from verl_ext.data_prep.rows import find_files, read_rows, split_of
from verl_ext.storage.parquet import rows_schema
from verl_ext.tools.retrieval import load_corpus

HUB = {
    "id": "h1",
    "question": "Where was Żuławski born?",
    "answer": "Lwów",
    "supporting_facts": {"title": ["Żuławski", "Possession", "Żuławski"], "sent_id": [0, 1, 1]},
    "context": {
        "title": ["Żuławski", "Possession", "Paris"],
        "sentences": [["He was a director.", " Born in Lwów."], ["A film."], ["A city."]],
    },
}
AUTHORS = {
    "_id": "a1",
    "question": "Who is older?",
    "answer": "Ada",
    "supporting_facts": [["Ada", 0], ["Bob", 0]],
    "context": [["Ada", ["Ada was born in 1815.", "She wrote."]], ["Bob", ["Bob was born in 1900."]]],
}
MUSIQUE = {
    "id": "2hop__1_2",
    "question": "How many stores?",
    "answer": "35",
    "answer_aliases": ["thirty-five", "35", ""],
    "answerable": True,
    "paragraphs": [
        {"idx": 0, "title": "Publix", "paragraph_text": "35 stores.", "is_supporting": True},
        {"idx": 1, "title": "Other", "paragraph_text": "Nothing.", "is_supporting": False},
    ],
}


def variants(row, count, key="id"):
    return [{**row, key: f"{row[key]}-{i}", "question": f"{row['question']} ({i})"} for i in range(count)]


def run(name, source, output, *options):
    return qa.main([name, "--output_dir", str(output), "--local_dataset_path", str(source), *options])


def prepare(name, source, output, *options):
    """(train rows, test rows, passages)"""
    assert run(name, source, output, *options) == 0
    files = [output / "train.parquet", output / "test.parquet"]
    tables = [pq.read_table(file).to_pylist() if file.exists() else [] for file in files]
    return (*tables, load_corpus(output / "corpus.jsonl") if (output / "corpus.jsonl").exists() else [])


def ids(rows):
    return [row["extra_info"]["id"] for row in rows]


@pytest.mark.parametrize("form", ["jsonl", "json list", "json data", "parquet", "json text in parquet"])
def test_the_hubs_layout_in_every_form_of_file(tmp_path, form):
    rows, file = variants(HUB, 10), tmp_path / ("rows.parquet" if "parquet" in form else f"rows.{form.split()[0]}")
    if "text" in form:
        texts = {"context": json.dumps(AUTHORS["context"]), "supporting_facts": json.dumps([["Bob", 0]])}
        rows = [row | texts for row in rows]
    if "parquet" in form:
        pq.write_table(pa.Table.from_pylist(rows), file)
    elif form == "jsonl":
        write_jsonl(file, rows)
    else:
        file.write_text(json.dumps({"data": rows} if "data" in form else rows), encoding="utf-8")
    train, test, passages = prepare("hotpotqa", file, tmp_path / "out")
    assert (len(train), len(test)) == (8, 2)
    row, question = train[0], train[0]["extra_info"]["question"]
    assert row["data_source"] == "hotpotqa" and row["prompt"] == [{"role": "user", "content": question}]
    assert row["reward_model"] == {"style": "rule", "ground_truth": {"target": ["Lwów"]}} and row["ability"] == "qa"
    found = row["extra_info"]["gold_titles"], [passage.text for passage in passages]
    if "text" in form:
        assert found == (["Bob"], ["Ada was born in 1815. She wrote.", "Bob was born in 1900."])
    else:
        assert found == (["Żuławski", "Possession"], ["He was a director. Born in Lwów.", "A film.", "A city."])


@pytest.mark.parametrize("name", ["hotpotqa", "2wikimultihopqa"])
def test_the_authors_layout(tmp_path, name):
    file = tmp_path / "hotpot_train_v1.1.json"
    file.write_text(json.dumps(variants(AUTHORS, 10, "_id")), encoding="utf-8")
    train, test, passages = prepare(name, file, tmp_path / "out")
    assert {row["data_source"] for row in train + test} == {name}
    assert train[0]["extra_info"]["gold_titles"] == ["Ada", "Bob"]
    assert [passage.pid for passage in passages] == [f"{name}-0", f"{name}-1"]


def test_musique_has_aliases_and_unanswerable_rows(tmp_path, capsys):
    rows = variants(MUSIQUE, 5)
    rows += [{**row, "id": f"{row['id']}-no", "answerable": False} for row in rows]
    train, test, _ = prepare("musique", write_jsonl(tmp_path / "m.jsonl", rows), tmp_path / "out")
    assert len(train + test) == 5 and train[0]["extra_info"]["gold_titles"] == ["Publix"]
    assert train[0]["reward_model"]["ground_truth"]["target"] == ["35", "thirty-five"]
    assert "read 10 rows; refused 5 without a gold answer" in capsys.readouterr().out


def test_words_that_tell_a_split_and_sentences_that_are_joined():
    names = ["train-00000-of-2", "hotpot_dev_distractor_v1", "validation", "dev (HippoRAG 1000)", "test", "latest_dev2"]
    assert [split_of(name) for name in names] == ["train", *["validation"] * 3, "test", "validation"]
    assert split_of("latest_devices") is None
    assert join_sentences(["One.", " Two.", "Three. ", "Four."], "row") == "One. Two. Three. Four."
    assert join_sentences([], "row") == ""


def test_a_folder_has_its_own_splits_and_files_that_do_not_belong(tmp_path, capsys):
    folder, other = tmp_path / "hub", {**HUB, "id": "v", "question": "Another?"}
    write_jsonl(folder / "distractor" / "train-0.jsonl", variants(HUB, 20))
    for name in ("fullwiki/train-0", "test", "readme"):
        write_jsonl(folder / f"{name}.jsonl", [{"broken": True}])
    write_jsonl(folder / "distractor" / "validation-0.jsonl", variants({**other, "id": "h1"}, 5))
    assert run("hotpotqa", folder, tmp_path / "out") == 2 and "taken by another question" in capsys.readouterr().err
    write_jsonl(folder / "distractor" / "validation-0.jsonl", variants(other, 5))
    train, test, _ = prepare("hotpotqa", folder, tmp_path / "out", "--val_size", "3", "--max_samples", "7")
    assert ids(train) == [f"h1-{i}" for i in range(7)] and ids(test) == ["v-0", "v-1", "v-2"]
    assert [row["extra_info"]["index"] for row in test] == [0, 1, 2]
    assert [{row["extra_info"]["split"] for row in rows} for rows in (train, test)] == [{"train"}, {"test"}]
    train, test, _ = prepare("hotpotqa", folder, tmp_path / "all", "--split", "all", "--val_size", "10")
    assert (len(train), len(test)) == (15, 10)


def test_the_hubs_converted_parquet_tells_the_split_by_its_folder(tmp_path):
    for folder in ("train", "validation", "test", "other"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "0000.parquet").touch()
    (tmp_path / "train" / "dev.jsonl").touch()
    found = [(file.relative_to(tmp_path).as_posix(), split) for file, split in find_files(tmp_path)]
    expected = [("train/0000.parquet", "train"), ("train/dev.jsonl", "validation")]
    assert found == [*expected, ("validation/0000.parquet", "validation")]


def test_held_out_rows_depend_on_ids_and_seed_only(tmp_path):
    rows, chosen = variants(HUB, 50), []
    for name, content, seed in (("a", rows, "0"), ("b", rows[::-1], "0"), ("c", rows, "1")):
        file = write_jsonl(tmp_path / f"{name}.jsonl", content)
        train, test, _ = prepare("hotpotqa", file, tmp_path / name, "--seed", seed)
        assert len(test) == 10 and not set(ids(test)) & set(ids(train))
        chosen.append(set(ids(test)))
    assert chosen[0] == chosen[1] != chosen[2]


def test_repeated_questions_are_dropped_and_counted_and_empty_lists_keep_their_type(tmp_path, capsys):
    rows = [
        {"id": "1", "question": "Who?", "answers": ["a"], "split": "train"},
        {"id": "2", "question": "who? ", "answers": ["a"], "split": "train"},
        {"id": "3", "question": "Where?", "answers": ["b"], "split": "train"},
        {"id": "4", "question": "WHERE?", "answers": ["b"], "split": "dev"},
        {"id": "5", "question": "When?", "answers": ["", " "], "split": "dev"},
        {"id": "6", "question": "Why?", "answers": ["東京", "東京 "], "split": "test"},
    ]
    train, test, _ = prepare("musique", write_jsonl(tmp_path / "r.jsonl", rows), tmp_path / "out")
    assert ids(train) == ["1"] and ids(test) == ["4", "6"]
    assert test[1]["reward_model"]["ground_truth"]["target"] == ["東京"]
    printed = capsys.readouterr().out
    assert "read 6 rows; refused 1 without a gold answer; dropped 1 repeated questions and 1 training" in printed
    assert "have no paragraphs" in printed and "next: python data_prep/corpus.py" in printed
    schema = rows_schema({"target": [str]}, {"gold_titles": [str], "level": str, "type": str})
    assert pq.read_schema(tmp_path / "out" / "train.parquet").equals(schema)


def test_a_file_that_an_earlier_run_left_is_named(tmp_path, capsys):
    file = write_jsonl(tmp_path / "rows.jsonl", variants(HUB, 10))
    prepare("hotpotqa", file, tmp_path / "out")
    train, _, _ = prepare("hotpotqa", file, tmp_path / "out", "--val_size", "0")
    assert len(train) == 10 and "left from an earlier run: " in capsys.readouterr().out


def test_the_hub(tmp_path, monkeypatch, capsys):
    asked = []

    def load(name, config, split):
        asked.append((name, config, split))
        return variants({**HUB, "id": split, "question": f"{split}?"}, 6)

    monkeypatch.setattr("datasets.load_dataset", load)
    assert qa.main(["hotpotqa", "--output_dir", str(tmp_path), "--val_size", "4"]) == 0
    assert asked == [("hotpotqa/hotpot_qa", "distractor", split) for split in ("train", "validation")]
    assert [len(pq.read_table(tmp_path / f"{split}.parquet")) for split in ("train", "test")] == [6, 4]

    def unreachable(name, config, split):
        raise ConnectionError(f"cannot reach {name} {config} {split}")

    monkeypatch.setattr("datasets.load_dataset", unreachable)
    assert qa.main(["hotpotqa", "--output_dir", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert "cannot reach hotpotqa/hotpot_qa distractor train" in error and "--local_dataset_path" in error


def test_verls_data_set_reads_the_rows(tmp_path):
    from omegaconf import OmegaConf
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast
    from verl.utils.dataset.rl_dataset import RLHFDataset, collate_fn

    prepare("hotpotqa", write_jsonl(tmp_path / "r.jsonl", variants(HUB, 10)), tmp_path / "out")
    raw = Tokenizer(models.WordLevel({"[UNK]": 0, "user": 1}, unk_token="[UNK]"))
    raw.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, unk_token="[UNK]", pad_token="[UNK]")
    tokenizer.chat_template = "{% for m in messages %}{{ m['role'] }} {{ m['content'] }}{% endfor %}"
    config = OmegaConf.create({"cache_dir": str(tmp_path / "cache"), "max_prompt_length": 64, "return_raw_chat": True})
    dataset = RLHFDataset([str(tmp_path / "out" / "train.parquet")], tokenizer, config)
    row = dataset[0]
    assert len(dataset) == 8 and row["index"] == 0
    assert row["extra_info"]["gold_titles"] == ["Żuławski", "Possession"]
    assert list(row["raw_prompt"]) == [{"role": "user", "content": row["extra_info"]["question"]}]
    assert collate_fn([row, dataset[1]])["reward_model"][1]["ground_truth"]["target"] == ["Lwów"]


@needs_shared
@pytest.mark.parametrize(
    "name, file, train, test, passages",
    [
        ("hotpotqa", "hotpotqa", 80, 481, 5487),
        ("hotpotqa", "hotpotqa_hub_layout_100", 65, 16, 810),
        ("2wikimultihopqa", "2wikimultihopqa", 637, 159, 0),
        ("musique", "musique", 56, 14, 1338),
    ],
)
def test_real_rows(tmp_path, name, file, train, test, passages):
    assert [len(part) for part in prepare(name, SHARED / "qa" / f"{file}.jsonl", tmp_path)] == [train, test, passages]


BAD_ROWS = [
    ({**HUB, "answer": 3}, "field 'answer': given int 3, expected a string"),
    ({k: v for k, v in HUB.items() if k != "answer"}, "field 'answer': given no such field among"),
    ({**HUB, "question": "  "}, "field 'question': given an empty string"),
    ({**HUB, "question": "\ud800"}, "field 'question': given a broken character"),
    ({**HUB, "context": {"title": ["a"], "sentences": []}}, "field 'context': given .* equal lengths"),
    ({**HUB, "context": [["a", [1]]]}, "expected a list of strings"),
    ({**HUB, "supporting_facts": [["a", 0, 1]]}, "field 'supporting_facts'"),
    ({"id": "x", "question": "q", "answers": "a"}, "field 'answers': given str 'a', expected a list"),
    ({"id": "x", "question": "q", "answers": [1]}, "answers and titles must be strings, given int 1"),
    ({"id": "x", "question": "q", "answers": ["a"], "paragraphs": [{"title": "t"}]}, "paragraph 0: field 'text'"),
    ([1, 2], "given list .*, expected an object"),
    ({**HUB, "id": "h1-0"}, "id 'h1-0' is taken by another question at .*rows.jsonl:1"),
]


@pytest.mark.parametrize("bad, message", BAD_ROWS)
def test_malformed_rows_are_named(tmp_path, capsys, bad, message):
    file = write_jsonl(tmp_path / "rows.jsonl", [*variants(HUB, 2), bad])
    assert run("hotpotqa", file, tmp_path / "out") == 2 and not (tmp_path / "out").exists()
    error = capsys.readouterr().err
    assert re.search(rf"rows\.jsonl:3: .*{message}", error), error


@pytest.mark.parametrize(
    "name, content, message",
    [
        ("a.txt", b"x", "expected one of"),
        ("a.csv", b"a\n\xff", "not a readable csv"),
        ("a.json", b"[{]", "not valid JSON"),
        ("a.jsonl", b'{"a": 1}\n{"b"', r"a\.jsonl:2: not valid JSON"),
        ("a.json", b'{"a": 1}\n{"b"', r"a\.json:2: not valid JSON"),
        ("a.parquet", b"PAR0", "not a readable parquet"),
    ],
)
def test_malformed_files_are_named(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=message):
        list(read_rows(tmp_path / name))


def test_impossible_arguments_are_refused(tmp_path, capsys):
    file = write_jsonl(tmp_path / "rows.jsonl", variants(HUB, 10))
    for source, options, message in (
        (file, ["--val_size", "10"], "leaves no training rows"),
        (file, ["--val_size", "-1"], "must be >= 0"),
        (file, ["--split", "validation"], "leaves no training rows"),
        (tmp_path / "none", [], "does not exist"),
        (tmp_path, [], "rename the files or give one file"),
    ):
        assert run("hotpotqa", source, tmp_path / "out", *options) == 2 and message in capsys.readouterr().err
    with pytest.raises(SystemExit):
        run("hotpotqa", file, tmp_path / "out", "--max_samples", "0")


def test_a_packed_file_is_read_or_refused_and_conflicts_and_unread_files_are_named(tmp_path, capsys):
    folder, rows = tmp_path / "hub", variants(HUB, 10)
    write_jsonl(folder / "dev.jsonl", variants({**HUB, "id": "v", "question": "Another?"}, 5))
    write_jsonl(folder / "extra.jsonl", [{"broken": True}])
    file = write_jsonl(tmp_path / "rows", [*rows, rows[0] | {"id": "new", "answer": "Kraków"}])
    (folder / "train.jsonl.gz").write_bytes(gzip.compress(file.read_bytes()))
    found, printed = prepare("hotpotqa", folder, tmp_path / "out"), capsys.readouterr().out
    assert [*map(len, found[:2])] == [10, 5] and "1 with other answers than the first: " in printed
    assert "train.jsonl.gz:11" in printed and "extra.jsonl" in printed
    (folder / "train.zip").touch()
    assert run("hotpotqa", folder, tmp_path / "out") == 2 and "train.zip is packed" in capsys.readouterr().err


@pytest.mark.parametrize("stopped_at", ["test.parquet", "corpus.jsonl"])
def test_the_training_questions_come_last(tmp_path, capsys, stopped_at):
    """`make real` takes them for the sign that all is there."""
    (tmp_path / "out" / stopped_at).mkdir(parents=True)  # it cannot be written
    source = write_jsonl(tmp_path / "dev.jsonl", variants(HUB, 10))
    assert run("hotpotqa", source, tmp_path / "out") == 2 and stopped_at in capsys.readouterr().err
    assert not (tmp_path / "out" / "train.parquet").exists()
