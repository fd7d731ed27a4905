"""The row, as a contract: the gradient that reaches the policy against the papers' objectives, written naively.

One check samples random systems (calls, streams with observations, decisions, helpers, branches that only some
trajectories take), makes rows of them, pads, shuffles and cuts them as a run does, and takes the gradient of our loss
by the log-probability of every sampled token. The reference knows no rows: it goes from calls to the objective in plain
Python numbers (float64).

    python -m tests.trainer.contract 200      # as many checks of each estimator; prints what was compared
"""

from __future__ import annotations

import math
import random
import sys
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from omegaconf import OmegaConf
from tensordict import TensorDict
from verl import DataProto
from verl.trainer.ppo.v1.trainer_base import compute_advantage_for_multi_trajectories
from verl.utils import tensordict_utils as tu
from verl.workers.config import ActorConfig

from tests.helpers import FakeLLM, Script, forest_of, run, speaker
from tests.trainer.naive_objectives import ALONE, BETA, CLIP, DUAL_CLIP, GAMMA, LAM, reference, token_noise
from tests.trainer.naive_sampling import DISCOUNT, EFFICIENCY, PRICE, STEPS, UNIT_TOKENS, Question
from verl_ext.algorithms import credit_rules, make_algorithm
from verl_ext.mas import Agent
from verl_ext.mas.credit import assign_credit
from verl_ext.mas.types import Call, CallFailed, Generation
from verl_ext.sampling import make_strategy
from verl_ext.trainer.advantage import batch_of, register_estimators
from verl_ext.trainer.batch import rows_of
from verl_ext.trainer.loss import WEIGHT, weighted_ppo_loss
from verl_ext.trainer.rollout.forest_to_rows import training_rows
from verl_ext.trainer.row import pack, padding_row, unpack
from verl_ext.trainer.row_selection import weights_of

# (estimator, strategy, mas.loss.agent_weights, loss_agg_mode): what check_algorithm allows and the recipes use.
CASES = (
    *(("mhgpo", strategy, "batch", "seq-mean-token-mean") for strategy in ("fof", "is", "rr", "nmc")),
    ("mhgpo", "fof", "question", "seq-mean-token-mean"),
    ("joyagents", "nmc", "none", "seq-mean-token-mean"),
    ("puppeteer", "fof", "trajectory", "seq-mean-token-sum"),
    ("toolpo", "fof", "trajectory", "seq-mean-token-sum"),
    ("grpo", "fof", "none", "seq-mean-token-mean"),
    ("gae", "fof", "none", "token-mean"),
    ("reinforce_plus_plus", "fof", "none", "token-mean"),
    *((estimator, "fof", "none", "token-mean") for estimator in ALONE),
)


# --- random systems ---------------------------------------------------------------------------------------------------


def system(shape: random.Random, alone: bool) -> Script:
    """A workflow whose path depends on what its agents say. `paths` holds the calls of each of its runs, in order."""
    rounds, observed = shape.randint(1, 2), "[" + "o" * shape.randint(0, 4) + "]"

    async def work(task, ctx):
        said = ""
        path: list[Call] = []
        made.paths.append(path)

        async def note(call):
            try:
                return await call
            finally:
                path.extend([ctx.last] if ctx.last not in path else [])

        for _ in range(rounds):
            for agent in ["solo"] if alone else ["boss", "writer"]:
                said += await note(ctx.call(agent, said=said))
            while len(said) % 3 == 0 and len(said) < 24:
                said += await note(ctx.resume(ctx.last, observed))
            said += "" if alone else await note(ctx.call("helper", said=said))
        with suppress(CallFailed):
            said += await note(ctx.call("critic", said=said)) if len(said) % 2 and not alone else ""
        return said

    agents = {
        "boss": Agent(
            lambda said: [{"role": "user", "content": f"b{said}"}], choices=lambda said: ["plan", "plant", "go"]
        ),
        "writer": speaker("writer", penalty=lambda text, *_, **__: (-0.1 * (len(text) % 2), {}), actions=_marks),
        "helper": speaker("helper", trained=False),
        "critic": speaker("critic"),
    }
    made = Script(work, {"solo": agents["writer"]} if alone else agents)
    made.paths = []
    made.reward = lambda task, result: (
        sum(map(ord, result)) % 7 / 3,
        {"correct_calls": float(len(result) % 3), "folds": float(len(result) % 4 == 0)},
    )
    return made


def _marks(text: str) -> list[tuple[int, int]]:
    return [(i, i + 1) for i, letter in enumerate(text) if letter == "e"]


def sampled(case, seed: int):
    """Four questions, sampled and credited: [(forest, samples, what the reference goes by)]. Some calls fail."""
    shape, noise = random.Random(seed), random.Random(seed + 1)
    rules = {"joyagents": {"efficiency": EFFICIENCY}}
    rules["puppeteer"] = {"returns": {"price": PRICE, "discount": DISCOUNT, "steps": STEPS, "unit": UNIT_TOKENS}}
    faults, limits = shape.choice([0.0, 0.1]), {"max_calls": shape.choice([3, 7, 99])}
    failures = shape.choice([{}, {"call_limit": -0.5}, {"call_limit": -0.5, "truncated": 0.2}])

    def answer(request):
        if noise.random() < faults:
            return RuntimeError("a broken engine")
        allowed = request.sampling.get("allowed_token_ids")
        tokens = [noise.choice(allowed)] if allowed else [noise.choice(b"abcde") for _ in range(noise.randint(1, 4))]
        ended = "length" if len(tokens) == 4 and noise.random() < 0.3 else "completed"
        return Generation(tokens, [-2 * noise.random() for _ in tokens], ended, min_version=3, max_version=4)

    async def scenario():
        found, workflow = [], system(shape, case[0] in ALONE)
        for number in range(4):
            given = {"seed": seed + number, "sampling": {"max_tokens": 9}, "limits": limits}
            forest = forest_of(workflow, FakeLLM(answer), failure_rewards=failures, **given)
            samples = await make_strategy(case[1], 3, workflow.trained_agents).sample(forest)
            forest.trajectories.sort(key=lambda trajectory: trajectory.stream.path)
            own = "own" if case[0] == "joyagents" else "mean"
            assign_credit(forest.trajectories, own, rules=credit_rules(rules.get(case[0], {})))
            walked = {frozenset(path): path for path in workflow.paths}
            found.append((forest, samples, Question(number, forest, walked)))
        return found

    return run(scenario())


# --- what a run does --------------------------------------------------------------------------------------------------


def gradient(questions, case, seed: int, ranks: int, parts: int, micro: int):
    """{token: (gradient of the loss by its log-probability, its optimiser step)}, rows that train, all rows."""
    estimator, _, weights, mode = case
    order = random.Random(seed)
    rows = [
        row
        for number, (forest, samples, _) in enumerate(questions)
        for row in training_rows(forest, samples, {"uid": f"u{number}", "index": number, "global_steps": 5})
    ]
    algorithm = make_algorithm(estimator, {})
    kept = algorithm.select(rows_of([row.tag for row in rows]))
    rows = rows if kept is None else [row for row, keep in zip(rows, kept.tolist(), strict=True) if keep]
    live = len(rows)
    if not rows:
        return {}, 0, 0
    rows += [padding_row("pad", number, 0, set(rows[0].fields)) for number in range(-len(rows) % (parts * ranks))]
    order.shuffle(rows)
    tags = unpack([pack(row.tag) for row in rows])

    def column(name, kind=torch.float64):
        return torch.nested.as_nested_tensor([row.fields[name].to(kind) for row in rows], layout=torch.jagged)

    fields = {name: column(name, torch.int64) for name in ("input_ids", "prompts", "responses", "response_mask")}
    fields |= {"rm_scores": column("rm_scores"), "old_log_probs": column("rollout_log_probs")}
    fields |= {"ref_log_prob": _shifted(rows, "ref"), "values": _shifted(rows, "value")}
    data = DataProto(batch=TensorDict(fields, batch_size=len(rows)).to_padded_tensor())
    data.batch["token_level_rewards"] = data.batch["rm_scores"]
    data.non_tensor_batch["uid"] = np.array([row.uid for row in rows], dtype=object)
    register_estimators()
    with batch_of(tags, algorithm):
        data = compute_advantage_for_multi_trajectories(
            *(data, [row.key for row in rows], estimator, GAMMA, LAM), config=OmegaConf.create({"gamma": GAMMA})
        )
    advantages = [data.batch["advantages"][number, : len(row.response)].double() for number, row in enumerate(rows)]
    fields["advantages"] = torch.nested.as_nested_tensor(advantages, layout=torch.jagged)
    fields[WEIGHT] = weights_of(tags, weights, mode)
    config = ActorConfig(
        strategy="fsdp", rollout_n=1, use_dynamic_bsz=True, clip_ratio=CLIP, clip_ratio_low=CLIP, clip_ratio_high=CLIP,
        clip_ratio_c=DUAL_CLIP,
        use_kl_loss=True, kl_loss_coef=BETA, kl_loss_type="low_var_kl", loss_agg_mode=mode,
    )  # fmt: skip
    found: dict[Any, tuple[float, int]] = {}
    shares = np.array_split(order.sample(range(len(rows)), len(rows)), ranks * parts)
    for step in range(parts):  # verl draws the rows of an optimiser step, as many from each rank
        shown = [int(number) for share in shares[step::parts] for number in share]
        tokens = sum(sum(rows[number].mask) for number in shown)
        for share in shares[step::parts]:
            for start in range(0, len(share), micro):
                numbers = [int(number) for number in share[start : start + micro]]
                values = _micro_batch(config, rows, fields, numbers, len(shown), tokens, ranks)
                found |= {key: (value / ranks, step) for key, value in values.items()}  # FSDP averages the ranks'
    return found, live, len(rows)


def _micro_batch(config, rows, fields, numbers, total, tokens, ranks):
    columns = {}
    for name, values in fields.items():
        parts = values.unbind()
        picked = [parts[number] for number in numbers]
        columns[name] = (
            torch.stack(picked) if name == WEIGHT else torch.nested.as_nested_tensor(picked, layout=torch.jagged)
        )
    data = TensorDict(
        {key: value for key, value in columns.items() if key not in ("rm_scores", "values")}, batch_size=len(numbers)
    )
    tu.assign_non_tensor(data, dp_size=ranks, batch_num_tokens=tokens, global_batch_size=total)
    new = [_new_log_probs(rows[number]) for number in numbers]
    leaf = torch.nested.as_nested_tensor(new, layout=torch.jagged).detach().requires_grad_(True)
    loss, _ = weighted_ppo_loss(config, {"log_probs": leaf}, data)
    loss.backward()
    found = {}
    for number, grads in zip(numbers, leaf.grad.unbind(), strict=True):
        row, own = rows[number], grads[len(rows[number].prompt) - 1 : -1].tolist()
        for place, value in enumerate(own):
            found[row.uid, row.trajectory, _call_of(row, place)] = value
    return found


def _call_of(row, place: int):
    """(position of the call in its trajectory, token), or (None, …) for an observation."""
    for position, start, stop in row.calls:
        if start <= place < stop:
            return position, place - start
    return None, (row.position, place)


def _shifted(rows, kind: str):
    """Reference log-probabilities or values of the response tokens of all rows."""
    values = []
    for row in rows:
        noise = [token_noise(kind, row.uid, row.trajectory, _call_of(row, place)) for place in range(len(row.response))]
        old = row.log_probs if kind == "ref" else [0.0] * len(noise)
        values.append(
            torch.tensor(old, dtype=torch.float64).float().double() + torch.tensor(noise, dtype=torch.float64)
        )
    return torch.nested.as_nested_tensor(values, layout=torch.jagged)


def _new_log_probs(row) -> torch.Tensor:
    """As the model gives them: position t predicts token t + 1."""
    own = _shifted([row], "new").unbind()[0] + _old(row)
    return torch.cat([torch.full((len(row.prompt) - 1,), -9.0).double(), own, torch.tensor([-9.0]).double()])


def _old(row) -> torch.Tensor:
    return torch.tensor(row.log_probs, dtype=torch.float32).double()


# --- checks -----------------------------------------------------------------------------------------------------------


def check(case, seed: int) -> dict[str, float]:
    """Compare one random batch; what was compared, and the largest difference."""
    questions, draw = sampled(case, seed), random.Random(seed)
    ranks, parts, micro = draw.choice([1, 2]), draw.choice([1, 2, 3]), draw.choice([1, 2, 5, 1000])
    ours, live, total = gradient(questions, case, seed, ranks, parts, micro)
    theirs = reference([one for *_, one in questions], case, {where: step for where, (_, step) in ours.items()})
    assert not set(theirs) - set(ours), "a token that trains by the equations is in no row"
    differences = [abs(value - theirs.get(where, 0.0)) for where, (value, _) in ours.items()]
    failed = sum(trajectory.error != "" for forest, *_ in questions for trajectory in forest.trajectories)
    return {
        "rows": live, "padding": total - live, "tokens": len(theirs), "failed": failed,
        "worst": math.inf if any(map(math.isnan, differences)) else max(differences, default=0.0),
    }  # fmt: skip


def main(count: int) -> None:
    for case in CASES:
        found = [check(case, seed) for seed in range(count)]
        total = {name: sum(one[name] for one in found) for name in found[0] if name != "worst"}
        print(f"{case[0]:20} {case[1]:4} {case[2]:11} {total}  largest difference {max(f['worst'] for f in found):.1e}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20)
