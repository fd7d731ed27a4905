"""What is asserted of every step: a token changed on its way, weights that do not sum, and what is logged."""

from __future__ import annotations

import math

import pytest
import torch
from tensordict import TensorDict

from verl_ext.trainer.doctor import check_tokens, examine, kl_of_update
from verl_ext.trainer.loss import checksum
from verl_ext.trainer.row import Row, padding_row


def jagged(values, kind=None):
    return torch.nested.as_nested_tensor([torch.tensor(v, dtype=kind) for v in values], layout=torch.jagged)


def rows():
    made = [
        Row("u", [5, 6], [7, 8, 9], [1, 0, 1], [-1.0, 0.0, -2.0], 1.0, "a", "g", "ok", versions=(3, 3)),
        Row("v", [5], [8], [1], [-0.5], 0.0, "b", "h", "ok", versions=(1, 3)),
    ]
    return [*made, padding_row("pad", 0, 0, set(made[0].fields))]


def received(rows):
    """The micro-batch as a training process has it."""
    columns = {name: jagged([row.fields[name].tolist() for row in rows]) for name in ("prompts", "input_ids")}
    columns["response_mask"] = jagged([row.mask for row in rows])
    return TensorDict(columns, batch_size=len(rows))


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


def batch(**columns):
    given = {"response_mask": [[1, 0, 1], [1]], "rollout_log_probs": [[-1.0, 0.0, -2.0], [-0.5]]}
    given |= {"old_log_probs": [[-1.0, -9.0, -2.0], [-0.3]], "advantages": [[0.5, 0.0, 0.5], [0.0]]} | columns
    return TensorDict({name: jagged(value) for name, value in given.items()}, batch_size=2)


def test_what_is_logged():
    tags = [row.tag for row in rows()[:2]]
    found = examine(tags, batch(), torch.tensor([2.0, 1.0]).double(), 3, step=4, bypass=False)
    assert found == {
        "doctor/mask_coverage": 3 / 4,
        "doctor/without_trained_tokens": 0.0,
        "doctor/without_advantage": 0.5,
        "doctor/unknown_version": 0.0,
        "doctor/version_lag": 1.0,
        "doctor/version_lag_max": 2,
        "doctor/kl_numerical": 0.0,
        "doctor/log_prob_difference_numerical": 0.0,
        "doctor/kl_stale": pytest.approx(math.exp(0.2) - 0.2 - 1, rel=1e-6),
        "doctor/log_prob_difference_stale": pytest.approx(0.2, rel=1e-6),
        "doctor/weight/a": 2 / 3,
        "doctor/weight/b": 1 / 3,
    }


def test_weights_that_do_not_sum_to_the_rows_end_the_run():
    tags = [row.tag for row in rows()[:2]]
    with pytest.raises(RuntimeError, match="weights of the rows in the loss sum to 2.5, but .* they sum to 3"):
        examine(tags, batch(), torch.tensor([1.5, 1.0]).double(), 3, step=4, bypass=False)


def test_without_old_log_probabilities_the_update_shows_the_divergence():
    tags = [row.tag for row in rows()[:2]]
    assert not any("kl" in name for name in examine(tags, batch(), torch.ones(2).double(), 2, step=4, bypass=True))
    once = {"update/optimiser_steps": 1, "actor/ppo_kl": 0.25}
    assert kl_of_update(once, 0.0) == {"doctor/kl_numerical": 0.25}
    assert kl_of_update(once, 2.0) == {"doctor/kl_stale": 0.25}
    assert kl_of_update(once | {"update/optimiser_steps": 2}, 0.0) == {}
