"""Stored embeddings: a killed computation goes on to the same bytes, and never with another corpus or model."""

import json
import signal
import subprocess
import sys

import numpy as np
import pytest

from verl_ext.tools.retrieval import Passage
from verl_ext.tools.retrieval import vectors as module
from verl_ext.tools.retrieval.vectors import embedding_seconds, stored_vectors

PASSAGES = [Passage(str(i), f"T{i}", "x" * i) for i in range(10)]
KEY = {"corpus_sha256": "c", "model": "m", "passage_prefix": ""}
PROGRAM = """
import os, signal, sys
from pathlib import Path
from verl_ext.tools.retrieval import vectors
from tests.tools.test_retrieval_vectors import KEY, PASSAGES, encode

vectors.CHUNK, calls = 3, []

def killed_at_the_third_chunk(part):
    calls.append(part)
    if len(calls) == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return encode(part)

vectors.stored_vectors(Path(sys.argv[1]), KEY, PASSAGES, killed_at_the_third_chunk)
"""


def encode(part):
    return np.asarray([[float(passage.pid), len(passage.text), 0.5] for passage in part], dtype=np.float32)


class Counting:
    """`encode` that notes the pids it was given."""

    def __init__(self):
        self.pids = []

    def __call__(self, part):
        self.pids += [int(passage.pid) for passage in part]
        return encode(part)


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    monkeypatch.setattr(module, "CHUNK", 3)


def test_a_second_call_computes_nothing(tmp_path):
    counting = Counting()
    first = stored_vectors(tmp_path / "v", KEY, PASSAGES, counting)
    assert counting.pids == list(range(10)) and np.array_equal(first, encode(PASSAGES))
    seconds = embedding_seconds(tmp_path / "v")
    assert np.array_equal(stored_vectors(tmp_path / "v", KEY, PASSAGES, counting), first)
    assert counting.pids == list(range(10)) and embedding_seconds(tmp_path / "v") == seconds > 0
    assert embedding_seconds(tmp_path / "none") == 0


def test_a_killed_process_goes_on_to_the_same_bytes(tmp_path):
    killed = subprocess.run([sys.executable, "-c", PROGRAM, str(tmp_path / "v")], timeout=500)
    assert killed.returncode == -signal.SIGKILL
    counting = Counting()
    stored_vectors(tmp_path / "v", KEY, PASSAGES, counting)
    assert counting.pids == [6, 7, 8, 9]
    stored_vectors(tmp_path / "whole", KEY, PASSAGES, encode)
    assert (tmp_path / "v" / "vectors.f32").read_bytes() == (tmp_path / "whole" / "vectors.f32").read_bytes()


@pytest.mark.parametrize("rest, again", [(12 * 4 + 5, [3, 4, 5, 6, 7, 8, 9]), (0, list(range(10)))])
def test_lost_rows_are_computed_again(tmp_path, rest, again):
    whole = np.array(stored_vectors(tmp_path / "v", KEY, PASSAGES, encode))
    with open(tmp_path / "v" / "vectors.f32", "r+b") as file:
        file.truncate(rest)
    counting = Counting()
    assert np.array_equal(stored_vectors(tmp_path / "v", KEY, PASSAGES, counting), whole)
    assert counting.pids == again


def test_rows_written_after_the_last_state_are_cut_off(tmp_path):
    stored_vectors(tmp_path / "v", KEY, PASSAGES, encode)
    state = json.loads((tmp_path / "v" / "state.json").read_text())
    (tmp_path / "v" / "state.json").write_text(json.dumps({**state, "rows": 6}))
    with open(tmp_path / "v" / "vectors.f32", "r+b") as file:
        file.seek(6 * 12)
        file.write(b"\xff" * 48 + b"more than there were")
    assert np.array_equal(stored_vectors(tmp_path / "v", KEY, PASSAGES, encode), encode(PASSAGES))


def test_two_at_a_time_are_refused_and_the_first_is_not_harmed(tmp_path):
    refused = []

    def meanwhile(part):
        with pytest.raises(ValueError, match="another process computes the embeddings in .*wait for it") as error:
            stored_vectors(tmp_path / "v", KEY, PASSAGES, encode)
        refused.append(error)
        return encode(part)

    assert np.array_equal(stored_vectors(tmp_path / "v", KEY, PASSAGES, meanwhile), encode(PASSAGES))
    assert len(refused) == 4
    assert np.array_equal(stored_vectors(tmp_path / "v", KEY, PASSAGES, None), encode(PASSAGES))  # free again


def test_rows_that_vanish_meanwhile_do_not_become_zeros(tmp_path):
    file = tmp_path / "v" / "vectors.f32"

    def cut(part):
        if part[0].pid == "6":
            with open(file, "r+b") as out:
                out.truncate(12)
        return encode(part)

    with pytest.raises(ValueError, match="vectors.f32 has lost rows"):
        stored_vectors(tmp_path / "v", KEY, PASSAGES, cut)
    assert np.array_equal(stored_vectors(tmp_path / "v", KEY, PASSAGES, encode), encode(PASSAGES))


def test_embeddings_of_something_else_are_refused(tmp_path):
    stored_vectors(tmp_path / "v", KEY, PASSAGES, encode)
    with pytest.raises(ValueError, match="holds embeddings for .*needed are .*remove it or take another"):
        stored_vectors(tmp_path / "v", {**KEY, "model": "n"}, PASSAGES, encode)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"key": {}, "rows": -1, "width": 3, "seconds": 0}'])
def test_a_corrupted_state_and_a_foreign_folder_are_refused(tmp_path, text):
    (tmp_path / "v").mkdir()
    (tmp_path / "v" / "state.json").write_text(text)
    with pytest.raises(ValueError, match="state.json is corrupted .*remove"):
        stored_vectors(tmp_path / "v", KEY, PASSAGES, encode)
    (tmp_path / "v" / "state.json").rename(tmp_path / "v" / "thesis.txt")
    with pytest.raises(ValueError, match="files that are not embeddings"):
        stored_vectors(tmp_path / "v", KEY, PASSAGES, encode)
