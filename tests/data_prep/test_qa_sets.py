"""Question-answering sets: every layout, verl's schema, splits, and errors that name the row."""

import json
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from verl_ext.data_prep import hotpotqa, musique, qa_common, wiki2multihopqa
from verl_ext.data_prep.common import find_files, split_of
from verl_ext.data_prep.qa_layouts import join_sentences
from verl_ext.tools.retrieval import load_corpus

REPOSITORY = Path(__file__).resolve().parents[2]
SHARED = REPOSITORY.parent / "shared" / "data" / "qa"
needs_shared = pytest.mark.skipif(not SHARED.is_dir(), reason=f"the shared data are not at {SHARED}")

HUB = {
    "id": "h1",
    "question": "Where was Żuławski born?",
    "answer": "Lwów",
    "type": "bridge",
    "level": "hard",
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
MUSIQUE_ROW = {
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


def variants(row, count, key):
    return [{**row, key: f"{row[key]}-{i}", "question": f"{row['question']} ({i})"} for i in range(count)]


def write_jsonl(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def prepare(spec, source, output, *arguments):
    """Run a data set's command line in this process; returns (train rows, test rows, passages)."""
    status = qa_common.main(spec, "", ["--output_dir", str(output), "--local_dataset_path", str(source), *arguments])
    assert status == 0
    tables = [
        pq.read_table(output / name).to_pylist() if (output / name).exists() else []
        for name in ("train.parquet", "test.parquet")
    ]
    passages = load_corpus(output / "corpus.jsonl") if (output / "corpus.jsonl").exists() else []
    return (*tables, passages)


@pytest.mark.parametrize("form", ["jsonl", "json list", "json data", "parquet", "json text in parquet"])
def test_hub_layout_in_every_file_form(tmp_path, form):
    rows = variants(HUB, 10, "id")
    if form == "jsonl":
        file = write_jsonl(tmp_path / "rows.jsonl", rows)
    elif form.startswith("json "):
        file = tmp_path / "rows.json"
        file.write_text(json.dumps(rows if form == "json list" else {"data": rows}), encoding="utf-8")
    if "parquet" in form:
        file = tmp_path / "rows.parquet"
        if "text" in form:
            rows = [
                {**row, "context": json.dumps(AUTHORS["context"]), "supporting_facts": json.dumps([["Bob", 0]])}
                for row in rows
            ]
        pq.write_table(pa.Table.from_pylist(rows), file)
    train, test, passages = prepare(hotpotqa.HOTPOTQA, file, tmp_path / "out")
    assert (len(train), len(test)) == (8, 2)
    row = train[0]
    text = row["extra_info"]["question"]
    assert row["data_source"] == "hotpotqa" and row["prompt"] == [{"role": "user", "content": text}]
    assert row["reward_model"] == {"style": "rule", "ground_truth": {"target": ["Lwów"]}} and row["ability"] == "qa"
    if "text" in form:
        assert row["extra_info"]["gold_titles"] == ["Bob"]
        assert [passage.text for passage in passages] == ["Ada was born in 1815. She wrote.", "Bob was born in 1900."]
    else:
        assert row["extra_info"]["gold_titles"] == ["Żuławski", "Possession"]
        assert [passage.text for passage in passages] == ["He was a director. Born in Lwów.", "A film.", "A city."]


def test_authors_layout_of_hotpotqa_and_2wiki(tmp_path):
    file = tmp_path / "hotpot_train_v1.1.json"
    file.write_text(json.dumps(variants(AUTHORS, 10, "_id")), encoding="utf-8")
    for spec in (hotpotqa.HOTPOTQA, wiki2multihopqa.WIKI2MULTIHOPQA):
        train, test, passages = prepare(spec, file, tmp_path / spec.name)
        assert {row["data_source"] for row in train + test} == {spec.name}
        assert train[0]["extra_info"]["gold_titles"] == ["Ada", "Bob"]
        assert [passage.pid for passage in passages] == [f"{spec.name}-0", f"{spec.name}-1"]


def test_musique_aliases_gold_titles_and_unanswerable_rows(tmp_path, capsys):
    rows = variants(MUSIQUE_ROW, 5, "id")
    rows += [{**row, "id": f"{row['id']}-no", "answerable": False} for row in rows]
    train, test, _ = prepare(musique.MUSIQUE, write_jsonl(tmp_path / "m.jsonl", rows), tmp_path / "out")
    assert len(train + test) == 5
    assert train[0]["reward_model"]["ground_truth"]["target"] == ["35", "thirty-five"]
    assert train[0]["extra_info"]["gold_titles"] == ["Publix"]
    assert "read 10 rows; refused 5 without a gold answer" in capsys.readouterr().out


def test_split_words():
    names = [
        "train-00000-of-2",
        "hotpot_dev_distractor_v1",
        "validation",
        "dev (HippoRAG 1000)",
        "test",
        "latest_devices",
    ]
    assert [split_of(name) for name in names] == ["train", "validation", "validation", "validation", "test", None]


def test_folder_uses_the_sources_own_splits_and_skips_what_does_not_belong(tmp_path):
    folder = tmp_path / "hub"
    write_jsonl(folder / "distractor" / "train-0.jsonl", variants(HUB, 20, "id"))
    other = {**HUB, "question": "Another?"}
    write_jsonl(folder / "distractor" / "validation-0.jsonl", variants(other, 5, "_id" if "_id" in other else "id"))
    write_jsonl(folder / "fullwiki" / "train-0.jsonl", [{"broken": True}])
    write_jsonl(folder / "test.jsonl", [{"broken": True}])
    write_jsonl(folder / "readme.jsonl", [{"broken": True}])
    assert [split for _, split in find_files(folder, "fullwiki")] == ["train", "validation"]
    with pytest.raises(ValueError, match="taken by another question"):
        qa_common.collect(hotpotqa.HOTPOTQA, qa_common._source(hotpotqa.HOTPOTQA, arguments(folder)))
    write_jsonl(folder / "distractor" / "validation-0.jsonl", variants({**other, "id": "v"}, 5, "id"))
    train, test, _ = prepare(hotpotqa.HOTPOTQA, folder, tmp_path / "out", "--val_size", "3", "--max_samples", "7")
    assert [row["extra_info"]["id"] for row in train] == [f"h1-{i}" for i in range(7)]
    assert [row["extra_info"]["id"] for row in test] == ["v-0", "v-1", "v-2"]
    assert [row["extra_info"]["index"] for row in test] == [0, 1, 2]
    assert {row["extra_info"]["split"] for row in train} == {"train"}
    assert {row["extra_info"]["split"] for row in test} == {"test"}
    train, test, _ = prepare(hotpotqa.HOTPOTQA, folder, tmp_path / "all", "--split", "all", "--val_size", "10")
    assert (len(train), len(test)) == (15, 10)


def test_the_hubs_converted_parquet_tells_the_split_by_its_folder(tmp_path):
    for folder in ("default/train", "default/validation", "default/test", "default/other"):
        (tmp_path / folder).mkdir(parents=True)
        pq.write_table(pa.Table.from_pylist(variants(HUB, 2, "id")), tmp_path / folder / "0000.parquet")
    found = [(file.relative_to(tmp_path).as_posix(), split) for file, split in find_files(tmp_path)]
    assert found == [("default/train/0000.parquet", "train"), ("default/validation/0000.parquet", "validation")]
    (tmp_path / "default" / "train" / "dev.jsonl").touch()
    assert find_files(tmp_path)[1] == (tmp_path / "default" / "train" / "dev.jsonl", "validation")


def arguments(path):
    return type("Arguments", (), {"local_dataset_path": path, "split": "auto"})()


def test_held_out_rows_depend_on_ids_and_seed_only(tmp_path):
    rows = variants(HUB, 50, "id")
    chosen = []
    for name, content, seed in (("a", rows, "0"), ("b", rows[::-1], "0"), ("c", rows, "1")):
        file = write_jsonl(tmp_path / f"{name}.jsonl", content)
        train, test, _ = prepare(hotpotqa.HOTPOTQA, file, tmp_path / name, "--seed", seed)
        ids = {row["extra_info"]["id"] for row in test}
        assert len(ids) == 10 and not ids & {row["extra_info"]["id"] for row in train}
        chosen.append(ids)
    assert chosen[0] == chosen[1] != chosen[2]


def test_duplicates_and_leaks_are_dropped_and_counted(tmp_path, capsys):
    rows = [
        {"id": "1", "question": "Who?", "answers": ["a"], "split": "train"},
        {"id": "2", "question": "who? ", "answers": ["a"], "split": "train"},
        {"id": "3", "question": "Where?", "answers": ["b"], "split": "train"},
        {"id": "4", "question": "WHERE?", "answers": ["b"], "split": "dev"},
        {"id": "5", "question": "When?", "answers": ["", " "], "split": "dev"},
        {"id": "6", "question": "Why?", "answers": ["東京", "東京 "], "split": "test"},
    ]
    train, test, _ = prepare(musique.MUSIQUE, write_jsonl(tmp_path / "r.jsonl", rows), tmp_path / "out")
    assert [row["extra_info"]["id"] for row in train] == ["1"]
    assert [row["extra_info"]["id"] for row in test] == ["4", "6"]
    assert test[1]["reward_model"]["ground_truth"]["target"] == ["東京"]
    printed = capsys.readouterr().out
    assert "read 6 rows; refused 1 without a gold answer; dropped 1 repeated questions and 1 training" in printed
    assert "carry no paragraphs" in printed and "next: python data_prep/corpus.py" in printed


def test_without_validation_rows_no_test_file(tmp_path, capsys):
    file = write_jsonl(tmp_path / "rows.jsonl", variants(HUB, 10, "id"))
    prepare(hotpotqa.HOTPOTQA, file, tmp_path / "out")
    train, _, _ = prepare(hotpotqa.HOTPOTQA, file, tmp_path / "out", "--val_size", "0")
    assert len(train) == 10 and "left from an earlier run: " in capsys.readouterr().out


def test_sentences_are_joined_with_exactly_one_blank():
    assert join_sentences(["One.", " Two.", "Three. ", "Four."], "row") == "One. Two. Three. Four."
    assert join_sentences([], "row") == ""


def test_hub_rows_go_the_same_way(tmp_path, monkeypatch):
    asked = []

    def hub(name, config, split):
        asked.append((name, config, split))
        return variants({**HUB, "id": split, "question": f"{split}?"}, 6, "id")

    monkeypatch.setattr("datasets.load_dataset", hub)
    assert qa_common.main(hotpotqa.HOTPOTQA, "", ["--output_dir", str(tmp_path), "--val_size", "4"]) == 0
    assert asked == [("hotpotqa/hotpot_qa", "distractor", split) for split in ("train", "validation")]
    assert len(pq.read_table(tmp_path / "train.parquet")) == 6 and len(pq.read_table(tmp_path / "test.parquet")) == 4


def test_empty_lists_keep_their_type(tmp_path):
    rows = [{"id": str(i), "question": f"q{i}", "answers": ["a"]} for i in range(10)]
    prepare(musique.MUSIQUE, write_jsonl(tmp_path / "r.jsonl", rows), tmp_path / "out")
    schema = pq.read_schema(tmp_path / "out" / "train.parquet")
    assert schema.equals(qa_schema()) and pq.read_schema(tmp_path / "out" / "test.parquet").equals(schema)


def qa_schema():
    from verl_ext.data_prep.common import qa_rows_schema

    return qa_rows_schema()


def test_parquet_loads_in_verls_dataset(tmp_path):
    from omegaconf import OmegaConf
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast
    from verl.utils.dataset.rl_dataset import RLHFDataset, collate_fn

    prepare(hotpotqa.HOTPOTQA, write_jsonl(tmp_path / "r.jsonl", variants(HUB, 10, "id")), tmp_path / "out")
    raw = Tokenizer(models.WordLevel({"[UNK]": 0, "user": 1}, unk_token="[UNK]"))
    raw.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, unk_token="[UNK]", pad_token="[UNK]")
    tokenizer.chat_template = "{% for m in messages %}{{ m['role'] }} {{ m['content'] }}{% endfor %}"
    config = OmegaConf.create({"cache_dir": str(tmp_path / "cache"), "max_prompt_length": 64, "return_raw_chat": True})
    dataset = RLHFDataset([str(tmp_path / "out" / "train.parquet")], tokenizer, config)
    assert len(dataset) == 8
    batch = collate_fn([dataset[0], dataset[1]])
    row = dataset[0]
    assert row["extra_info"]["gold_titles"] == ["Żuławski", "Possession"] and row["index"] == 0
    assert list(row["raw_prompt"]) == [{"role": "user", "content": row["extra_info"]["question"]}]
    assert batch["reward_model"][1]["ground_truth"]["target"] == ["Lwów"]


@needs_shared
@pytest.mark.parametrize(
    "script, file, train, test, passages",
    [
        ("hotpotqa", "hotpotqa", 80, 481, 5487),
        ("hotpotqa", "hotpotqa_hub_layout_100", 65, 16, 810),
        ("wiki2multihopqa", "2wikimultihopqa", 637, 159, 0),
        ("musique", "musique", 56, 14, 1338),
    ],
)
def test_scripts_on_the_shared_data(tmp_path, script, file, train, test, passages):
    """As a user runs them: a fresh process, the file as it is."""
    command = [sys.executable, str(REPOSITORY / "data_prep" / f"{script}.py"), "--output_dir", str(tmp_path)]
    command += ["--local_dataset_path", str(SHARED / f"{file}.jsonl")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].startswith("next: python data_prep/corpus.py --input ")
    assert len(pq.read_table(tmp_path / "train.parquet")) == train
    assert len(pq.read_table(tmp_path / "test.parquet")) == test
    assert (len(load_corpus(tmp_path / "corpus.jsonl")) if passages else 0) == passages
