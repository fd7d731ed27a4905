"""verl's methods that we override, or whose order of steps we rely on, by hash: an upgrade that changes one is noticed.

After reading what changed, and adapting the override, put the new hash here.
"""

from __future__ import annotations

import hashlib
import inspect

import pytest
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer
from verl.trainer.ppo.v1.trainer_base import PPOTrainer
from verl.trainer.ppo.v1.trainer_colocate_async import PPOTrainerColocateAsync
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync
from verl.workers.engine.base import BaseEngine
from verl.workers.engine.fsdp.transformer_impl import FSDPEngine, FSDPEngineWithLMHead
from verl.workers.engine_workers import ActorRolloutRefWorker
from verl.workers.rollout.llm_server import FullyAsyncLLMServerClient, LLMServerClient
from verl.workers.utils.losses import ppo_loss

from verl_ext.engine.lora.fsdp_adapters import PerAgentAdapters
from verl_ext.trainer.trainer import MultiAgentTrainer

HASHES = {
    PPOTrainer.fit: "7d83a81c2e62979f",
    PPOTrainer.__init__: "6f938d77859b66ae",
    PPOTrainer._step_once: "efdd4abe161c6dee",
    PPOTrainer._load_checkpoint: "bb446d77c48ac6cc",
    PPOTrainer._save_checkpoint: "8c2435b577e54f19",
    PPOTrainer._balance_batch: "f9b6e887d7504a65",
    PPOTrainer._get_required_batch_multiple: "264be80d505c6579",
    PPOTrainer._update_actor: "d7009bd8a69d40b9",
    PPOTrainer._update_critic: "1b2879bec14681ba",
    # Its result carries the tags that TransferQueue holds, not those of the batch it was given.
    PPOTrainer._compute_old_log_prob: "b2630e6178ed99f7",
    PPOTrainer._compute_advantage: "2a4a2aa4a475b228",
    PPOTrainer._compute_metrics: "9c5c555787889555",
    PPOTrainer._validate: "f1d58a70e91d7883",
    PPOTrainerSync.on_init_end: "0cc759a56864dec8",
    PPOTrainerColocateAsync.on_init_end: "0cc759a56864dec8",
    PPOTrainerColocateAsync.on_sample_end: "6acf994fbde4ed10",
    PPOTrainerColocateAsync.on_step_end: "cc67de0b71468aa0",
    ReplayBuffer.__init__: "0c37a48629991988",
    FSDPEngineWithLMHead.forward_step: "ec2681395b00c654",
    FSDPEngine.__init__: "2d70a9f5f54883c2",
    FSDPEngine._build_lora_module: "31ad1f73ed3cb764",
    FSDPEngine.forward_backward_batch: "be92c8d155f0c179",
    FSDPEngine.optimizer_step: "08227531d7302949",
    FSDPEngine.get_per_tensor_param: "30802c73cfcc5ba2",
    FSDPEngine.save_checkpoint: "33610c18a6a2c1c8",
    FSDPEngine.load_checkpoint: "0053b000be572e3a",
    BaseEngine.train_batch: "dd5e7dba6b8f69b5",
    # Asks for adapters, sends the base before them once (load_format=dummy), and passes base_sync_done on.
    ActorRolloutRefWorker.update_weights: "ea8f2ec1eb8a4481",
    LLMServerClient.__init__: "48b527309739adf0",
    LLMServerClient._acquire_server: "4afa9eaba4c5c436",
    LLMServerClient._release_server: "a06a7f1ee3567499",
    LLMServerClient.generate: "45f4cf4029f0be37",
    LLMServerClient._vllm_request_id: "92c7d7fa2e134869",
    FullyAsyncLLMServerClient.generate: "3d6399350ff024fd",
    ppo_loss: "d7c0f8772b444f55",
}


def digest(function) -> str:
    return hashlib.sha256(inspect.getsource(function).encode()).hexdigest()[:16]


@pytest.mark.parametrize("function", HASHES, ids=lambda function: function.__qualname__)
def test_upstream_is_what_was_read(function):
    assert digest(function) == HASHES[function]


def test_every_override_of_the_trainer_is_watched():
    watched = {function.__name__ for function in HASHES}
    ours = {name for name, value in vars(MultiAgentTrainer).items() if inspect.isfunction(value)}
    assert {name for name in ours if hasattr(PPOTrainer, name)} <= watched


def test_every_override_of_the_engine_is_watched():
    watched = {function.__name__ for function in HASHES}
    ours = {name for name, value in vars(PerAgentAdapters).items() if inspect.isfunction(value)}
    assert {name for name in ours if hasattr(FSDPEngineWithLMHead, name)} <= watched
