"""verl's engines and its vLLM rollout in processes of their own: what each program of this folder has found.

fsdp_program      verl's engine on the CPU: real FSDP2 over gloo, one rank, every kind of engine
packed_program    verl's engine over packed rows without flash_attn, and with its fused head
adapters_program  adapters per agent on that engine: two ranks that hold rows of different agents
vllm_program      checked weights and adapters per agent under vLLM: verl's classes are real, vLLM's API is a fake
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.engine.conftest import tiny_model
from tests.engine.programs import results_of

ADAPTERS = (
    "gradients_are_those_of_separate_models",
    "switching_adapters_mixes_them",
    "engine_paths_agree",
    "half_precision_as_on_cuda",
    "training_is_that_of_separate_models",
    "the_reference_is_the_base",
    "checkpoints",
    "starts",
    "push",
    "refusals",
    "on_cuda_the_vendor_chooses_the_engine",
)
VLLM = (
    "runs_of_ours_get_our_server",
    "the_runner_that_keeps_allowed_tokens_serves_unless_told_otherwise",
    "policies_have_names_and_sockets_of_their_own",
    "ranks_of_their_own_are_named_by_policy_and_servers_once",
    "a_request_goes_to_its_agents_lora",
    "the_noise_goes_on_where_an_output_is_continued",
    "a_cancelled_call_ends_in_the_engine",
    "one_push_becomes_a_lora_per_adapter",
    "adapters_come_over_a_checkpoint_engine",
    "a_stale_or_missing_adapter_ends_the_run",
    "a_base_that_is_not_what_was_sent_ends_the_run",
    "a_failed_update_ends_the_sender",
    "an_engine_without_the_adapters_is_noticed",
    "verl_is_what_was_read",
)


@pytest.fixture(scope="module")
def engines(model_dir: Path) -> dict[str, str]:
    return results_of("fsdp_program", model_dir)[0]


@pytest.mark.parametrize("kind", ["actor", "deciding", "fine-tuning", "half", "reference", "value"])
def test_an_engine_builds_computes_and_trains(engines, kind):
    assert engines.get(kind) == "ok"


def test_fsdp1_is_refused_with_the_remedy(engines):
    assert "set strategy=fsdp2" in engines["fsdp1"]


@pytest.fixture(scope="module")
def packed(model_dir: Path) -> dict[str, str]:
    return results_of("packed_program", model_dir)[0]


@pytest.mark.parametrize("check", ["packed", "packed_with_lora", "fused", "fused_with_lora"])
def test_packed_rows_without_flash_attn_are_as_padded_ones(packed, check):
    assert packed.get(check) == "ok"


@pytest.fixture(scope="module")
def ranks(model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, str]]:
    """On a tiny Llama: its embeddings are not tied, so verl builds it without weights on the second rank."""
    folder = tmp_path_factory.mktemp("llama") / "model"
    tiny_model("llama").save_pretrained(folder)
    for file in model_dir.glob("tokenizer*"):
        shutil.copy(file, folder)
    return results_of("adapters_program", folder, ranks=2)


@pytest.mark.parametrize("check", ADAPTERS)
def test_adapters_on_two_ranks(ranks, check):
    assert [rank.get(check) for rank in ranks] == ["ok", "ok"]


@pytest.fixture(scope="module")
def under_vllm(model_dir: Path) -> dict[str, str]:
    return results_of("vllm_program", model_dir)[0]


@pytest.mark.parametrize("check", VLLM)
def test_adapters_under_vllm(under_vllm, check):
    assert under_vllm.get(check) == "ok"
