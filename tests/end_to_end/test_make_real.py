"""`make real ARGS=--quick` as a whole, from questions to the report, with a tiny model in the place of SmolLM2."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

from tests.end_to_end.running import environment
from verl_ext import sft
from verl_ext.plugin import package_path

REPOSITORY = Path(__file__).resolve().parents[2]
COLD_START, CHOSEN = Path("runs/mhgpo_real_cold_start"), Path("runs/mhgpo_real_questions")
# As many as a cold start of 36 steps in two epochs needs, beside the 128 of validation.
QUESTIONS = 128 + 96

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1200),  # the fixture `made` has eight programs to start
    pytest.mark.skipif(shutil.which("make") is None, reason="no make"),
]


def write_questions(room: Path) -> None:
    """In the layout of HotpotQA's authors. They have one answer, which a tiny model learns to say."""
    first = ("Ada", "Bob", "Cleo", "Dan", "Eve", "Finn", "Gus", "Hal", "Ida", "Jon", "Kim", "Leo", "Mia", "Ned")
    names = [f"{name}{end}" for name in first for end in ("", *"bdfghklmnprstvw")]
    rows = [
        {
            "_id": str(number),
            "question": f"What is the colour of {name}?",
            "answer": "red",
            "supporting_facts": [[name, 0]],
            "context": [[name, [f"{name} is red."]], [f"House {number}", ["A house."]]],
        }
        for number, name in enumerate(names[:QUESTIONS])
    ]
    (room / "questions.json").write_text(json.dumps(rows))
    passages = [(title, sentences[0]) for row in rows for title, sentences in row["context"]]
    for file, some in (("corpus.jsonl", passages), ("other.jsonl", passages[1::2])):
        lines = [json.dumps({"pid": str(i), "title": title, "text": text}) for i, (title, text) in enumerate(some)]
        (room / file).write_text("\n".join(lines))


def write_model(folder: Path) -> None:
    """Random weights. A large last norm lets it learn at a real model's rates, and it begins with equal logits."""
    tokenizer = AutoTokenizer.from_pretrained(package_path("recipe/mhgpo/assets/tiny_model"))
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=4096,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    network = LlamaForCausalLM(config)
    with torch.no_grad():
        network.model.norm.weight.fill_(1000.0)
        network.lm_head.weight.zero_()
    network.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    (folder / "source.json").write_text("{}")  # for the Makefile: the model is there


def write_environment(folder: Path, line: str) -> None:
    """A virtual environment that is complete for the Makefile, and whose Python is a line of shell."""
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "python").write_text(f"#!/bin/sh\n{line}\n")
    (folder / "bin" / "python").chmod(0o755)
    for stamp in (".train", ".dev"):
        (folder / stamp).touch()


def command(*more: str) -> list[str]:
    given = ["QUESTIONS=questions.json", "CORPUS=corpus.jsonl", "ARGS=--quick", "VENV=.venv"]
    names = [name.partition("=")[0] for name in more]
    return ["make", "real", *(one for one in given if one.partition("=")[0] not in names), *more]


def variables() -> dict[str, str]:
    """Without those of a `make` that runs the tests."""
    return {name: value for name, value in environment().items() if not name.startswith("MAKE")}


def make(room: Path, *more: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*more), cwd=room, env=variables() | environ, capture_output=True, text=True, timeout=900
    )


def make_and_kill(room: Path) -> None:
    """Kill the command and all that it has started at the first checkpoint of the cold start."""
    tracker = room / COLD_START / "latest_checkpointed_iteration.txt"
    with open(room / "killed.log", "w") as log:
        process = subprocess.Popen(command(), cwd=room, env=variables(), stdout=log, stderr=log, start_new_session=True)
        deadline = time.monotonic() + 300
        while not tracker.exists() or tracker.read_text() != "12":
            assert process.poll() is None and time.monotonic() < deadline, (room / "killed.log").read_text()[-6000:]
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.fixture(scope="module")
def room(tmp_path_factory):
    room = tmp_path_factory.mktemp("real")
    shutil.copy(REPOSITORY / "Makefile", room)
    (room / "setup.py").touch()
    write_environment(room / ".venv", f'exec "{sys.executable}" "$@"')
    write_environment(room / "idle", "exit 0")
    write_model(room / "models/smollm2")
    write_questions(room)
    return room


@pytest.fixture(scope="module")
def made(room):
    """The folder and what was printed: killed in the cold start, then given again, to the end."""
    make_and_kill(room)
    done = make(room)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return room, done.stdout, done.stderr


def stages(printed: str) -> list[int]:
    return [int(line.split()[2]) for line in printed.splitlines() if line.startswith("make real, ")]


def test_a_part_that_fails_stops_the_command_with_its_own_message(room):
    done = make(room, "QUESTIONS=nowhere.json")
    assert done.returncode == 2 and stages(done.stdout) == [2] and "nowhere.json does not exist" in done.stderr
    done = make(room, "QUESTIONS=", HF_HUB_OFFLINE="1", HF_HOME=str(room / "hub"))
    assert done.returncode == 2 and "\nFrom a file instead: make real QUESTIONS=FILE\n" in done.stderr
    done = make(room, "CORPUS=other.jsonl")
    assert done.returncode == 2 and stages(done.stdout) == [2, 3]
    assert "was the index made from the passages of these questions?" in done.stderr
    assert "Traceback" not in done.stderr and not (room / "runs").exists()


def test_a_killed_cold_start_goes_on(made):
    room, printed, _ = made
    assert stages(printed) == [4, 5, 6], "data and index are not made again"
    assert "36 steps, from its checkpoint of step 12 …" in printed
    assert len(list((room / COLD_START).glob("sft*.jsonl"))) == 2
    losses, _ = sft.losses_of(room / COLD_START / sft.LOG)
    assert len(losses) == 36 and losses[-1] < 0.5 * losses[0]


def test_what_the_terminal_shows(made):
    _, printed, errors = made
    assert "\nstep 13/36  loss " in printed and "\nDone.\n  loss " in printed
    for noise in ("engine is not available", "set_vital", "is_fx_tracing", "deprecated", "[INFO]", "Epoch 1/2"):
        assert noise not in printed + errors
    assert "questions have rewards that differ and a mean from 0.05 to 0.95" in printed
    assert "2 runs, 0 of them complete, 1 at a time" in printed and "[2/2] mhgpo_rr seed 1" in printed
    for row in ("| Untrained ", "| After the cold start ", "| MHGPO-RR "):
        assert row in printed
    assert "what agents said" in printed.rpartition("\nNext:\n")[2]


def test_the_comparison_is_of_the_cold_start_on_the_chosen_questions(made):
    room = made[0]
    asked = pq.read_table(room / CHOSEN / "questions.parquet")
    assert 0 < len(asked) < 96
    run = json.loads((room / "runs/compare/real_quick/mhgpo_rr/seed_1/run.json").read_text())
    for setting, place in (("data.train_files", CHOSEN), ("actor_rollout_ref.model.path", COLD_START)):
        assert any(text.startswith(f"{setting}={room / place}") for text in run["command"])
    assert (room / "runs/compare/real_quick/report.md").is_file()


def test_given_again_it_has_nothing_to_do(made):
    room = made[0]
    before = {path: path.stat().st_mtime_ns for path in (room / "runs").rglob("*.parquet")}
    again = make(room)
    assert again.returncode == 0 and stages(again.stdout) == [6]
    assert "2 runs, 2 of them complete" in again.stdout and "| MHGPO-RR " in again.stdout
    assert {path: path.stat().st_mtime_ns for path in (room / "runs").rglob("*.parquet")} == before


def test_removed_questions_are_made_again_from_the_answers(made):
    room = made[0]
    file = room / CHOSEN / "questions.parquet"
    before = pq.read_table(file)
    file.unlink()
    stopped = make(room, "VENV=idle")  # as if no question had been kept
    assert stopped.returncode == 2 and stages(stopped.stdout) == [5] and "make real stops here" in stopped.stderr
    again = make(room)
    assert again.returncode == 0 and stages(again.stdout) == [5, 6] and "384 of 384 are answered" in again.stdout
    assert pq.read_table(file).equals(before) and "2 runs, 2 of them complete" in again.stdout


def test_the_answers_of_an_older_cold_start_are_not_kept(made):
    """Last: the evaluation would refuse to mix them with a newer one's."""
    room = made[0]
    (room / COLD_START / "global_step_36/huggingface/config.json").touch()
    stopped = make(room, "VENV=idle")
    assert stages(stopped.stdout) == [5] and not (room / CHOSEN).exists() and "stops here" in stopped.stderr
