"""What the engine takes of the machine."""

from __future__ import annotations

import time

import pytest
import torch
from verl.workers.config import RolloutConfig

from tests.engine.conftest import tiny_config
from verl_ext.engine.hf import hardware
from verl_ext.engine.hf.options import EngineOptions


def test_cores_are_shared_among_servers_of_large_models(monkeypatch):
    monkeypatch.setattr(hardware, "usable_cores", lambda: 8)
    assert [hardware.idle_threads(size, 2) for size in (10**6, 10**8)] == [1, 4]
    assert [hardware.idle_threads(10**8, 2, most) for most in (1, 3, 9)] == [1, 3, 4]


@pytest.mark.parametrize("text", ["100000 100000", "150000 100000", "50000 100000"])
def test_a_containers_quota_bounds_the_threads(tmp_path, text):
    (tmp_path / "cpu.max").write_text(text)
    assert hardware.usable_cores(str(tmp_path / "cpu.max")) == 1


def test_without_a_quota_every_core_may_be_used(tmp_path):
    (tmp_path / "cpu.max").write_text("max 100000")
    assert hardware.usable_cores(str(tmp_path / "cpu.max")) == hardware.usable_cores(str(tmp_path / "none")) >= 1


@pytest.fixture
def threads(monkeypatch):
    """`after(wall, own, idle)` -> torch threads, of 8, if so many seconds have passed, were used, and were idle."""
    monkeypatch.delenv(hardware.SPINS, raising=False)
    monkeypatch.setenv(hardware.ADAPTS, "1")
    clocks = [0.0, 0.0, 0.0]
    monkeypatch.setattr(hardware, "_clocks", lambda: tuple(clocks))
    monkeypatch.setattr(hardware.time, "monotonic", lambda: clocks[0])
    before = torch.get_num_threads()

    def after(wall, own, idle, waited=False):
        for number, seconds in enumerate((wall, own, idle)):
            clocks[number] += seconds
        after.taken.begin() if waited else after.taken.adapt()
        return torch.get_num_threads()

    after.taken = hardware.IdleThreads(8)
    yield after
    torch.set_num_threads(before)


def test_threads_leave_a_core_to_every_busy_program(threads):
    assert threads(1, 8, 0) == threads(1, 1, 7) == 8
    assert threads(1, 6, 0) == 6  # two others
    assert threads(1, 7.8, 0) == 8  # one that does little
    assert threads(1, 0.2, 0) == 1
    assert threads(0.1, 0, 0.8) == 1  # too soon to tell
    assert threads(0.2, 0, 1.6) == 8
    threads.taken = hardware.IdleThreads(8, sharers=2)
    assert threads(1, 1, 6) == 4


def test_what_others_did_while_a_process_waited_says_nothing(threads):
    assert threads(60, 0, 0, waited=True) == threads(1, 8, 0) == 8


@pytest.mark.parametrize(("name", "value"), [("SPINS", "1000"), ("ADAPTS", None)])
def test_threads_do_not_change_where_they_soon_sleep_or_must_not(monkeypatch, threads, name, value):
    monkeypatch.setenv(getattr(hardware, name), value) if value else monkeypatch.delenv(getattr(hardware, name))
    threads.taken = hardware.IdleThreads(4)
    assert threads(1, 1, 0) == 4


def test_idle_cores_are_those_that_nobody_uses():
    taken = hardware._clocks()
    until = time.monotonic() + 0.3
    while time.monotonic() < until:
        pass
    wall, own, idle = (now - before for now, before in zip(hardware._clocks(), taken, strict=True))
    assert own >= 0.05 and own + idle <= hardware.usable_cores() * wall + 0.1


def test_keys_and_values_fit_into_their_memory():
    per_token = hardware.kv_bytes(tiny_config("qwen2"), torch.float32)
    assert per_token == 2 * 2 * 1 * 32 * 4  # keys and values, layers, heads, width, bytes
    assert hardware.fitting_slots(256, 100, per_token, 5 * 100 * per_token) == 5
    with pytest.raises(ValueError, match="kv_cache_gb"):
        hardware.fitting_slots(256, 100, per_token, 99 * per_token)


def test_memory_of_keys_and_values_is_above_zero():
    config = RolloutConfig(name="hf", dtype="auto", engine_kwargs={"hf": {"kv_cache_gb": 0}})
    with pytest.raises(ValueError, match="kv_cache_gb must be above 0"):
        EngineOptions.from_config(config, None)
