"""A fake of vLLM's API: what verl 0.9.1 imports of it to run its vLLM rollout.

Why a fake: vLLM runs on GPUs, and tests run on CPUs. Nothing else of the rollout is faked; verl's classes are real.

It takes the place of the package `vllm`, so only processes of their own use it (vllm_program.py). LoRARequest,
SamplingParams, AsyncLLM.generate and list_loras, and the outputs have the form of vLLM 0.24. Every other name is a
class without behaviour.
"""

from __future__ import annotations

import asyncio
import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

VERSION = "0.24.0"


class LoRARequest(msgspec.Struct, omit_defaults=True, array_like=True):
    """vllm.lora.request.LoRARequest."""

    lora_name: str
    lora_int_id: int
    lora_path: str = ""


@dataclass
class SamplingParams:
    """vllm.SamplingParams, those that are used."""

    max_tokens: int = 16
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    repetition_penalty: float = 1.0
    ignore_eos: bool = False
    extra_args: dict[str, Any] | None = None


@dataclass
class AsyncLLM:
    """vllm.v1.engine.async_llm.AsyncLLM: every answer is token 7; `asked` records the requests.

    `generated` counts tokens. As in vLLM, a request whose consumer is cancelled is aborted.
    """

    loaded: set[int] = field(default_factory=set)
    asked: list[tuple[LoRARequest | None, SamplingParams]] = field(default_factory=list)
    generated: dict[str, int] = field(default_factory=dict)
    running: set[str] = field(default_factory=set)
    endless: bool = False

    async def list_loras(self) -> set[int]:
        return self.loaded

    async def generate(
        self, prompt: Any, sampling_params: SamplingParams, request_id: str, *, lora_request: Any, priority: int
    ) -> AsyncIterator[Any]:
        assert request_id not in self.running, f"vLLM refuses a second request {request_id}"
        self.asked.append((lora_request, sampling_params))
        self.running.add(request_id)
        try:
            while self.endless:
                self.generated[request_id] = self.generated.get(request_id, 0) + 1
                await asyncio.sleep(0)
        finally:
            self.running.discard(request_id)
        output = types.SimpleNamespace(
            token_ids=[7], logprobs=[{7: types.SimpleNamespace(logprob=-0.5)}], finish_reason="stop", num_preempted=0
        )
        yield types.SimpleNamespace(outputs=[output], num_cached_tokens=0, kv_transfer_params=None)


def process_weights_after_loading(*args: Any) -> None:
    """vllm.model_executor.model_loader.utils.process_weights_after_loading: ordinary weights stay as they are."""


OWN = {own.__name__: own for own in (LoRARequest, SamplingParams, AsyncLLM, process_weights_after_loading)}


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Any module `vllm.…`; any name in it."""

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if fullname.split(".")[0] != "vllm":
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return types.ModuleType(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        module.__path__, module.__version__ = [], VERSION

        def anything(name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            return OWN.get(name) or type(name, (), {"__module__": module.__name__})

        module.__getattr__ = anything


def install(folder: Path) -> None:
    """From now on `import vllm` is this; `folder` gets the package's metadata."""
    metadata = folder / f"vllm-{VERSION}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {VERSION}\n")
    sys.path.insert(0, str(folder))
    sys.meta_path.insert(0, _Finder())
