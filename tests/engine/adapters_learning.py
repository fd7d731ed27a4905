"""Checks of what each adapter learns on two ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from transformers import AutoModelForCausalLM

from tests.engine.adapters_ranks import (
    CLIP,
    DECAY,
    EPSILON,
    PROMPT,
    RATE,
    STEPS,
    WORLD,
    base_of,
    batch_of,
    build,
    error,
    gradients_of,
    mean_loss,
    optimiser_state,
    own_rows,
    scored,
    set_weights,
    shard,
    train,
    weights_of,
)
from tests.engine.lora_models import (
    CASES,
    NAMES,
    TOKENS,
    adapter_parameters,
    in_order,
    reference_gradients,
    routed,
    row_losses,
    separate,
)
from verl_ext.engine.fsdp.shared_prefixes import SharedPrefixes


def sharded(dtype: torch.dtype, checkpointing: bool = False) -> tuple[PeftModel, Any]:
    model, route = routed(dtype, checkpointing)
    mesh = init_device_mesh("cpu", (WORLD,))
    for layer in model.base_model.model.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model, route


def check_gradients_are_those_of_separate_models(folder: Path) -> None:
    for case in CASES:
        for dtype, tolerance, checkpointing in ((torch.float64, 1e-12, True), (torch.float32, 2e-5, False)):
            expected = reference_gradients(case, dtype)
            model, route = sharded(dtype, checkpointing)
            tokens = own_rows(TOKENS)
            order, sizes = in_order(own_rows(CASES[case]))
            with route.using(sizes):
                loss = row_losses(model, tokens[order]).mean()
            loss.backward()
            gradients = gradients_of(model)
            for name in NAMES:
                assert error(gradients, expected, name) < tolerance, (case, dtype, checkpointing, name)


def check_switching_adapters_mixes_them(folder: Path) -> None:
    """The control: what an ordinary `set_adapter` per micro-batch does where ranks hold rows of different agents."""
    expected = reference_gradients("one each", torch.float64)
    model, route = sharded(torch.float64)
    tokens, agents = own_rows(TOKENS), torch.tensor(own_rows(CASES["one each"]))
    for number, name in enumerate(NAMES):
        if not (agents == number).any():
            continue
        model.base_model.set_adapter([name])
        rows = tokens[agents == number]
        sizes = [len(rows) if other == number else 0 for other in range(len(NAMES))]
        # As in a model that knows one adapter at a time: the others are not in the graph.
        with route.using(sizes), only(model, name):
            (row_losses(model, rows).sum() / len(tokens)).backward()
    errors = [error(gradients_of(model), expected, name) for name in NAMES]
    assert max(errors) > 0.5, errors


class only:
    """The routed layers run one adapter, as peft's own do."""

    def __init__(self, model: PeftModel, name: str) -> None:
        self.layers = [m for m in model.modules() if hasattr(m, "route")]
        self.name = name

    def __enter__(self) -> None:
        from peft.tuners.lora import Linear

        for layer in self.layers:
            layer.forward = Linear.forward.__get__(layer)

    def __exit__(self, *_: object) -> None:
        for layer in self.layers:
            del layer.forward


# Prompts repeat: also across agents, which must not share them.
REPEATED = torch.cat([TOKENS[:1, :PROMPT].expand(8, -1), TOKENS[:, PROMPT:]], 1)


def check_engine_paths_agree(folder: Path) -> None:
    """Shared prompts, verl's padded and its packed pass give the same; gradient checkpointing changes nothing."""
    found = {}
    for checkpointing in (False, True):
        engine = build(folder, checkpointing=checkpointing, bucket=40 if checkpointing else 0)
        set_weights(engine)
        data = {packed: batch_of(own_rows(REPEATED), own_rows(CASES["mixed"]), packed) for packed in (False, True)}
        plain = super(SharedPrefixes, engine).forward_step
        assert engine._can_share(data[False])
        for name, step, packed in (
            ("shared", engine.forward_step, False),
            ("padded", plain, False),
            ("packed", plain, True),
        ):
            with engine.train_mode():
                loss, output = step(data[packed], mean_loss, False)
                loss.backward()
                gradients = gradients_of(engine.module)
                engine.optimizer_zero_grad()
            found[name, checkpointing] = output["model_output"], gradients
    outputs, gradients = found["padded", False]
    assert scored(outputs["log_probs"]).unique().numel() > 15
    largest = {name: max(g.abs().max() for key, g in gradients.items() if key.startswith(name)) for name in NAMES}
    assert min(largest.values()) > 1e-3, "gradients that could differ"
    for way, (other_outputs, other_gradients) in found.items():
        for key in ("log_probs", "entropy"):
            assert torch.allclose(scored(outputs[key]), scored(other_outputs[key]), atol=2e-5), (way, key)
        for key, gradient in gradients.items():
            assert (other_gradients[key] - gradient).abs().max() < 1e-4 * largest[key.split("/")[0]], (way, key)
    wrong = batch_of(own_rows(REPEATED), [(agent + 1) % 3 for agent in own_rows(CASES["mixed"])])
    with engine.train_mode():
        _, output = engine.forward_step(wrong, mean_loss, False)
        engine.optimizer_zero_grad()
    difference = (scored(output["model_output"]["log_probs"]) - scored(outputs["log_probs"])).abs().amax(1)
    assert (difference > 1e-3).all(), "another agent's adapter would give something else"


def check_half_precision_as_on_cuda(folder: Path) -> None:
    """bf16 forward passes over fp32 weights, which shared prefixes leave to verl's own: same adapters, fp32 steps."""
    engine = build(folder, precision="bf16")
    before, base = set_weights(engine), base_of(engine)
    agents = own_rows(CASES["mixed"])
    with engine.eval_mode():
        found = [
            engine.infer_batch(batch_of(own_rows(TOKENS), asked, packed))["model_output"]["log_probs"]
            for asked, packed in ((agents, False), (agents, True), ([(agent + 1) % 3 for agent in agents], False))
        ]
    own, packed, other = (scored(output).float() for output in found)
    assert (own - packed).abs().max() < 0.1 and ((own - other).abs().amax(1) > 0.1).all()
    train(engine, CASES["one each"])
    for key, weight in weights_of(engine).items():
        assert weight.dtype == torch.float32
        assert torch.equal(weight, shard(before[key])) == key.startswith(NAMES[2]), key
    assert all(torch.equal(tensor, base[name]) for name, tensor in base_of(engine).items())


def check_training_is_that_of_separate_models(folder: Path) -> None:
    engine = build(folder)
    weights, base = set_weights(engine), base_of(engine)
    models = {name: separate_from(folder, name, weights) for name in NAMES}
    optimisers = {
        name: torch.optim.AdamW(adapter_parameters(models[name]).values(), lr=RATE, weight_decay=DECAY, eps=EPSILON)
        for name in NAMES
    }
    for number, (agents, padding) in enumerate(STEPS):
        before, state = weights_of(engine), optimiser_state(engine)
        metrics = train(engine, agents, padding)["metrics"]
        norms = {
            name: reference_step(models[name], optimisers[name], place, agents, padding)
            for place, name in enumerate(NAMES)
        }
        for name, norm in norms.items():
            assert (f"adapters/{name}/grad_norm" in metrics) == (norm is not None)
            if norm is not None:
                assert abs(metrics[f"adapters/{name}/grad_norm"][0] - norm) < 1e-4 * norm and norm > 2 * CLIP
        after = weights_of(engine)
        for name in NAMES:
            for key, parameter in adapter_parameters(models[name]).items():
                assert torch.allclose(after[key], shard(parameter), atol=2e-5), (number, key)
                moved = not torch.equal(after[key], before[key])
                assert moved == (norms[name] is not None), (number, key)
        if number:
            for key, values in optimiser_state(engine).items():
                same = all(torch.equal(values[part], state[key][part]) for part in values)
                assert same == (norms[key.split("/")[0]] is None), (number, key)
    for name, tensor in base_of(engine).items():
        assert torch.equal(tensor, base[name]), f"the base has moved: {name}"


def separate_from(folder: Path, name: str, weights: dict[str, torch.Tensor]) -> PeftModel:
    return separate(name, weights, model=AutoModelForCausalLM.from_pretrained(folder, attn_implementation="sdpa"))


def reference_step(
    model: PeftModel, optimiser: torch.optim.Optimizer, place: int, agents: list[int], padding: tuple[int, ...]
) -> float | None:
    """One optimiser step of one agent's own model on its own rows; None, and no step, without any."""
    rows = [row for row, agent in enumerate(agents) if agent == place and row not in padding]
    if not rows:
        return None
    optimiser.zero_grad()
    per_rank = len(TOKENS) // WORLD
    temperature = torch.linspace(0.8, 1.2, per_rank).repeat(WORLD)[rows]
    logits = model(input_ids=TOKENS[rows], use_cache=False).logits[:, PROMPT - 1 : -1] / temperature[:, None, None]
    chosen = logits.log_softmax(-1).gather(2, TOKENS[rows][:, PROMPT:, None])
    (-chosen.sum() / len(TOKENS)).backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
    optimiser.step()
    return norm.item()


def check_the_reference_is_the_base(folder: Path) -> None:
    engine = build(folder)
    set_weights(engine)
    data = batch_of(own_rows(TOKENS), own_rows(CASES["mixed"]))
    with engine.eval_mode():
        with engine.disable_adapter():
            output = engine.infer_batch(data)["model_output"]["log_probs"]
        trained = engine.infer_batch(data)["model_output"]["log_probs"]
    base = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="sdpa")
    tokens = own_rows(TOKENS)
    with torch.no_grad():
        logits = base(input_ids=tokens).logits[:, PROMPT - 1 : -1] / data["temperature"][:, None, None]
    plain = logits.log_softmax(-1).gather(2, tokens[:, PROMPT:, None])[..., 0]
    assert torch.allclose(scored(output), plain, atol=2e-5)
    assert ((scored(trained) - plain).abs().amax(1) > 1e-3).all()
    train(engine, CASES["mixed"])  # adapters train again after the reference pass
    assert (
        all(values["step"] == 1 for values in optimiser_state(engine).values()) and len(optimiser_state(engine)) == 84
    )
