"""Checks: checkpoints, exported folders, what is pushed to the rollout engine, and what is refused."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM
from verl.utils import tensordict_utils as tu
from verl.workers.engine.base import EngineRegistry
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead, FSDPEngineWithValueHead

from tests.engine.adapters_ranks import (
    PROMPT,
    RANK,
    STEPS,
    WORLD,
    batch_of,
    build,
    optimiser_state,
    own_rows,
    refusal,
    scored,
    set_weights,
    shard,
    train,
    weights_of,
)
from tests.engine.lora_models import CASES, NAMES, OPTIONS, TOKENS, adapter_parameters
from verl_ext.engine.fsdp.cuda import CUDAEngineWithLMHead
from verl_ext.engine.lora.adapter_files import read_adapters
from verl_ext.engine.lora.adapters import wire_name


def check_checkpoints(folder: Path) -> None:
    place = folder.parent / f"checkpoint_{WORLD}"
    engine = build(folder)
    set_weights(engine)
    train(engine, *STEPS[0])
    engine.save_checkpoint(str(place), global_step=1)
    saved = weights_of(engine)
    continued = [train(engine, *step) for step in STEPS[1:]]
    other = build(folder)
    assert not torch.equal(weights_of(other)[FIRST], saved[FIRST])
    other.load_checkpoint(str(place), del_local_after_load=False)
    assert all(torch.equal(value, saved[key]) for key, value in weights_of(other).items())
    resumed = [train(other, *step) for step in STEPS[1:]]
    assert resumed == continued, "losses and norms, bit by bit"
    weights, state = weights_of(engine), optimiser_state(engine)
    assert all(torch.equal(value, weights[key]) for key, value in weights_of(other).items())
    for key, values in optimiser_state(other).items():
        assert all(torch.equal(values[part], state[key][part]) for part in values), key

    shard = torch.load(place / f"model_world_size_{WORLD}_rank_{RANK}.pt", weights_only=False)
    assert set(map(wire_name, shard)) == set(saved), "adapters only"
    for names, said in ((NAMES[::-1], "Remedy"), (NAMES[:2], "Remedy")):
        assert said in refusal(lambda names=names: build(folder, names).load_checkpoint(str(place)))
    assert "no adapters.json" in refusal(lambda: engine.load_checkpoint(str(folder)))
    hold_to_plain_peft(folder, place, saved, engine)


FIRST = "rewriter/model.layers.0.self_attn.q_proj.lora_A.weight"


def hold_to_plain_peft(folder: Path, place: Path, saved: dict[str, torch.Tensor], engine: Any) -> None:
    """A peft folder per agent, which plain peft loads."""
    exported = read_adapters(place, OPTIONS)
    assert set(exported) == set(saved)
    assert all(torch.equal(shard(tensor), saved[key]) for key, tensor in exported.items())
    engine.load_checkpoint(str(place), del_local_after_load=False)
    with engine.eval_mode():
        data = batch_of(own_rows(TOKENS), own_rows(CASES["mixed"]))
        ours = scored(engine.infer_batch(data)["model_output"]["log_probs"])
    for number, name in enumerate(NAMES):
        base = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="sdpa")
        model = PeftModel.from_pretrained(base, str(place / "adapters" / name)).eval()
        config = model.peft_config["default"]
        assert (config.r, config.lora_alpha, config.task_type) == (OPTIONS.rank, OPTIONS.alpha, "CAUSAL_LM")
        assert config.base_model_name_or_path == str(folder)
        for key, parameter in adapter_parameters(model).items():
            assert torch.equal(shard(parameter), saved[key.replace("default/", f"{name}/")]), key
        tokens = own_rows(TOKENS)
        with torch.no_grad():
            logits = model(input_ids=tokens).logits[:, PROMPT - 1 : -1] / data["temperature"][:, None, None]
        theirs = logits.log_softmax(-1).gather(2, tokens[:, PROMPT:, None])[..., 0]
        for row, agent in enumerate(own_rows(CASES["mixed"])):
            difference = (theirs[row] - ours[row]).abs().max()
            assert difference < 2e-5 if agent == number else difference > 1e-3, (name, row)


def check_starts(folder: Path) -> None:
    """Adapters begin as the peft folders of another run's checkpoint; one that is not named is fresh."""
    place = folder.parent / f"start_{WORLD}"
    engine = build(folder)
    set_weights(engine)
    engine.save_checkpoint(str(place), global_step=1)
    saved, fresh = weights_of(engine), weights_of(build(folder))
    start = {name: str(place / "adapters" / name) for name in NAMES[1:]}
    for key, value in weights_of(build(folder, start=start)).items():
        assert torch.equal(value, (fresh if key.startswith(f"{NAMES[0]}/") else saved)[key]), key
    swapped = {NAMES[0]: start[NAMES[1]]}
    weights = weights_of(build(folder, NAMES[:1], start=swapped))
    assert all(torch.equal(value, saved[key.replace(NAMES[0], NAMES[1])]) for key, value in weights.items()), "any name"
    assert "is no peft folder" in refusal(lambda: build(folder, start={NAMES[0]: str(place)}))
    assert "which have no adapter" in refusal(lambda: build(folder, start={"other": start[NAMES[1]]}))


def check_push(folder: Path) -> None:
    """The base once, then adapters only."""
    engine = build(folder)
    weights = set_weights(engine)
    tensors, about = engine.get_per_tensor_param(base_sync_done=False)
    base, plain = dict(tensors), AutoModelForCausalLM.from_pretrained(folder).state_dict()
    linear = {name.removesuffix(".weight") for name in plain if "_proj.weight" in name}
    said = {"adapters": list(NAMES), "r": OPTIONS.rank, "lora_alpha": OPTIONS.alpha, "target_modules": sorted(linear)}
    assert about == said and set(base) == set(plain)
    assert all(torch.equal(base[name], tensor) for name, tensor in plain.items())
    tensors, about = engine.get_per_tensor_param(layered_summon=False, base_sync_done=True)
    pushed = dict(tensors)
    assert about == said and list(pushed) == list(weights)
    assert all(torch.equal(pushed[key], weight) for key, weight in weights.items())
    # Replicas on ranks of their own, which nobody counts for: all of it once, then adapters only.
    first, second = dict(engine.get_per_tensor_param()[0]), dict(engine.get_per_tensor_param()[0])
    assert list(first) == [*plain, *weights] and list(second) == list(weights)


def check_refusals(folder: Path) -> None:
    engine = build(folder)
    data = batch_of(own_rows(TOKENS), own_rows(CASES["mixed"]))
    with engine.eval_mode():
        for agents, said in ((None, "need the field 'agent_id'"), (3, "must be in 0..2"), (-1, "must be in 0..2")):
            data.pop("agent_id", None)
            if agents is not None:
                data["agent_id"] = torch.full((len(data),), agents)
            assert said in refusal(lambda: engine.infer_batch(data))
        data["agent_id"] = tu.get_tensordict({"x": [2, 0, 1, 1, 0, 1, 2, 2][: len(data)]})["x"]
        assert engine.agents_of(data).tolist() == [2, 0, 1, 1, 0, 1, 2, 2][: len(data)]
    assert "Remedy: mixed_precision.param_dtype=bf16" in refusal(lambda: build(folder, precision="fp16"))
    assert "take hf_model out" in refusal(lambda: build(folder, save_contents=["model", "hf_model"]))


def check_on_cuda_the_vendor_chooses_the_engine(folder: Path) -> None:
    """By lookup only: there is no GPU. The critic's engine stays verl's."""
    os.environ["VERL_ENGINE_DEVICE"] = "cuda"
    try:
        assert EngineRegistry.get_engine_cls("language_model", "fsdp2") is FSDPEngineWithLMHead
        os.environ["VERL_ENGINE_VENDOR"] = "verl_ext"
        for backend in ("fsdp", "fsdp2"):
            assert EngineRegistry.get_engine_cls("language_model", backend) is CUDAEngineWithLMHead
            assert EngineRegistry.get_engine_cls("value_model", backend) is FSDPEngineWithValueHead
    finally:
        for name in ("VERL_ENGINE_DEVICE", "VERL_ENGINE_VENDOR"):
            os.environ.pop(name, None)
