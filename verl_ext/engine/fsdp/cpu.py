"""verl's FSDP2 engines for the CPU. Importing this module registers them for the device "cpu".

Import it right after `verl.workers.engine.fsdp.transformer_impl` (post-import hook of the plugin): the critic's engine
is looked up before verl reads any `external_lib`.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from tensordict import TensorDict
from torch.distributed.fsdp import FSDPModule
from verl.workers.engine.base import EngineRegistry
from verl.workers.engine.fsdp.transformer_impl import FSDPEngine, FSDPEngineWithLMHead, FSDPEngineWithValueHead

from verl_ext.engine.freed_memory import HUGE_PAGES, MIB, SMALL_MACHINE, keep_little
from verl_ext.engine.fsdp.masked_logits import OnlyAllowed
from verl_ext.engine.fsdp.memory import machine_memory
from verl_ext.engine.fsdp.shared_prefixes import SharedPrefixesLM, SharedPrefixesValue
from verl_ext.engine.hf.hardware import IdleThreads, usable_cores
from verl_ext.engine.lora.fsdp_adapters import PerAgentAdapters
from verl_ext.engine.replaced import replaced

# With more threads per rank, models of the size that is trained on a CPU become slower: threads wait for each other.
MOST_THREADS = 8


class _OnCPU(FSDPEngine):
    """FSDP2 without CPUOffloadPolicy, on all cores.

    verl gives a forward-only engine (the reference model) CPUOffloadPolicy(pin_memory=True), which needs an
    accelerator (transformer_impl.py, _build_fsdp_module). On the CPU there is nowhere to offload to.
    """

    def initialize(self) -> None:
        """Divide the cores of the machine among its ranks, or what other programs leave of them.

        Where memory is short, or fresh memory is quick to get, the process keeps little of what it frees.
        """
        if machine_memory() < SMALL_MACHINE:
            keep_little(MIB)
        elif os.environ.get(HUGE_PAGES) == "1":
            keep_little(4 * MIB)
        cores = usable_cores()
        # verl's Ray workers overwrite LOCAL_WORLD_SIZE with 1; torchrun sets only that one.
        ranks = int(os.environ.get("RAY_LOCAL_WORLD_SIZE") or os.environ.get("LOCAL_WORLD_SIZE") or 1)
        self._threads = IdleThreads(max(1, min(cores // ranks, MOST_THREADS)), ranks)
        super().initialize()
        self.module.register_forward_pre_hook(lambda *_: self._threads.adapt())  # before each micro-batch

    def _build_fsdp_module(self, module: torch.nn.Module) -> torch.nn.Module:
        if self.engine_config.strategy != "fsdp2":
            raise ValueError(
                f"strategy={self.engine_config.strategy!r} does not run on the CPU; set strategy=fsdp2, in both "
                "actor.strategy and fsdp_config.strategy (critic: critic.strategy and critic.fsdp.strategy)"
            )
        plain = dataclasses.replace(self.engine_config, forward_only=False, offload_policy=False)
        if torch.distributed.get_world_size() == 1:  # its weights need not be gathered again for the backward pass
            plain = dataclasses.replace(plain, reshard_after_forward=False)
        with replaced(self, engine_config=plain):
            return super()._build_fsdp_module(module)

    @contextmanager
    def _gradient_sync_context(self, *, is_last_micro_batch: bool) -> Iterator[None]:
        """On one rank, weights stay gathered and gradients whole until the last micro-batch; else verl's own."""
        if torch.distributed.get_world_size() > 1:
            with super()._gradient_sync_context(is_last_micro_batch=is_last_micro_batch):
                yield
            return
        self.module.set_requires_gradient_sync(is_last_micro_batch)
        self.module.set_reshard_after_backward(is_last_micro_batch)
        yield

    def forward_backward_batch(self, data: TensorDict, loss_function: Any, forward_only: bool = False) -> Any:
        """As verl's method; a forward pass leaves the weights sharded, too."""
        self._threads.begin()
        outputs = super().forward_backward_batch(data, loss_function, forward_only)
        self._threads.adapt()
        for module in self.module.modules() if forward_only else ():
            if isinstance(module, FSDPModule):
                module.reshard()
        return outputs


@EngineRegistry.register(model_type="language_model", backend="fsdp2", device="cpu")
class CPUEngineWithLMHead(SharedPrefixesLM, OnlyAllowed, _OnCPU, PerAgentAdapters, FSDPEngineWithLMHead):
    """Actor and reference model. Rows share a prompt only if they go through the same adapter."""

    def kinds_of(self, micro_batch: TensorDict) -> list[int] | None:
        """The adapter of each row."""
        return self.agents_of(micro_batch).tolist() if self.adapters is not None else None

    def forward_pass(self, kinds: list[int]) -> AbstractContextManager[None]:
        """Route each sequence of the batch through the adapter of its rows."""
        if self.adapters is None:
            return super().forward_pass(kinds)
        return self.route.using([kinds.count(adapter) for adapter in range(len(self.adapters.names))])

    def checkpoint_options(self) -> dict[str, Any]:
        """The layers are computed again with the route of the forward pass."""
        route = {} if self.adapters is None else {"context_fn": self.route.checkpoint_contexts}
        return super().checkpoint_options() | route


@EngineRegistry.register(model_type="value_model", backend="fsdp2", device="cpu")
class CPUEngineWithValueHead(SharedPrefixesValue, _OnCPU, FSDPEngineWithValueHead):
    """Critic: a token classifier with one label, under the attention of the model config.

    verl's load_valuehead_model asks for flash_attention_2 whatever is configured (utils/model.py). The branch for
    language models takes the class from `architectures` and the attention from the config, so that branch is used, with
    the token classifier of the same family.
    """

    def _build_module(self) -> torch.nn.Module:
        config = self.model_config.hf_config
        config.num_labels = 1
        config.classifier_dropout = config.hidden_dropout = config.summary_dropout_prob = 0.0
        family = config.architectures[0].removesuffix("ForCausalLM").removesuffix("ForTokenClassification")
        config.architectures = [f"{family}ForTokenClassification"]
        # The checkpoint of a language model has no value head. PyTorch would draw one from a seed that differs in every
        # process, so that no run with a critic could be repeated.
        with replaced(self.model_config, model_type="language_model"), torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.engine_config.seed)
            return super()._build_module()
