"""The platform "cpu": chosen by its environment variable only. Its process groups: adapters_program.py."""

from __future__ import annotations

import ast
import inspect
import os
import subprocess
import sys
import textwrap

import pytest
import torch
import verl  # noqa: F401  (before the platform, see there)

from verl_ext.engine.platform_cpu import PlatformCPU, register_platform


def test_registered_but_only_chosen_by_the_environment_variable():
    code = """
        import os
        import verl
        from verl_ext.engine.platform_cpu import register_platform
        register_platform(); register_platform()
        from verl.plugin.platform import platform_manager as manager
        detected = manager._detect_platform_name()
        os.environ["VERL_PLATFORM"] = "cpu"
        print("RESULT", "cpu" in manager.PlatformRegistry.registered_names(), detected, manager._detect_platform_name())
    """
    clean = {name: value for name, value in os.environ.items() if name != "VERL_PLATFORM"}
    command = [sys.executable, "-c", textwrap.dedent(code)]
    done = subprocess.run(command, env=clean, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    _, registered, detected, asked_for = done.stdout.split("RESULT")[1].split(" ", 3)
    assert registered == "True" and detected != "cpu" and asked_for.strip() == "cpu"


def test_backend_name_outside_of_ranks_initialises_nothing(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    assert PlatformCPU().communication_backend_name() == "gloo"
    assert not torch.distributed.is_initialized()


def test_verl_still_builds_the_backend_string_before_it_asks_whether_a_group_exists():
    """`communication_backend_name` relies on that order; if this fails, see its docstring."""
    from verl.utils import distributed

    body = ast.parse(inspect.getsource(distributed.initialize_global_process_group_ray)).body[0].body
    calls = [
        (index, call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", ""))
        for index, statement in enumerate(body)
        for call in ast.walk(statement)
        if isinstance(call, ast.Call)
    ]
    where = {name: index for index, name in reversed(calls)}
    assert where["get_nccl_backend"] < where["is_initialized"] <= where["init_process_group"]


def test_what_verl_asks_of_the_device():
    register_platform()
    platform = PlatformCPU()
    module = platform.device_module
    assert torch.ones(2).to(platform.current_device()).device.type == "cpu"
    assert module.max_memory_allocated() >= module.memory_allocated() > 1e7  # this process has loaded torch
    free, total = module.mem_get_info()
    assert 0 < free <= total
    assert module.Stream is torch.cpu.Stream  # what we do not define comes from torch.cpu
    state = module.get_rng_state()
    first = torch.rand(3)
    module.set_rng_state(state)
    assert torch.equal(first, torch.rand(3))
    module.empty_cache(), module.synchronize(), module.set_device(0)
    assert not module.is_available() and platform.is_available()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the C library of Linux gives memory back")
def test_the_emptied_cache_goes_back_to_the_system():
    module = PlatformCPU.device_module
    pieces = [torch.ones(size) for _ in range(3000) for size in (2**14, 8)]  # 64 KiB, between small ones that stay
    kept = pieces[1::2]
    before = module.memory_allocated()
    del pieces
    module.empty_cache()
    assert before - module.memory_allocated() > 0.5 * len(kept) * 2**16
