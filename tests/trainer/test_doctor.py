"""What is asserted of every step: a token changed on its way, weights that do not sum, and what is logged."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from tensordict import TensorDict

from verl_ext.engine.lora.adapters import AGENT_ID
from verl_ext.trainer.checksums import of_assignment, of_batch
from verl_ext.trainer.doctor import (
    check_adapters,
    check_assigned,
    check_tokens,
    examine,
    kl_of_update,
    observed_columns,
)
from verl_ext.trainer.row import Row, padding_row


def jagged(values, kind=None):
    return torch.nested.as_nested_tensor([torch.tensor(v, dtype=kind) for v in values], layout=torch.jagged)


def rows():
    made = [
        Row("u", [5, 6], [7, 8, 9], [1, 0, 1], [-1.0, 0.0, -2.0], 1.0, "a", "g", "ok", versions=(3, 3), adapter=0),
        Row("v", [5], [8], [1], [-0.5], 0.0, "b", "h", "ok", versions=(1, 3), adapter=1),
    ]
    return [*made, padding_row("pad", 0, 0, set(made[0].fields))]


def received(rows):
    """The micro-batch as a training process has it."""
    columns = {name: jagged([row.fields[name].tolist() for row in rows]) for name in ("prompts", "input_ids")}
    columns["response_mask"] = jagged([row.mask for row in rows])
    columns["advantages"] = jagged([[0.5 + row.reward] * len(row.mask) for row in rows])
    columns[AGENT_ID] = torch.tensor([row.adapter for row in rows])
    return TensorDict(columns, batch_size=len(rows))


def checksum(data):
    return of_batch(data, torch.ones(len(data)))[0]


def test_what_trains_is_what_was_sampled_in_any_order_and_split():
    made = rows()
    tags = [row.tag for row in made[:2]]
    check_tokens(tags, checksum(received(made)), 1)
    check_tokens(tags, checksum(received(made[:1])) + checksum(received(made[2:] + made[1:2])), 1)


@pytest.mark.parametrize("change", ["token", "prompt", "mask", "swapped", "mixed", "lost", "doubled"])
def test_a_change_between_rollout_and_update_ends_the_run(change):
    made = rows()
    tags = [row.tag for row in made[:2]]
    seen = received(made)
    tokens = seen["input_ids"].values()  # 5 6 | 7 8 9, then 5 | 8, then the padding row
    if change == "token":
        tokens[2] += 1
    elif change == "prompt":
        tokens[1] += 1
    elif change == "mask":
        seen["response_mask"].values()[1] = 1
    elif change == "swapped":
        tokens[[2, 4]] = tokens[[4, 2]]
    elif change == "mixed":  # between two rows, in the same place
        tokens[[1, 6]] = tokens[[6, 1]]
    else:
        seen = received(made[:1] if change == "lost" else made + made[:1])
    with pytest.raises(RuntimeError, match="step 7: the tokens of the update are not the tokens that were sampled"):
        check_tokens(tags, checksum(seen), 7)


@pytest.mark.parametrize("change", [None, "weights", "weight", "advantages", "advantage", "adapters", "place", "notes"])
def test_a_row_with_the_weight_the_advantage_or_the_adapter_of_another_one_ends_the_run(change):
    """Two rows whose weights were swapped have the same sum of weights."""
    made = rows()
    seen, weights = received(made), torch.tensor([2.0, 1.0, 0.0])
    numbers = torch.tensor([row.adapter for row in made])
    known = torch.tensor([row.tag["checksum"] for row in made])
    assigned = int(of_assignment(known, weights, seen["advantages"].clone(), seen["response_mask"], numbers).sum())
    values = seen["advantages"].values()  # 1.5 1.5 1.5 | 0.5 | padding
    if change == "weights":
        weights[[0, 1]] = weights[[1, 0]]
    elif change == "weight":
        weights[0] = torch.nextafter(weights[0], torch.tensor(9.0))
    elif change == "advantages":
        values[[0, 2, 3]] = values[[3, 3, 0]]
    elif change == "advantage":
        values[2] *= -1
    elif change == "adapters":
        seen[AGENT_ID] = numbers[[1, 0, 2]]
    elif change == "place":
        seen = received(made[1:] + made[:1])  # in another order: with its weight, it is the same row
        weights = weights[[1, 2, 0]]
    elif change == "notes":  # an observation does not train
        values[1] = 7.0
    found = of_batch(seen, weights)[1]
    if change in (None, "place", "notes"):
        check_assigned(assigned, found, 7)
    else:
        with pytest.raises(RuntimeError, match="step 7: a row did not train with the weight, the advantages and"):
            check_assigned(assigned, found, 7)


@pytest.mark.parametrize(
    ("adapters", "sampled_by", "number", "words"),
    [
        (None, (), None, None),
        (None, ("a",), None, "sampled by ['a'], would train []"),
        (["a", "b"], ("a",), 0, None),
        (["a", "b"], ("b",), 0, "sampled by ['b'], would train ['a']"),
        (["a", "b"], ("a", "b"), 0, "sampled by ['a', 'b'], would train ['a']"),
        (["a", "b"], ("",), 0, "sampled by [''], would train ['a']"),
        (["a", "b"], ("b",), 1, "sampled by ['b'], would train ['b']"),
    ],
)
def test_a_row_that_was_sampled_by_another_adapter_than_its_agents_ends_the_run(adapters, sampled_by, number, words):
    tag = dataclasses.replace(rows()[0], sampled_by=sampled_by, adapter=number).tag
    if words is None:
        assert check_adapters([tag], adapters, 7) == ({} if adapters is None else {"doctor/unknown_adapter": 0.0})
        return
    with pytest.raises(RuntimeError, match="step 7: 1 rows were not sampled by the adapter of their agent") as error:
        check_adapters([tag], adapters, 7)
    assert f"'a' (trajectory u_0), {words}" in str(error.value)


def test_what_verl_reads_and_writes_is_observed(monkeypatch):
    from verl.trainer.ppo.v1 import trainer_base

    monkeypatch.setattr("transfer_queue.kv_batch_get", lambda **_: TensorDict({"a": torch.ones(1), "b": torch.ones(1)}))
    monkeypatch.setattr("transfer_queue.kv_batch_put", lambda **_: "stored")
    with observed_columns() as columns:
        trainer_base.tq.kv_batch_get(keys=["k"])
        assert trainer_base.tq.kv_batch_put(keys=["k"], fields=TensorDict({"b": torch.zeros(1)})) == "stored"
        assert trainer_base.tq.KVBatchMeta is trainer_base.KVBatchMeta
    assert {name: value.tolist() for name, value in columns.items()} == {"a": [1.0], "b": [0.0]}
    assert trainer_base.tq.__name__ == "transfer_queue"


def batch(**columns):
    """Two rows and a padding row."""
    given = {"response_mask": [[1, 0, 1], [1], [0]], "rollout_log_probs": [[-1.0, 0.0, -2.0], [-0.5], [0.0]]}
    given |= {"old_log_probs": [[-1.0, -9.0, -2.0], [-0.3], [-4.0]], "advantages": [[0.5, 0.0, 0.5], [0.0], [0.0]]}
    return {name: jagged(value) for name, value in (given | columns).items()}


def test_what_is_logged():
    tags = [row.tag for row in rows()]
    found = examine(tags, batch(), torch.tensor([2.0, 1.0, 0.0]).double(), 3, step=4, bypass=False)
    assert found == {
        "doctor/mask_coverage": 3 / 4,
        "doctor/without_trained_tokens": 0.0,
        "doctor/without_advantage": 0.5,
        "doctor/unknown_version": 0.0,
        "doctor/version_lag": 1.0,
        "doctor/version_lag_max": 2,
        "doctor/versions": 2.0,
        "doctor/versions_max": 3,
        "doctor/kl_numerical": 0.0,
        "doctor/log_prob_difference_numerical": 0.0,
        "doctor/kl_stale": pytest.approx(math.exp(0.2) - 0.2 - 1, rel=1e-6),
        "doctor/log_prob_difference_stale": pytest.approx(0.2, rel=1e-6),
        "doctor/weight/a": 2 / 3,
        "doctor/weight/b": 1 / 3,
        "update/weight_max": 2.0,
        "update/weight_min": 1.0,
    }


def test_weights_that_do_not_sum_to_the_rows_end_the_run():
    tags = [row.tag for row in rows()]
    with pytest.raises(RuntimeError, match="weights of the rows in the loss sum to 2.5, but .* they sum to 3"):
        examine(tags, batch(), torch.tensor([1.5, 1.0, 0.0]).double(), 3, step=4, bypass=False)


def test_without_old_log_probabilities_the_update_shows_the_divergence():
    tags, weights = [row.tag for row in rows()], torch.tensor([1.0, 1.0, 0.0]).double()
    assert not any("kl" in name for name in examine(tags, batch(), weights, 2, step=4, bypass=True))
    once = {"update/optimiser_steps": 1, "actor/ppo_kl": 0.25}
    assert kl_of_update(once, 0.0) == {"doctor/kl_numerical": 0.25}
    assert kl_of_update(once, 2.0) == {"doctor/kl_stale": 0.25}
    assert kl_of_update(once | {"update/optimiser_steps": 2}, 0.0) == {}
