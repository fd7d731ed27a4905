"""Rows that an update leaves out: the gradient of the others is that of all."""

from __future__ import annotations

import pytest
import torch

from tests.trainer.test_loss import UNEQUAL, Batch, actor
from tests.trainer.test_recipes import composed
from verl_ext.trainer.resting import may_rest, resting, weights_without


def jagged(rows):
    return torch.nested.as_nested_tensor(rows, layout=torch.jagged)


def tags_of(batch, adapters=None):
    padding = [not mask.any() for mask in batch.mask]
    adapters = adapters or [None] * len(padding)
    return [{"adapter": adapter, "is_padding": bool(one)} for adapter, one in zip(adapters, padding, strict=True)]


def rests_of(batch, multiple, adapters=None):
    advantages = [a * torch.ones(length).double() for a, length in zip(batch.advantage, batch.length, strict=True)]
    return resting(tags_of(batch, adapters), jagged(batch.mask), jagged(advantages), multiple)


@pytest.mark.parametrize("mode", ["seq-mean-token-mean", "seq-mean-token-sum", "token-mean", "token-sum"])
@pytest.mark.parametrize(("padding", "multiple", "kept"), [(0, 1, 5), (2, 1, 5), (2, 7, 7)])
def test_value_and_gradient_are_those_of_all_rows(mode, padding, multiple, kept):
    batch = Batch(UNEQUAL).pad(padding)
    batch.advantage[3:10] = [0.0] * 7
    rests = rests_of(batch, multiple)
    left = (~rests).nonzero()[:, 0].tolist()
    assert len(left) == kept and {0, 1, 2, 10, 11} <= set(left)
    config = actor(use_kl_loss=False, loss_agg_mode=mode)
    value, gradient, _ = batch.loss(config)
    batch.weight = weights_without(rests, batch.weight, jagged(batch.mask), mode)
    assert not batch.weight[rests].any()
    fewer, its, _ = batch.loss(config, rows=left, global_batch=len(left))
    assert fewer == pytest.approx(value, rel=1e-12)
    lengths = [prompt + length for prompt, length in zip(batch.prompt, batch.length, strict=True)]
    owner = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    torch.testing.assert_close(its, gradient[~rests[owner]], rtol=1e-12, atol=0)
    assert not gradient[rests[owner]].any()


def test_an_adapter_keeps_a_row_and_an_update_without_any_advantage_too():
    batch = Batch([0, 0, 1, 1, 2, 2])
    batch.advantage = [1.0, 0.0, 0.0, 0.0, 0.0, 1.0]
    assert rests_of(batch, 1, [0, 0, 1, 1, 2, 2]).tolist() == [False, True, False, True, True, False]
    batch.mask[2] = torch.zeros_like(batch.mask[2])
    kept = (~rests_of(batch, 1, [0, 0, 1, 1, 2, 2])).tolist()
    assert kept == [True, False, False, True, False, True], "a row without a token that trains gives an adapter no step"
    batch.advantage = [0.0] * 6
    assert (~rests_of(batch, 2)).sum() == 2


@pytest.mark.parametrize(
    ("override", "possible"),
    [
        ("actor.use_kl_loss=false", True),
        ("actor.use_kl_loss=true", False),
        ("actor.entropy_coeff=0.01", False),
        ("actor.policy_loss.loss_mode=kl_cov", False),
        ("actor.loss_agg_mode=seq-mean-token-sum-norm", False),
        ("actor.loss_agg_mode=token-sum", True),
        ("actor.ppo_mini_batch_size=8", False),
        ("actor.use_dynamic_bsz=false", False),
    ],
)
def test_rows_rest_where_only_advantages_give_a_gradient(override, possible):
    actor_of = "actor_rollout_ref."
    sizes = [
        "data.train_batch_size=16",
        f"{actor_of}actor.ppo_mini_batch_size=16",
        f"{actor_of}actor.use_kl_loss=false",
    ]
    config = composed("+recipe=mhgpo_tiny", *sizes, f"{actor_of}{override}")
    assert may_rest(config) is possible
