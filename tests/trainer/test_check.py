"""`python -m verl_ext.check`: what it computes, by hand; what it refuses; its exit status as a process."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hydra.errors import HydraException
from transformers import AutoConfig, AutoModelForCausalLM

from tests.trainer.test_before_a_start import questions
from tests.trainer.test_recipes import ROOT, composed, examined
from verl_ext.check import compose, main, parse_arguments
from verl_ext.plan.__main__ import main as plan
from verl_ext.plan.hardware import Device
from verl_ext.sampling import make_strategy
from verl_ext.trainer.preflight import values
from verl_ext.trainer.preflight.fitting import memory_notes
from verl_ext.trainer.preflight.gpu_memory import GIB, KNOWN, Engine, Memory, estimate, read_model, together
from verl_ext.worlds.biographies import ensure

TINY = Path(__file__).parents[2] / "recipe" / "mhgpo" / "assets" / "tiny_model"


@pytest.mark.parametrize(
    ("strategy", "options", "calls"),
    [  # docs/mhgpo.md, n = 3 and G = 4: forks at 1, 2, 3 cost 12, 9, 6
        *[("fof", {}, 12), ("is", {}, 27), ("nmc", {}, 21)],
        *[("rr", {"probabilities": [0.7, 0.1, 0.2]}, 10.5), ("rr", {"probabilities": [0, 0, 1]}, 6)],
    ],
)
def test_calls_per_question(strategy, options, calls):
    assert make_strategy(strategy, 4, ["a", "b", "c"], **options).expected_calls(3) == pytest.approx(calls)


# Totals of the published checkpoints (model.safetensors.index.json, or their model cards).
PUBLISHED = {
    "meta-llama/Llama-3.1-8B-Instruct": 8_030_261_248,
    "Qwen/Qwen2.5-0.5B-Instruct": 494_032_768,
    "Qwen/Qwen2.5-1.5B-Instruct": 1_543_714_304,
    "Qwen/Qwen2.5-3B-Instruct": 3_085_938_688,
    "Qwen/Qwen2.5-7B-Instruct": 7_615_616_512,
    "Qwen/Qwen2.5-14B-Instruct": 14_770_033_664,
    "Qwen/Qwen2.5-32B-Instruct": 32_763_876_352,
    "Qwen/Qwen2.5-72B-Instruct": 72_706_203_648,
}
LLAMA, _, SMALL, MIDDLE = list(PUBLISHED)[:4]


def test_known_models_have_the_published_sizes():
    assert {name: read_model(name).parameters for name in KNOWN} == PUBLISHED
    base = read_model("Qwen/Qwen2.5-0.5B")
    assert (base.parameters, base.positions) == (494_032_768, 32_768) and read_model("Qwen/Qwen2.5-7B").positions > 1e5
    with pytest.raises(LookupError, match="nobody/nothing is neither here nor in the hub's cache"):
        read_model("nobody/nothing")


def test_a_model_on_disk_is_measured_without_its_weights():
    from peft import LoraConfig, get_peft_model

    loaded, model = AutoModelForCausalLM.from_pretrained(TINY), read_model(str(TINY))
    assert model.parameters == sum(p.numel() for p in loaded.parameters())
    cache = loaded(torch.tensor([[1]]), use_cache=True).past_key_values
    assert model.kv_bytes == 2 * sum(layer.keys.numel() + layer.values.numel() for layer in cache.layers)
    assert model.positions == AutoConfig.from_pretrained(TINY).max_position_embeddings
    wrapped = get_peft_model(loaded, LoraConfig(r=8, target_modules="all-linear"))
    assert model.adapter(8) == sum(p.numel() for p in wrapped.parameters() if p.requires_grad)


@pytest.mark.parametrize(("kind", "sizes"), [("gpt_neox", {}), ("gpt2", {"n_embd": 64}), ("opt", {"ffn_dim": 256})])
def test_models_that_name_fewer_sizes_are_estimated_too(kind, sizes, tmp_path):
    """Pythia, GPT-2, OPT: as many heads of keys as of queries, and an inner width of four times the hidden one."""
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 99} | sizes
    more = {"gpt_neox": {"intermediate_size": 256}, "opt": {"word_embed_proj_dim": 64}}.get(kind, {})
    AutoConfig.for_model(kind, **sizes, **more).save_pretrained(tmp_path)
    model = read_model(str(tmp_path))
    assert model.kv_bytes == 2 * 2 * 2 * 4 * 16
    found = estimate(composed("+recipe=mhgpo"), model, critic=False)
    assert found.parts["activations"] == (2 * 64 + 12 * 64 + 4 * 256) * 16384 * 2


def test_memory_of_the_papers_run_by_hand():
    model = read_model(LLAMA)
    found = estimate(composed("+recipe=mhgpo"), model, critic=False)
    share = PUBLISHED[LLAMA] * 4 / 8  # fp32, sharded over 8 GPUs
    assert found.parts == {
        "parameters": share,
        "gradients": share,
        "optimiser": 2 * share,
        "activations": (32 * 4096 + 12 * 4096 + 4 * 14336) * 16384 * 2,
        "logits": 2 * 2 * 16384 * 128256,  # bf16, and their gradients
    }
    assert found.sync == 3 * share + found.weights + 2 * GIB  # parameters and moments, the engine's weights, the bucket
    assert found.resident == 3 * share and found.weights == PUBLISHED[LLAMA] * 2
    kv_bytes = 2 * 32 * 8 * 128 * 2
    assert found.kv_tokens(80 * GIB) == int((0.6 * 80 * GIB - found.weights - 2 * GIB) / kv_bytes)
    critic = estimate(composed("+recipe=mappo"), model, critic=True)
    assert critic.parts["critic"] == 3 * share and critic.resident == 6 * share


HEAD, SDPA = "actor_rollout_ref.model.use_fused_kernels", "actor_rollout_ref.model.override_config.attn_implementation"


@pytest.mark.parametrize(
    ("overrides", "bytes_per_logit", "tokens"),
    [
        ([], 2 * 2, 16384),
        ([f"+{SDPA}=sdpa"], 3 * 2, 16384),
        (["actor_rollout_ref.actor.entropy_coeff=0.01"], 8 * 2, 16384),
        ([f"{HEAD}=true", f"+{SDPA}=sdpa"], 20, 512),
        ([f"{HEAD}=true", "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=100"], 20, 100),
        ([f"{HEAD}=true", "actor_rollout_ref.actor.entropy_coeff=0.01"], 28, 512),
    ],
)
def test_memory_of_the_logits_follows_the_head(overrides, bytes_per_logit, tokens):
    found = estimate(composed("+recipe=mhgpo", *overrides), read_model(LLAMA), critic=False)
    assert found.parts["logits"] == bytes_per_logit * tokens * 128256


def test_padded_rows_are_noticed_and_decisions_keep_whole_logits():
    padded = "actor_rollout_ref.model.use_remove_padding=false"
    (note,) = examined("+recipe=mhgpo", padded).notes
    assert note.startswith("rows are not packed")
    assert examined("+recipe=mhgpo").notes == examined("+recipe=mhgpo_tiny", padded).notes == []
    expected = {"mhgpo": True, "deepagent": True, "puppeteer": False}
    fused = {
        name: composed(f"+recipe={name}", "+base=gpu").actor_rollout_ref.model.use_fused_kernels for name in expected
    }
    assert fused == expected


def test_memory_with_lora_trains_the_adapters_only():
    model = read_model(SMALL)
    found = estimate(composed("+recipe=mhgpo_24gb"), model, critic=False)
    # q, k, v, o, gate, up, down of 28 layers: rank × (in + out)
    shapes = [(1536, 1536), (1536, 256), (1536, 256), (1536, 1536), (1536, 8960), (1536, 8960), (8960, 1536)]
    adapter = 28 * 32 * sum(inner + outer for inner, outer in shapes)
    assert found.parts["gradients"] == 4 * adapter
    assert found.parts["parameters"] == 4 * (PUBLISHED[SMALL] + adapter)
    assert found.needed() < 24 * GIB < estimate(composed("+recipe=mhgpo"), model, False).needed() * 24
    each = estimate(composed("+recipe=mhgpo_24gb", "mas.policy=per_agent_lora"), model, critic=False)
    assert each.parts["gradients"] == 3 * 4 * adapter, "one for each of the three agents"
    assert each.parts["parameters"] == 4 * (PUBLISHED[SMALL] + 3 * adapter)
    assert each.weights == 2 * (PUBLISHED[SMALL] + 3 * adapter)


@pytest.mark.parametrize(
    ("recipe", "strategy", "comes_back"),
    [("mhgpo_24gb", "fsdp2", True), ("mhgpo", "fsdp", True), ("mhgpo", "fsdp2", False)],
)
def test_offloaded_parameters_return_for_the_engine_s_new_weights(recipe, strategy, comes_back):
    """FSDP1 and LoRA load the whole module (verl's get_per_tensor_param), FSDP2 goes tensor by tensor."""
    actor = "actor_rollout_ref.actor"
    offloads = [f"{actor}.fsdp_config.param_offload=true", f"{actor}.fsdp_config.optimizer_offload=true"]
    bucket = "actor_rollout_ref.rollout.checkpoint_engine.update_weights_bucket_megabytes=512"
    config = composed(f"+recipe={recipe}", f"{actor}.strategy={strategy}", bucket, *offloads)
    found = estimate(config, read_model(MIDDLE), critic=False)
    assert found.resident == 0 and found.weights == 2 * PUBLISHED[MIDDLE]
    assert found.sync == found.weights + GIB / 2 + (found.parts["parameters"] if comes_back else 0)


def test_the_smallest_card():
    small, half = Engine(0.0, 1.0, 0.6), Engine(0.0, 1.0, 0.5)
    assert Memory({"all": 10.0}, 6.0, 0.0, (small,)).needed() == max(10.0, 6.0 / 0.4, 2 * GIB / 0.6)
    assert Memory({"all": 9 * GIB}, 6.0 * GIB, 0.0, (half,)).needed() == 12 * GIB
    assert Memory({"all": 9 * GIB}, 6.0 * GIB, 13.0 * GIB, (half,)).needed() == 13 * GIB


def test_of_two_engines_each_has_room_in_its_own_share():
    small, large = (Memory({}, 0.0, 0.0, (Engine(size * GIB, 1.0, share),)) for size, share in ((1, 0.6), (14, 0.2)))
    both = together({"small": small, "large": large})
    assert both.weights == 15 * GIB and both.needed() == pytest.approx(80 * GIB), "16 GiB in a fifth of the card"
    assert both.kv_tokens(100 * GIB) == large.kv_tokens(100 * GIB) == int(0.2 * 100 * GIB - 16 * GIB)


ROLLOUT, ACTOR = "actor_rollout_ref.rollout", "actor_rollout_ref.actor"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ([f"{ROLLOUT}.tensor_model_parallel_size=3"], "8 ranks .* engines of 3"),
        ([f"{ROLLOUT}.tensor_model_parallel_size=64", "trainer.nnodes=8"], "does not divide .* 32 heads"),
        ([f"{ACTOR}.ppo_max_token_len_per_gpu=4351"], "ppo_max_token_len_per_gpu=4351.* have, 4352"),
        ([f"{ROLLOUT}.max_model_len=4000"], "max_model_len=4000: less than a row may have, 4352"),
        (["mas.agents.answerer.max_tokens=300", f"{ROLLOUT}.max_model_len=4352"], "have, 4396"),
        (["data.max_prompt_length=131072"], "max_position_embeddings=131072"),
        (["ray_kwargs.ray_init.num_cpus=41"], "num_cpus=41 is too small; 42 are taken"),
        (["+ray_kwargs.ray_init.num_gpus=7"], "num_gpus=7 is too small: the run has 8 rank"),
        (["+mas.workflow.penalties.long_answer=1"], "penalties.long_answer=1 must be at most 0"),
        (["+mas.tools.search.topp=3"], "unknown settings of the search tool"),
        ([f"{ROLLOUT}.mode=sync"], "Rollout mode 'sync' has been removed"),
        ([f"{ACTOR}.use_dynamic_bsz=false"], "ppo_micro_batch_size"),
        (["data.train_files=5"], "data.train_files=5 must be one parquet file or a list of them"),
        (["data.val_files=null"], "data.val_files is not set: give one parquet file"),
        (
            ["+mas.tools.other={_target_: verl_ext.tools.catalogue.tool_call, sources: [1]}"],
            "tool source 0: given kind 1",
        ),
        (
            ["+mas.tools.other={_target_: verl_ext.tools.catalogue.tool_call, sources: 5, backend: 5}"],
            "mas.tools.other: sources must be a list of tool sources, given 5",
        ),
    ],
)
def test_what_is_wrong(overrides, message):
    report = examined("+recipe=mhgpo", *overrides)
    assert re.search(message, " ".join(report.problems)), report


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ([f"{ACTOR}.strategy=x"], "actor.strategy='x' is unknown.* fsdp, fsdp2"),
        ([f"{ROLLOUT}.dtype=x"], "rollout.dtype='x' is unknown.* bfloat16"),
        ([f"++{SDPA}=flash_atention_2"], "attn_implementation='flash_atention_2' is unknown; did you mean 'flash_at"),
        (
            ["actor_rollout_ref.model.lora_rank=8", "actor_rollout_ref.model.target_modules=[]"],
            "leaves no layer to LoRA",
        ),
        (["+trainer.keep_best=f1"], "keep_best=f1 can be no metric of validation.* val/system/f1"),
        (["trainer.default_local_dir=''"], "default_local_dir='' must be a folder"),
        (["trainer.default_local_dir=null"], "default_local_dir=None must be a folder"),
        ([f"{ACTOR}.optim.betas=[0.9]"], r"betas=\[0.9\] must be a list of two numbers"),
        ([f"{ACTOR}.optim.lr=inf"], "optim.lr=inf must be finite"),
        (["data.gen_batch_size=3"], "train_batch_size=32 must be a multiple of data.gen_batch_size=3"),
        (["mas.tools.search.corpus=5"], "corpus=5 must be of type str or a list"),
        (["mas.workflow.prompts=[a]"], r"prompts=\['a'\] is unknown; allowed: faithful, tiny"),
    ],
)
def test_what_verl_would_refuse_while_it_runs(overrides, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    report = examined("+recipe=mhgpo_tiny", *overrides)
    assert re.search(message, " ".join(report.problems)) and "Traceback" not in str(report), report


def test_a_kernel_of_the_hub_is_a_kind_of_attention(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert not examined("+recipe=mhgpo_tiny", f"++{SDPA}=kernels-community/flash-attn").problems


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("mas.memory.capacity=5", "mas.memory.capacity is not set by .* plus: [+]mas.memory.capacity=5"),
        ("mas.memory.capcity=5", "did you mean 'capacity'.*beta, capacity, encoder"),
        ("mas.memory.capcity=5 +recipe=mhgpo_tiny", "unknown key mas.memory.capcity; did you mean 'capacity'"),
        ("mas.memory.capacity=5 +recipe=mhgpo_tiny", ".mas.memory is null.; .* plus: [+]mas.memory.capacity=5"),
        ("mas.agents.math_agent.trained=false", "plus: [+]mas.agents.math_agent.trained=false"),
        ("mas.agents.math_agent.tokens=3", "allowed: cost, endpoint, head, max_tokens"),
        ("mas.agents.math.trained=false", "unknown key mas.agents.math; did you mean .* master[^+]*$"),
        ("mas.agents.poet.trained=false", "unknown key mas.agents.poet .* master.*[+]mas.agents.poet.trained=false"),
        ("mas.advantage.topk=3", "did you mean 'top_k'"),
        ("data.train_batch_sise=3", "unknown key data.train_batch_sise; did you mean 'train_batch_size'[^+]*$"),
        ("data.train_batch_sise=3 trainer.nodes=2", "unknown key data.train_batch_sise; did you mean"),
        ("mas.tools.search.top=3 +recipe=mhgpo_tiny", "mas.tools.search.top; did you mean 'top_k'[^+]*$"),
    ],
)
def test_a_key_that_the_recipe_does_not_set(override, message):
    recipe = [] if "+recipe" in override else ["+recipe=joyagents_tiny"]
    with pytest.raises(HydraException, match=message):
        compose([*recipe, *override.split()])


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("reader", "mas.agents.reader is not set by .* plus: [+]mas.agents.reader.max_tokens=3"),
        ("rewriter_", "unknown key mas.agents.rewriter_ .allowed: reader, solver."),
    ],
)
def test_the_agents_of_a_program_are_those_that_its_recipe_lists(name, message):
    """Not those of the recipe that it extends, which it sets to null."""
    program = ["++mas.workflow.agents=[reader,solver]", "mas.agents={rewriter: null, reranker: null, answerer: null}"]
    with pytest.raises(HydraException, match=message):
        compose(["+recipe=mhgpo_tiny", *program, f"mas.agents.{name}.max_tokens=3"])


@pytest.mark.parametrize(
    "overrides",
    [
        ["+recipe=joyagents_tiny", "+mas.memory.capacity=5", "+mas.agents.math_agent.trained=false"],
        ["+recipe=mhgpo_tiny", "+mas.memory.capacity=5"],
    ],
)
def test_with_the_plus_it_works(overrides):
    report = examined(*overrides)
    assert report.problems == [] and report.config.mas.memory.capacity == 5


@pytest.mark.parametrize("name", ["jörg", "研究", "it's [x], a=b", "back\\slash"])
def test_recipes_may_be_in_a_folder_of_any_name(tmp_path, name):
    (tmp_path / name / "recipe").mkdir(parents=True)
    (tmp_path / name / "recipe" / "mine.yaml").write_text("# @package _global_\nmas: {seed: 7}\n")
    assert compose(["+recipe=mine"], str(tmp_path / name)).mas.seed == 7


def test_a_critic_needs_no_hub_and_its_limits_count():
    assert examined("+recipe=mappo").problems == []
    (problem,) = examined("+recipe=mappo", "critic.ppo_max_token_len_per_gpu=4000").problems
    assert "critic.ppo_max_token_len_per_gpu=4000" in problem


def test_a_recipe_that_makes_its_own_data_lacks_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    report = examined("+recipe=mhgpo_tiny")
    assert report.problems == report.missing == report.lacking == []
    assert dict(report.facts)["tools.search"].endswith("made at the start by mas.prepare")
    assert list(tmp_path.iterdir()) == [], "nothing is written"


def test_data_that_will_be_made_anew_do_not_make_a_configuration_wrong(tmp_path, monkeypatch):
    """The files are those of an earlier run with fewer questions."""
    monkeypatch.chdir(tmp_path)
    ensure("data/tiny_world", train_size=64, val_size=8)
    report = examined("+recipe=mhgpo_tiny", "+mas.prepare.train_size=2048", "data.train_batch_size=128")
    assert report.problems == report.missing == []
    (note,) = report.notes
    assert "hold 64 questions, fewer than data.train_batch_size=128" in note
    assert "mas.prepare makes them anew at the start if its arguments have changed" in note


def test_steps_are_counted_once_the_data_are_there(tmp_path):
    path = questions(tmp_path / "q.parquet", [{"index": i} for i in range(1030)])
    files = [f"data.train_files={path}", f"data.val_files={path}"]
    report = examined("+recipe=mhgpo", *files, "trainer.total_epochs=3")
    assert "512 questions and 1 optimiser step each; 2 an epoch; 6 in all" in dict(report.facts)["steps"]
    assert report.missing == [] and "1030 rows" in dict(report.facts)["data.train_files"]
    (problem,) = examined("+recipe=mhgpo", *files, "data.train_batch_size=2048").problems
    assert "hold 1030 questions, fewer than" in problem


def test_that_a_node_has_one_of_a_tool_is_no_argument_of_it():
    report, without = examined("+recipe=mhgpo", "+mas.tools.search.once_per_node=true"), examined("+recipe=mhgpo")
    (said,) = [fact for fact in report.facts if fact not in without.facts]
    assert said[0] == "once per node" and said[1].startswith("search: ") and report.problems == []


def test_strict_asks_the_server():
    url = ["mas.tools.search.url=http://127.0.0.1:9", "+mas.tools.search.attempts=1"]
    for strict, words in ((False, []), (True, ["no answer from the retrieval server"])):
        missing = [one for one in examined("+recipe=mhgpo", *url, strict=strict).missing if "127.0.0.1:9" in one]
        assert len(missing) == len(words) and all(word in missing[0] for word in words)


SOURCES = [f"mas.tools.{name}.sources=[{{kind: encyclopedia}}]" for name in ("tool_call", "tool_search")]


def test_the_files_of_a_tools_back_end(tmp_path):
    place, target = "mas.tools.tool_call.backend", "verl_ext.tools.catalogue.formats.encyclopedia.encyclopedia"
    back_end = f"+{place}={{_target_: {target}, index: {tmp_path}/index}}"
    report = examined("+recipe=deepagent", *SOURCES, f"~{place}", back_end)
    assert [item for item in report.missing if f"no index at {tmp_path}/index" in item] and report.problems == []
    assert f"{tmp_path}/index: missing" in dict(report.facts)["tools.tool_call"]


def test_a_recording_that_is_not_there_yet_is_missing_and_a_damaged_one_is_wrong(tmp_path):
    place, cache = "mas.tools.tool_call.backend", tmp_path / "simulator.db"
    given = ["+recipe=deepagent", *SOURCES, f"{place}.mode=replay", f"{place}.cache={cache}"]
    report = examined(*given)
    assert [item for item in report.missing if f"there is no cache at {cache}" in item] and report.problems == []
    assert f"recording {cache}: missing" in dict(report.facts)["tools.tool_call"]
    cache.write_bytes(b"no database" * 1000)
    report = examined(*given)
    assert str(cache) in " ".join(report.problems) and not [item for item in report.missing if str(cache) in item]
    recording = examined(*given, f"{place}.mode=record", f"{place}.cache={tmp_path}/new.db")
    assert recording.problems == [] and "recording" not in dict(recording.facts)["tools.tool_call"]


def test_a_small_card_lacks_memory():
    missing = " ".join(examined("+recipe=mhgpo", gpu_memory=40).missing)
    assert "vLLM would not start for sequences of 131,072" in missing and "max_model_len=4352" in missing


@pytest.mark.parametrize("policies", [False, True])
def test_the_token_limit_that_is_named_fits_and_a_larger_one_does_not(monkeypatch, policies):
    """By `verl_ext check`, and at the start of a run on a machine with such a GPU."""
    limit = f"{ACTOR}.ppo_max_token_len_per_gpu"
    given = ["+recipe=mhgpo", "+base=gpu", "actor_rollout_ref.model.path=Qwen/Qwen2.5-1.5B-Instruct"]
    if policies:  # one has a limit of its own
        limit = "+mas.policies.large.actor.ppo_max_token_len_per_gpu"
        given += ["mas.sampling.strategy=fof", *TWO, "actor_rollout_ref.model.path=Qwen/Qwen2.5-0.5B-Instruct"]

    def lacking(tokens: int) -> list[str]:
        report = examined(*given, f"{limit}={tokens}", gpu_memory=24)
        card = SimpleNamespace(name="another", total_memory=24 * GIB)
        monkeypatch.setattr("torch.cuda.is_available", lambda: True)
        monkeypatch.setattr("torch.cuda.get_device_properties", lambda device: card)
        assert memory_notes(report.config) == [item for item in report.missing if "most of training's" in item]
        assert all(("for large" in item) == policies for item in memory_notes(report.config))
        return memory_notes(report.config)

    fits = int(re.search(r"([\d,]+) tokens would fit", lacking(10**6)[0])[1].replace(",", ""))
    assert not lacking(fits) and lacking(fits + 200)


WITH_GPUS = sorted(path.stem for path in (ROOT / "configs/recipe").glob("*.yaml") if "tiny" not in path.stem)
# Rows of up to 40,960 tokens: outputs for long documentation.
TOO_LONG = ("deepagent_spotify", "deepagent_tmdb")


@pytest.mark.parametrize("base", ["gpu", "gpu8"])
@pytest.mark.parametrize("recipe", WITH_GPUS)
def test_one_card_behind_any_recipe_is_right_or_says_what_does_not_fit(recipe, base, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # data that was prepared in the clone may be too little
    report = examined(f"+recipe={recipe}", f"+base={base}", gpu_memory=24)
    assert [problem for problem in report.problems if recipe not in TOO_LONG or "max_position" not in problem] == []
    memory = [item for item in report.missing if item.startswith("memory")]
    config = report.config
    if recipe.startswith("deepagent") or config.actor_rollout_ref.rollout.max_model_len > 20_000:
        assert not memory or (
            "is for logits. Remedy: fewer tokens" in memory[0] and "data.max_prompt_length" in memory[0]
        )
    elif recipe == "mappo":
        assert "is for critic. Remedy: a smaller critic" in memory[0]
    else:
        assert memory == []
    assert config.actor_rollout_ref.actor.ppo_max_token_len_per_gpu == config.actor_rollout_ref.rollout.max_model_len
    assert 0 < config.trainer.test_freq <= 20 and 0 < config.trainer.save_freq <= 20


@pytest.mark.parametrize(
    ("arguments", "status", "output"),
    [
        (
            ["--strict", "+recipe=mhgpo"],
            1,
            "To train, once nothing is missing:\n  python -m verl.trainer.main_ppo +recipe=mhgpo",
        ),
        (["--cfg", "job", "+recipe=mhgpo"], 0, "strategy: rr"),
        (["+recipe=mgpo"], 2, "Could not find 'recipe/mgpo': recipe='mgpo' is unknown; did you mean 'mhgpo'?"),
        (["+recipe=mhgpo", "+base=grpp"], 2, "base='grpp' is unknown; did you mean 'grpo'?"),
        (["+recpe=mhgpo"], 2, "unknown group 'recpe'; did you mean +recipe=mhgpo?"),
        (["trainer.nnodes=1"], 2, "no recipe was given. Remedy: "),
        (["--config-dir", "nowhere", "+recipe=mhgpo_tiny"], 2, "--config-dir nowhere is no folder. Remedy: "),
    ],
)
def test_command(arguments, status, output, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == status
    printed = capsys.readouterr()
    assert output in printed.out + printed.err


def test_as_a_process_help_imports_nothing_heavy():
    command = [sys.executable, "-X", "importtime", "-m", "verl_ext.check", "--help"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0 and "--cfg" in done.stdout
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert not imported & {"torch", "verl", "hydra", "ray", "pydantic", "transformers"}


@pytest.mark.parametrize(
    ("name", "what"), [("data.max_prompt_length", "whole "), ("trainer.nnodes", "whole "), ("critic.optim.lr", "")]
)
def test_a_setting_that_is_no_number_is_wrong(name, what):
    assert examined("+recipe=mappo_tiny", f"{name}=null").problems == [f"{name}=None must be a {what}number"]


def test_a_recipe_whose_preparation_was_removed_is_checked():
    report = examined("+recipe=mhgpo_tiny", "~mas.prepare")
    assert report.problems == [] and not [value for _, value in report.facts if "mas.prepare" in value]


def test_numbers_are_checked_once(monkeypatch):
    calls, check_numbers = [], values.check_numbers
    monkeypatch.setattr(values, "check_numbers", lambda config: [calls.append(config), check_numbers(config)])
    assert not examined("+recipe=mhgpo_tiny").problems and len(calls) == 1


TWO = (
    "+mas.policies.small={agents: [rewriter, reranker], rollout: {gpu_memory_utilization: 0.3}}",
    "+mas.policies.large={agents: [answerer], rollout: {gpu_memory_utilization: 0.4}}",
)


@pytest.mark.parametrize("overrides", [["+recipe=mhgpo"], ["+recipe=mhgpo", "mas.sampling.strategy=fof", *TWO]])
def test_the_time_of_a_step_is_that_of_the_plan(overrides, capsys):
    load = ["--device", "a100", "--prompt_tokens", "1500", "--output_tokens", "60", "--tool_seconds", "0.5"]
    said = dict(examined(*overrides, load=parse_arguments([*overrides, *load])).facts)
    assert plan([*overrides, *load, "--gpus", "8"]) == 0
    planned = capsys.readouterr().out
    row = re.search(r"A step takes ([\d,.]+) s", planned) or re.search(r"\| rr  +\| +[\d,]+ \| +([\d,.]+) \|", planned)
    seconds = float(row[1].replace(",", ""))
    assert said["time of a step"].startswith(f"about {seconds:.3g} s on 8 × A100 SXM 80 GB: a call reads 1,500 tokens")
    assert "the update, bound by operations" in said[""] and said[""].endswith("the error is not known")


def test_the_time_of_a_step_is_bounded_by_the_limits_and_told_where_the_model_covers_it(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    facts = dict(examined("+recipe=mhgpo_tiny", *TWO).facts)
    assert facts["time of a step"].startswith("at most about ")
    assert "on 1 × one core of this CPU, without the time of tools: " in facts["time of a step"]
    assert "a call reads 512 tokens and writes 15, the longest chain writes 44" in facts["time of a step"]
    assert "at their limits often take several times the truth" in facts[""]
    assert "more cores help" in facts[""] and "GPU" not in facts[""]
    assert dict(examined("+recipe=mhgpo").facts)["time of a step"].startswith("known once the kind of GPU is: --device")
    small = Device("a core", 1e11, 1e10, 2.0**20, 1e10, 1e10, 1, "made up")
    monkeypatch.setattr("verl_ext.plan.brief.measured_cpu", lambda **_: small)
    bound = dict(examined("+recipe=mhgpo_tiny").facts)["time of a step"]
    assert bound.startswith("at most about "), "micro-batches follow a CPU's memory"
    unknown = "+mas.policies.small.model.path=nobody/nothing"
    assert "time of a step" not in dict(examined("+recipe=mhgpo_tiny", *TWO, unknown).facts)
    assert parse_arguments(["+recipe=mhgpo", "--device", "rtx4090"]).gpu_memory == 24
