"""The agents' memory in training: published after each step, part of every checkpoint, over kills."""

from __future__ import annotations

import os
import random
import signal
import time
from contextlib import suppress

import pytest

from tests.mas.test_memory import rare_success
from verl_ext.memory import Use, read_snapshot
from verl_ext.trainer.sections import MemorySection
from verl_ext.trainer.state.agent_memory import FOLDER, AgentMemory
from verl_ext.trainer.state.checkpoint import mark_complete

SECTION = MemorySection(alpha=0.001)


def begun(folder, checkpoint=None, section=SECTION):
    """A memory whose views go to a list."""
    memory, seen = AgentMemory(section, folder), []
    memory.start(checkpoint)
    memory.publish(seen.append)
    return memory, seen


def checkpoint_of(memory, folder, step):
    """What the trainer does with a step that is saved."""
    memory.save(step)
    (folder / f"global_step_{step}" / "actor").mkdir()
    mark_complete(folder, step)
    return folder / f"global_step_{step}"


def test_without_the_section_nothing_happens(tmp_path):
    memory, seen = begun(tmp_path, section=None)
    assert memory.learn(1, rare_success("a", "q", "o")) == {}
    memory.save(1)
    assert seen == [] and list(tmp_path.iterdir()) == []


def test_a_step_is_published_when_it_is_over(tmp_path):
    memory, seen = begun(tmp_path)
    assert [view.version for view in seen] == [0]
    metrics = memory.learn(1, rare_success("a", "what is up", "the sky"))
    assert [view.version for view in seen] == [0, 1]
    assert [len(view.recall("a", "what is up", 3)) for view in seen] == [0, 1]
    assert (metrics["memory/inserted"], metrics["memory/memories"], metrics["memory/hit_rate"]) == (1, 1, 0)
    (known,) = seen[1].recall("a", "what is up", 3)
    episode = rare_success("a", "what is up", "the sky")[1]
    used = type(episode)("q", "0", 0.0, 1.0, (Use("a", "what is up", (), "", (known.id,)), Use("b", "x", (), "")))
    metrics = memory.learn(2, [used])
    assert (metrics["memory/hit_rate"], metrics["memory/recalled"], metrics["memory/episodes"]) == (0.5, 1, 1)
    memory.close()


def test_a_hit_is_anything_recalled_and_the_same_question_is_counted_apart(tmp_path):
    memory, seen = begun(tmp_path)
    metrics = memory.learn(1, rare_success("a", "what is up", "the sky"))
    assert (metrics["memory/hit_rate"], metrics["memory/same_rate"]) == (0, 0)
    (known,) = seen[1].recall("a", "what is up", 3)
    kind = type(rare_success("a", "q", "o")[0])
    uses = tuple(
        Use("a", query, (), "", recalled)
        for query, recalled in [
            ("what is up", (known.id,)),
            ("what is down", (known.id,)),
            ("what is up", ()),
            ("x", ()),
        ]
    )
    metrics = memory.learn(2, [kind("q", "0", 0.0, 1.0, uses)])
    assert (metrics["memory/hit_rate"], metrics["memory/same_rate"]) == (0.5, 0.25)
    assert memory.learn(3, [])["memory/same_rate"] == 0
    memory.close()


def test_a_run_goes_on_from_the_memory_of_its_checkpoint_and_not_from_what_came_after(tmp_path):
    memory, seen = begun(tmp_path)
    memory.learn(1, rare_success("a", "one", "1"))
    first = checkpoint_of(memory, tmp_path, 1)
    saved = seen[-1].content_hash()
    memory.learn(2, rare_success("a", "two", "2"))
    memory.close()
    assert read_snapshot(first / FOLDER).content_hash() == saved
    again, seen = begun(tmp_path, first)
    assert seen[0].content_hash() == saved and seen[0].version == 1
    again.learn(2, rare_success("a", "other", "2"))
    again.close()
    afresh, seen = begun(tmp_path)
    assert len(seen[0]) == 0 and seen[0].version == 0
    afresh.learn(1, rare_success("a", "one", "1"))
    assert seen[1].content_hash() == saved, "a run that begins again is the same run"
    (first / "actor").rmdir()
    afresh.save(2)
    assert not (first / FOLDER).exists(), "gone with the weights"
    afresh.close()


def test_a_checkpoint_without_memory_begins_with_an_empty_one(tmp_path, caplog):
    (tmp_path / "elsewhere" / "global_step_7").mkdir(parents=True)
    memory, seen = begun(tmp_path / "run", tmp_path / "elsewhere" / "global_step_7")
    assert len(seen[0]) == 0 and "without memory" in caplog.text
    assert memory.learn(8, rare_success("a", "one", "1"))["memory/inserted"] == 1
    memory.close()


def test_two_runs_do_not_write_one_memory(tmp_path):
    memory, _ = begun(tmp_path)
    with pytest.raises(ValueError, match="another process writes the memory"):
        begun(tmp_path)
    memory.close()


def train_until_killed(folder, out):
    """Go on from the last checkpoint; write a line per state that later runs must find again."""
    last = max((int(path.parent.name.split("_")[-1]) for path in folder.glob("global_step_*/actor")), default=0)
    memory, seen = begun(folder, folder / f"global_step_{last}" if last else None)
    os.write(out, f"{last} {seen[0].version} {seen[0].content_hash()}\n".encode())
    for step in range(last + 1, 10_000):
        memory.learn(step, rare_success("a", f"question {step}", f"answer {step}"))
        if step % 3 == 0:
            checkpoint_of(memory, folder, step)
            os.write(out, f"{step} {seen[-1].version} {seen[-1].content_hash()}\n".encode())


def test_killed_at_any_moment_the_memory_is_that_of_the_restored_step(tmp_path):
    rng, known = random.Random(3), {}
    for _ in range(12):
        read, write = os.pipe()
        child = os.fork()  # a fork, because a new interpreter would take seconds to import torch
        if not child:
            with suppress(BaseException):
                train_until_killed(tmp_path, write)
            os._exit(1)
        os.close(write)
        with open(read) as lines:
            found = [lines.readline() for _ in range(rng.randint(1, 3))]
            time.sleep(rng.uniform(0.0, 0.02))
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            found += lines.readlines()
        for line in found:
            step, version, content = line.split()
            assert step == version
            assert known.setdefault(step, content) == content, f"step {step} came out differently"
    assert len(known) > 3
