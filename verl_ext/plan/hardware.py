"""What a device can do at most: operations, bytes, links. Figures of the makers, and this CPU, measured."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

GIB = 2**30


@dataclass(frozen=True)
class Device:
    """Peaks of one device.

    flops: operations a second in matrix products (bf16, dense). bandwidth: bytes a second of its memory. memory: bytes.
    link: bytes a second to another device of the machine, one way. network: the same to another machine, per device.
    node: devices of a machine. source: where the figures come from.
    """

    name: str
    flops: float
    bandwidth: float
    memory: float
    link: float
    network: float
    node: int
    source: str

    def bus(self, devices: int) -> float:
        """Bytes a second that each of so many devices gets in a collective: rings use all network ports of a node."""
        return self.link if devices <= self.node else min(self.link, self.node * self.network)


# Network: NVIDIA's systems have a port of 400 (H100, H200) or 200 Gb/s (A100) per GPU; here 100 Gb/s for 8 RTX 4090.
DEVICES = {
    "h100": Device("H100 SXM", 989e12, 3.35e12, 80 * GIB, 450e9, 50e9, 8, "NVIDIA H100 data sheet; DGX H100"),
    "h200": Device("H200 SXM", 989e12, 4.8e12, 140 * GIB, 450e9, 50e9, 8, "NVIDIA H200 data sheet; DGX H200"),
    "a100": Device("A100 SXM 80 GB", 312e12, 2.039e12, 80 * GIB, 300e9, 25e9, 8, "NVIDIA A100 data sheet; DGX A100"),
    "rtx4090": Device(
        *("RTX 4090", 165.2e12, 1.008e12, 24 * GIB, 32e9, 12.5e9 / 8, 8),
        source="NVIDIA Ada architecture white paper (fp32 accumulation); PCIe 4.0 x16",
    ),
}


def this_gpu() -> str | None:
    """The name in `DEVICES` of this machine's GPU; None: it has none, or another."""
    import torch

    name = torch.cuda.get_device_name().lower().replace(" ", "") if torch.cuda.is_available() else ""
    return next((known for known in DEVICES if known in name), None)


def measured_cpu(size: int = 1024, numbers: int = 2**25, repeats: int = 4) -> Device:
    """One core of this CPU, in fp32: a product of two matrices, and a copy, the best of some repeats, in CPU seconds.

    CPU seconds, so that other programs disturb less. A core shares the memory's bandwidth with the others.
    """
    import psutil
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        left, right = torch.rand(size, size), torch.rand(size, size)
        source = torch.ones(numbers)
        target = torch.empty_like(source)
        flops = 2 * size**3 / _best(lambda: torch.mm(left, right), repeats)
        bandwidth = 2 * source.nbytes / _best(lambda: target.copy_(source), repeats)
    finally:
        torch.set_num_threads(threads)
    memory = psutil.virtual_memory().total
    text = f"measured: {flops / 1e9:.0f} GFLOP/s, {bandwidth / 1e9:.1f} GB/s"
    return Device("one core of this CPU", flops, bandwidth, memory, bandwidth, bandwidth, 1, text)


def _best(work: Callable[[], object], repeats: int) -> float:
    seconds = []
    for _ in range(repeats + 1):  # the first is a warm-up
        began = time.process_time()
        work()
        seconds.append(time.process_time() - began)
    return max(min(seconds[1:]), 1e-6)
