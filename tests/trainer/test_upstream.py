"""verl's functions that we override, replace, or rely on for arithmetic, by a hash of their source.

An upgrade that changes one is noticed. Read what changed, look at the file of ours that stands above it in `WATCHED`,
adapt it, and put the new hash here. Sources are read, not imported: vLLM's side needs vLLM.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
from pathlib import Path

import pytest
import verl
from verl.trainer.ppo.v1.trainer_base import PPOTrainer
from verl.trainer.ppo.v1.trainer_separate_async import PPOTrainerSeparateAsync
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead

from verl_ext.engine.lora.fsdp_adapters import PerAgentAdapters
from verl_ext.trainer.first_to_end import FirstToEnd
from verl_ext.trainer.policies.coordinator import MultiPolicyTrainer
from verl_ext.trainer.policies.policy import PolicyTrainer
from verl_ext.trainer.policies.trainers import MultiPolicySeparateAsync, PolicySeparateAsync
from verl_ext.trainer.separate_async import MultiAgentTrainerSeparateAsync, SeparateAsync
from verl_ext.trainer.trainer import MultiAgentTrainer
from verl_ext.trainer.updates import PolicyUpdates

# Our file -> {file of verl:function: hash}.
WATCHED = {
    "verl_ext/trainer/trainer.py": {
        "trainer/ppo/v1/trainer_base.py:PPOTrainer.__init__": "16dda0010f4b67ae",
        "trainer/ppo/v1/trainer_base.py:PPOTrainer.fit": "cfbfa5992cb92bbe",
        "trainer/ppo/v1/trainer_base.py:PPOTrainer.step": "80dcc9b510456385",
        "trainer/ppo/v1/trainer_base.py:PPOTrainer._step_once": "0555717c3378858e",
        "trainer/ppo/v1/trainer_base.py:PPOTrainer._load_checkpoint": "2080358ba6af9525",
        "trainer/ppo/v1/trainer_base.py:PPOTrainer._save_checkpoint": "17b47da7284d3bf7",
        "trainer/ppo/v1/trainer_base.py:PPOTrainer._balance_batch": "6036c24b205dd41e",
        "trainer/ppo/v1/trainer_base.py:PPOTrainer._get_required_batch_multiple": "139ac6d8c7ca3af3",
        "trainer/ppo/v1/trainer_base.py:PPOTrainer._compute_old_log_prob": "47e705af8fb4cc5f",
        "trainer/ppo/v1/trainer_base.py:PPOTrainer._compute_advantage": "723b42cbdaf4d56d",
        "trainer/ppo/v1/trainer_base.py:PPOTrainer._update_actor": "61e4a008610f7239",
        "trainer/ppo/v1/trainer_base.py:PPOTrainer._update_critic": "cbc462388c9dc050",
        "trainer/ppo/v1/trainer_base.py:PPOTrainer._compute_metrics": "b87c0ecc8e5972c9",
        "trainer/ppo/v1/trainer_base.py:PPOTrainer._validate": "2ebd5baa0fb4c94e",
        "trainer/ppo/v1/trainer_sync.py:PPOTrainerSync.on_init_end": "8dfa41a32b10ae83",
        "trainer/ppo/v1/trainer_colocate_async.py:PPOTrainerColocateAsync.on_init_end": "8dfa41a32b10ae83",
        "trainer/ppo/v1/trainer_colocate_async.py:PPOTrainerColocateAsync.on_sample_end": "5c1e0c7ca557da15",
        "trainer/ppo/v1/trainer_colocate_async.py:PPOTrainerColocateAsync.on_step_end": "e0a2d76c111e05dd",
        "trainer/ppo/v1/replay_buffer.py:ReplayBuffer.__init__": "2502efaa4f967572",
        "utils/tensordict_utils.py:make_iterator": "ad6989036b7966de",
        "utils/seqlen_balancing.py:get_seqlen_balanced_partitions": "f8f2c027ffb6b6c7",
    },
    "verl_ext/trainer/nodes.py": {
        "trainer/main_ppo.py:run_ppo": "16cd2df01be6db77",
        "trainer/ppo/v1/replay_buffer.py:ReplayBuffer._wait_for_next_poll": "2a2b9e7c1cb9937d",
        "trainer/ppo/v1/replay_buffer.py:ReplayBuffer.sample": "93761c3e79effd5f",
        "trainer/ppo/v1/replay_buffer.py:ReplayBufferAsync.wait_for_sampleable": "b092e9a762f15863",
        "workers/rollout/router.py:_create_global_sticky_inflight": "aa45137340ea9f74",
    },
    "verl_ext/trainer/first_to_end.py": {
        "trainer/ppo/v1/trainer_base.py:PPOTrainer._fetch_one_gen_batch": "7a45f41ecc0323a4",
        "trainer/ppo/v1/trainer_base.py:PPOTrainer._next_train_batch": "f5c79bf97efb52a4",
        "trainer/ppo/v1/trainer_base.py:PPOTrainer.prepare_step": "1d6fd706f9f0b9b9",
        "trainer/ppo/v1/trainer_sync.py:PPOTrainerSync.on_sample_end": "0ee64f77079790ba",
        "checkpoint_engine/base.py:CheckpointEngineManager.abort_replicas": "c5f4a960c480b8c9",
        "checkpoint_engine/base.py:CheckpointEngineManager.resume_generation_replicas": "5e0c0aeac99285bf",
    },
    "verl_ext/trainer/separate_async.py": {
        "trainer/ppo/v1/trainer_separate_async.py:PPOTrainerSeparateAsync.__init__": "c14061862b726615",
        "trainer/ppo/v1/trainer_separate_async.py:PPOTrainerSeparateAsync._init_resource_pool_mgr": "10f9f9e87f079a63",
        "trainer/ppo/v1/trainer_separate_async.py:PPOTrainerSeparateAsync._setup": "f99e865d867fdee8",
        "trainer/ppo/v1/trainer_separate_async.py:PPOTrainerSeparateAsync._compute_old_log_prob": "ea39221768e27ccc",
        "trainer/ppo/v1/trainer_separate_async.py:PPOTrainerSeparateAsync.on_init_end": "f5968163ab8a15b3",
        "trainer/ppo/v1/trainer_separate_async.py:PPOTrainerSeparateAsync.on_train_begin": "c9780e8219ef3240",
        "trainer/ppo/v1/trainer_separate_async.py:PPOTrainerSeparateAsync.on_validate_begin": "4a063f0d77c74a4a",
        "trainer/ppo/v1/trainer_separate_async.py:PPOTrainerSeparateAsync.on_step_begin": "0b2ff29bba31e985",
        "trainer/ppo/v1/trainer_separate_async.py:PPOTrainerSeparateAsync.on_sample_begin": "89cb287451ef7c0d",
        "trainer/ppo/v1/trainer_separate_async.py:PPOTrainerSeparateAsync.on_sample_end": "b5d5d947b4b02025",
        "trainer/ppo/v1/trainer_separate_async.py:PPOTrainerSeparateAsync.on_step_end": "887d232a9eff2496",
        "trainer/ppo/v1/replay_buffer.py:ReplayBufferAsync._stale_terminal_keys": "42532e82067ccc07",
        "trainer/ppo/v1/replay_buffer.py:ReplayBufferAsync._has_enough_samples": "faf54d17a0f8aec0",
    },
    "verl_ext/trainer/state/waiting.py": {
        "trainer/ppo/v1/trainer_base.py:PPOTrainer._reissue_inflight_prompts": "60c978f445af83d9",
        "trainer/ppo/v1/trainer_base.py:PPOTrainer._submit_batch_to_rollout": "47880198c29c523e",
        "trainer/ppo/v1/replay_buffer.py:ReplayBuffer._materialize_batch": "ae33f44b6caa9915",
    },
    "verl_ext/engine/object_store.py": {
        "checkpoint_engine/base.py:CheckpointEngine": "2c120ed3be72b995",
        "checkpoint_engine/base.py:CheckpointEngineWorker": "f657b7e565eec4e0",
        "checkpoint_engine/base.py:CheckpointEngineManager.build_process_group": "a0d2ea67af3955b9",
    },
    "verl_ext/engine/fsdp/copies.py": {
        "experimental/separation/engine_workers.py:DetachActorWorker.save_model_to_cpu": "9e02130313ff67eb",
        "experimental/separation/engine_workers.py:DetachActorWorker.restore_model_from_cpu": "f6cc8d99d946a1da",
        "utils/fsdp_utils.py:fsdp2_sharded_save_to_cpu": "5e1356156fc38b8b",
    },
    "verl_ext/trainer/row.py": {
        "trainer/ppo/padding_utils.py:upsample_batch_to_divisible_size": "712c98ce70fa43ac",
        "trainer/ppo/padding_utils.py:construct_minimal_padding_template": "8da2149e76c4eeba",
    },
    "verl_ext/trainer/advantage.py": {
        "trainer/ppo/v1/utils.py:compute_advantage_for_multi_trajectories": "46c7a2240d72f694",
        "trainer/ppo/core_algos.py:compute_gae_advantage_return": "d0aa83a54328c029",
        "trainer/ppo/core_algos.py:compute_grpo_outcome_advantage": "b13e07e529c36eb1",
        "trainer/ppo/core_algos.py:compute_reinforce_plus_plus_outcome_advantage": "2c688bd6f7f81088",
        "trainer/ppo/ray_trainer.py:compute_advantage": "c410e5ba6e5b50bc",
        "utils/torch_functional.py:masked_whiten": "58f9e9047f045aa1",
    },
    "verl_ext/trainer/loss.py": {
        "workers/utils/losses.py:ppo_loss": "d7a7f4ab82c8a092",
        "trainer/ppo/core_algos.py:agg_loss": "baa1eabb337dd663",
        "trainer/ppo/core_algos.py:kl_penalty": "f5a9e2e6d607431f",
        "trainer/ppo/core_algos.py:kl_penalty_forward": "89683b7332445fc8",
        "trainer/ppo/core_algos.py:compute_policy_loss_vanilla": "f7172b857b57ebc6",
    },
    "verl_ext/trainer/doctor.py": {
        "utils/metric/utils.py:Metric.aggregate_dp": "0b0de0edafffcd74",
        "utils/metric/utils.py:reduce_metrics": "5f9b1d486fc8ad87",
        "workers/engine_workers.py:TrainingWorker.train_mini_batch": "42ab3a46dc71a76a",
    },
    "verl_ext/engine/fsdp": {
        "workers/engine/fsdp/transformer_impl.py:FSDPEngine.__init__": "d930f1fcc2c576f2",
        "workers/engine/fsdp/transformer_impl.py:FSDPEngine.initialize": "a7a533cd1d6a655d",
        "workers/engine/fsdp/transformer_impl.py:FSDPEngine._build_module": "2167e48c755ac1ae",
        "workers/engine/fsdp/transformer_impl.py:FSDPEngine._build_fsdp_module": "980b7d8b72c18b36",
        "workers/engine/fsdp/transformer_impl.py:FSDPEngine.forward_backward_batch": "5e839f1066657e35",
        "workers/engine/fsdp/transformer_impl.py:FSDPEngineWithLMHead.forward_step": "d2fa75d4cdf92cca",
        "workers/engine/fsdp/transformer_impl.py:FSDPEngineWithLMHead.prepare_model_inputs": "2652efd0aee16a0d",
        "workers/engine/fsdp/transformer_impl.py:FSDPEngineWithLMHead.prepare_model_outputs": "384ab09aab7bfd49",
        "workers/engine/fsdp/transformer_impl.py:FSDPEngineWithValueHead.prepare_model_outputs": "d02cede39f036f3b",
        "workers/engine/utils.py:prepare_micro_batches": "786b212905c6b089",
        "workers/engine/utils.py:postprocess_batch_func": "d822a19fc79c823d",
    },
    "verl_ext/engine/lora/fsdp_adapters.py": {
        "workers/engine/fsdp/transformer_impl.py:FSDPEngine._build_lora_module": "cd24092209f39b5f",
        "workers/engine/fsdp/transformer_impl.py:FSDPEngine.optimizer_step": "203b58f17a312f0c",
        "workers/engine/fsdp/transformer_impl.py:FSDPEngine.get_per_tensor_param": "d5eab48fadf1ed39",
        "workers/engine/fsdp/transformer_impl.py:FSDPEngine.save_checkpoint": "a0e7d681d281ab92",
        "workers/engine/fsdp/transformer_impl.py:FSDPEngine.load_checkpoint": "bb1833cd25139240",
        "workers/engine/base.py:BaseEngine.train_batch": "a87a90bc31992c25",
        "workers/engine_workers.py:ActorRolloutRefWorker.update_weights": "9d72d359b9d247af",
    },
    "verl_ext/trainer/rollout/llm.py": {
        "workers/rollout/llm_server.py:LLMServerClient.__init__": "fed87b7dfc7592f4",
        "workers/rollout/llm_server.py:LLMServerClient._acquire_server": "c349eb1ca92b2576",
        "workers/rollout/llm_server.py:LLMServerClient._release_server": "48e478734cf66229",
        "workers/rollout/llm_server.py:LLMServerClient.generate": "7b2e51213e6084ef",
        "workers/rollout/llm_server.py:LLMServerClient._vllm_request_id": "f26c9e3287f5ebf2",
        "workers/rollout/llm_server.py:FullyAsyncLLMServerClient.generate": "3a08d5c6cc4481f4",
    },
    "verl_ext/trainer/policies": {
        "trainer/ppo/v1/trainer_base.py:PPOTrainer._setup": "7d33324e434aade2",
        "trainer/ppo/v1/trainer_base.py:PPOTrainer._init_tokenizer": "f504e7f70bc231dc",
        "trainer/ppo/v1/trainer_base.py:PPOTrainer._init_dataloader": "f45d901db25c85e1",
        "trainer/ppo/v1/trainer_base.py:PPOTrainer._init_dump_executor": "ff8c869a009c44d4",
        "trainer/ppo/v1/trainer_base.py:PPOTrainer._init_resource_pool_mgr": "493680a4725923f9",
        "trainer/ppo/v1/trainer_base.py:PPOTrainer._build_replay_buffer": "4c66ceb01a2f0c33",
        "trainer/ppo/v1/trainer_base.py:PPOTrainer._rollout_server_managers": "f91b061e6f644cb6",
        "trainer/ppo/v1/trainer_base.py:PPOTrainer.get_llm_client": "9ad05f00763a9289",
        "trainer/ppo/v1/trainer_base.py:PPOTrainer._compute_ref_log_prob": "647f0c685c9972b0",
        "trainer/ppo/v1/trainer_base.py:PPOTrainer._compute_values": "3ac8f494990fd78e",
        "single_controller/ray/base.py:ResourcePoolManager": "ce74c038e9ddf290",
        "single_controller/ray/base.py:RayResourcePool.get_placement_groups": "3257354262ab9d56",
        "checkpoint_engine/base.py:CheckpointEngineManager.update_weights": "e8393ada5b688380",
        "workers/rollout/llm_server.py:LLMServerManager._initialize_llm_servers": "2a43cae049ed05b8",
        "workers/rollout/replica.py:RolloutReplica.init_hybrid": "c52f1bf14925ec8e",
        "trainer/ppo/v1/trainer_separate_async.py:PPOTrainerSeparateAsync._get_n_gpus_for_throughput": (
            "fbd8381d69999a06"
        ),
        "utils/checkpoint/checkpoint_manager.py:find_latest_ckpt_path": "b9bfacf072753475",
    },
    "verl_ext/engine/policy_replica.py": {
        "workers/rollout/replica.py:RolloutReplica.init_standalone": "b7e88856a7b1ea18",
    },
    "verl_ext/engine/policy_names.py": {
        "checkpoint_engine/nccl_checkpoint_engine.py:NCCLCheckpointEngine.__init__": "eb37ddec8a5d1045",
        "workers/rollout/vllm_rollout/vllm_async_server.py:vLLMReplica._get_server_name_prefix": "8f345b020c259e46",
        "workers/rollout/vllm_rollout/vllm_async_server.py:vLLMReplica.launch_servers": "1910e1aa53f4ded5",
        "workers/rollout/vllm_rollout/vllm_rollout.py:ServerAdapter._get_server_name_prefix": "f1b708db6ee33b13",
        "workers/rollout/vllm_rollout/vllm_rollout.py:ServerAdapter._ensure_server_handle": "aacf5a9209deec91",
        "workers/rollout/vllm_rollout/utils.py:vLLMColocateWorkerExtension._get_zmq_handle": "9c986a44e8f98f34",
    },
    "verl_ext/engine/vllm": {
        "workers/rollout/vllm_rollout/vllm_async_server.py:vLLMHttpServer.__init__": "dddff64453440b39",
        "workers/rollout/vllm_rollout/vllm_async_server.py:vLLMHttpServer._get_worker_extension_cls": "3d69431647e96ee2",  # noqa: E501
        "workers/rollout/vllm_rollout/vllm_async_server.py:vLLMHttpServer.run_server": "e2bd34e512d9937b",
        "workers/rollout/vllm_rollout/vllm_async_server.py:vLLMHttpServer.run_headless": "98158e255797a53c",
        "workers/rollout/vllm_rollout/vllm_async_server.py:vLLMHttpServer.generate": "98d1b7a3a17b0e11",
        "workers/rollout/vllm_rollout/vllm_async_server.py:vLLMReplica.__init__": "c1720aaf7610ead9",
        "workers/rollout/vllm_rollout/utils.py:vLLMColocateWorkerExtension._update_weights": "a183aa08221eae19",
        "workers/rollout/vllm_rollout/vllm_rollout.py:ServerAdapter.__init__": "8fb279096fb92250",
        "workers/rollout/vllm_rollout/vllm_rollout.py:ServerAdapter.update_weights": "6d2aee5aa276c7a9",
        "utils/vllm/utils.py:TensorLoRARequest": "0c8e3a262c6303c2",
    },
}
FUNCTIONS = [(ours, name) for ours, functions in WATCHED.items() for name in functions]


def source(name: str) -> str:
    """The lines of a function or class, with its decorators."""
    path, _, inside = name.partition(":")
    text = (Path(verl.__file__).parent / path).read_text(encoding="utf-8")
    node: ast.AST = ast.parse(text)
    for part in inside.split("."):
        node = next(child for child in node.body if getattr(child, "name", None) == part)
    first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
    return "\n".join(text.splitlines()[first - 1 : node.end_lineno])


@pytest.mark.parametrize("ours,name", FUNCTIONS, ids=[name for _, name in FUNCTIONS])
def test_upstream_is_what_was_read(ours, name):
    found = hashlib.sha256(source(name).encode()).hexdigest()[:16]
    assert found == WATCHED[ours][name], f"verl's {name} has changed: read it, look at {ours}, then put {found!r} here"


def test_every_override_is_watched():
    watched = {name.rpartition(".")[2] for _, name in FUNCTIONS}
    trainers = (MultiAgentTrainer, FirstToEnd, PolicyUpdates, PolicyTrainer, MultiPolicyTrainer)
    separate = (MultiAgentTrainerSeparateAsync, SeparateAsync, MultiPolicySeparateAsync, PolicySeparateAsync)
    pairs = [(one, PPOTrainer) for one in trainers] + [(one, PPOTrainerSeparateAsync) for one in separate]
    for mine, verls in (*pairs, (PerAgentAdapters, FSDPEngineWithLMHead)):
        functions = {name for name, value in vars(mine).items() if inspect.isfunction(value)}
        assert {name for name in functions if hasattr(verls, name)} <= watched, mine


def test_what_we_call_ours_is_there():
    root = Path(__file__).parents[2]
    assert all((root / ours).exists() for ours in WATCHED)
