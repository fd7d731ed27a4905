"""verl's platform "cpu": implements verl's interface of an accelerator for a machine without one.

Chosen only by `VERL_PLATFORM=cpu` (verl reads it first; CPU recipes set it). It is never auto-detected: having this
package installed changes nothing for other verl runs.

Import verl before this module: `import verl` loads our plugin, which imports this module and needs all of it.
"""

from __future__ import annotations

import contextlib
import os
import resource
import sys
import types
from collections.abc import Iterator
from typing import Any

from verl.plugin.platform.platform_base import PlatformBase
from verl.plugin.platform.platform_manager import PlatformRegistry

from verl_ext.engine.freed_memory import give_back


class _CPUModule(types.ModuleType):
    """`torch.cpu` with the functions of `torch.cuda` that verl calls on `get_torch_device()`.

    Memory is the process's resident memory, so that verl's `perf/max_memory_allocated_gb` means something.
    """

    def __getattr__(self, name: str) -> Any:
        import torch

        return getattr(torch.cpu, name)

    def is_available(self) -> bool:
        """False: verl then skips what needs an accelerator's memory management."""
        return False

    def current_device(self) -> str:
        return "cpu"

    def device_count(self) -> int:
        return 1

    def get_device_name(self, device: Any = None) -> str:
        return "cpu"

    def set_device(self, device: Any) -> None:
        pass

    def synchronize(self, device: Any = None) -> None:
        pass

    def empty_cache(self) -> None:
        """Freed memory goes back to the system, as on CUDA. verl asks for it around the update of the weights."""
        give_back()

    def ipc_collect(self) -> None:
        pass

    def reset_peak_memory_stats(self, device: Any = None) -> None:
        pass

    def memory_allocated(self, device: Any = None) -> int:
        """Resident memory of this process now, in bytes (Linux; elsewhere the peak)."""
        try:
            with open("/proc/self/statm") as statm:
                return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        except OSError:
            return _peak_memory()

    def max_memory_allocated(self, device: Any = None) -> int:
        """Peak resident memory of this process, in bytes."""
        return max(_peak_memory(), self.memory_allocated())  # the kernel updates the peak a little late

    memory_reserved = memory_allocated
    max_memory_reserved = max_memory_allocated

    def mem_get_info(self, device: Any = None) -> tuple[int, int]:
        """Free and total memory of the machine, in bytes."""
        page = os.sysconf("SC_PAGE_SIZE")
        return os.sysconf("SC_AVPHYS_PAGES") * page, os.sysconf("SC_PHYS_PAGES") * page

    def manual_seed(self, seed: int) -> None:
        import torch

        torch.manual_seed(seed)

    manual_seed_all = manual_seed

    def get_rng_state(self, device: Any = None) -> Any:
        import torch

        return torch.get_rng_state()

    def set_rng_state(self, state: Any, device: Any = None) -> None:
        import torch

        torch.set_rng_state(state)


def _peak_memory() -> int:
    """Peak resident memory in bytes; ru_maxrss counts KiB, on macOS bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


_MODULE = _CPUModule("verl_ext.engine.platform_cpu.cpu")


class PlatformCPU(PlatformBase):
    """The CPU as a verl platform; FSDP2 ranks talk over gloo."""

    device_name = "cpu"
    vendor_name = "cpu"
    device_module = _MODULE

    def is_available(self) -> bool:
        return True

    def is_platform_available(self, use_smi_check: bool = False) -> bool:
        """Auto-detection asks this; see the module's docstring."""
        return os.environ.get("VERL_PLATFORM", "").strip().lower() == "cpu"

    def current_device(self) -> str:
        """The device's name: verl hands it to `tensor.to(...)`, where an index would mean a GPU."""
        return "cpu"

    def device_count(self) -> int:
        return 1

    def set_device(self, device_index: int) -> None:
        pass

    def synchronize(self, device_index: int | None = None) -> None:
        pass

    def manual_seed(self, seed: int) -> None:
        _MODULE.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        _MODULE.manual_seed(seed)

    def set_allocator_settings(self, settings: str) -> None:
        pass

    def empty_cache(self) -> None:
        _MODULE.empty_cache()

    def get_device_capability(self, device_index: int = 0) -> tuple[None, None]:
        return None, None

    def communication_backend_name(self) -> str:
        """Returns gloo; in a rank of verl's Ray worker groups the first call also initialises the gloo group.

        Why here: verl (utils/distributed.py, initialize_global_process_group_ray) builds the backend string
        f"cpu:gloo,{device}:{backend}", on the CPU "cpu:gloo,cpu:gloo", which torch rejects as a duplicate device. But
        it builds it BEFORE it asks `if not torch.distributed.is_initialized()`, and this method is called for it.

        Limits of the trick: it depends on that order (tests/engine/test_platform.py notices a change); the group gets
        torch's default timeout, not verl's `nccl_timeout`; it is restricted to ranks that verl's Ray worker groups
        started (RANK set and WG_BACKEND=ray), so torchrun programs, e.g. verl's sft_trainer, must initialise gloo
        themselves.
        """
        if os.environ.get("WG_BACKEND") == "ray" and "RANK" in os.environ:
            import torch.distributed as dist

            if not dist.is_initialized():
                dist.init_process_group(
                    backend="gloo",
                    rank=int(os.environ["RANK"]),
                    world_size=int(os.environ["WORLD_SIZE"]),
                    init_method=os.environ.get("DIST_INIT_METHOD"),
                )
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return "CUDA_VISIBLE_DEVICES"

    @contextlib.contextmanager
    def nvtx_range(self, msg: str) -> Iterator[None]:
        yield

    def profiler_start(self) -> None:
        pass

    def profiler_stop(self) -> None:
        pass

    def ray_resource_name(self) -> str:
        """A token per rank (`ray_init.num_gpus`), named GPU because verl's resource pools count only GPU and NPU."""
        return "GPU"

    def ray_noset_envvars(self) -> list[str]:
        return ["RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES"]

    def is_ipc_supported(self) -> bool:
        return False

    def cudart(self) -> None:
        return None


def register_platform() -> None:
    """Make the platform "cpu" known to verl; may be called more than once."""
    if PlatformRegistry.get("cpu") is not PlatformCPU:
        PlatformRegistry.register("cpu")(PlatformCPU)
