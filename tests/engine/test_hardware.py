"""What the engine takes of the machine."""

from __future__ import annotations

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
