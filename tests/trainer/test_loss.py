"""The actor's loss against a direct evaluation of Eq. 6, through verl's own `ppo_loss`."""

import math

import pytest
import torch
from tensordict import TensorDict
from verl.utils import tensordict_utils as tu
from verl.workers.config import ActorConfig
from verl.workers.utils.losses import ppo_loss

from verl_ext.algorithms.mhgpo import agent_weights
from verl_ext.trainer.loss import ASSIGNED, CHECKSUM, WEIGHT, weighted_ppo_loss
from verl_ext.trainer.row_selection import weights_of

CLIP, BETA = 0.2, 0.37


def actor(**options):
    defaults = {"clip_ratio": CLIP, "clip_ratio_low": CLIP, "clip_ratio_high": CLIP, "use_kl_loss": True}
    defaults |= {"kl_loss_coef": BETA, "kl_loss_type": "low_var_kl", "loss_agg_mode": "seq-mean-token-mean"}
    fixed = {"strategy": "fsdp", "rollout_n": 1, "use_dynamic_bsz": True}
    return ActorConfig(**fixed, **(defaults | options))


class Batch:
    """Random calls in double precision: prompts and responses of unequal lengths, flat and per row."""

    def __init__(self, agents, seed=0, scale=0.3):
        torch.manual_seed(seed)
        n = len(agents)
        self.agents = torch.tensor(agents)
        self.prompt = torch.randint(1, 4, (n,)).tolist()
        self.length = torch.randint(1, 6, (n,)).tolist()
        self.mask = [torch.ones(length, dtype=torch.int64) for length in self.length]
        self.advantage = torch.randn(n, dtype=torch.float64).tolist()
        self.old = [-torch.rand(length, dtype=torch.float64) for length in self.length]
        self.ref = [old + scale * torch.randn_like(old) for old in self.old]
        # Log-probabilities of whole sequences as the model gives them: position t predicts token t + 1.
        self.new = [
            torch.cat([torch.full((p - 1,), -9.0).double(), old + scale * torch.randn_like(old), torch.tensor([-9.0])])
            for p, old in zip(self.prompt, self.old, strict=True)
        ]
        self.weight = agent_weights(self.agents)

    def pad(self, rows):
        """`rows` more rows of zero mask, as verl adds them; N counts them (row_selection.weights_of)."""
        n = len(self.length)
        for _ in range(rows):
            for name in ("prompt", "length", "mask", "advantage", "old", "ref", "new"):
                getattr(self, name).append(getattr(self, name)[0])
            self.mask[-1] = torch.zeros_like(self.mask[-1])
        self.weight = torch.cat([self.weight * (n + rows) / n, torch.zeros(rows)])
        return self

    def loss(self, config, rows=None, function=weighted_ppo_loss, global_batch=True):
        """(loss, gradient by the flat log-probabilities) of one micro-batch."""
        rows = list(range(len(self.length))) if rows is None else rows

        def jagged(tensors):
            return torch.nested.as_nested_tensor([tensors[i] for i in rows], layout=torch.jagged)

        ones = [torch.ones(length, dtype=torch.int64) for length in self.length]
        prompts = [torch.ones(p, dtype=torch.int64) for p in self.prompt]
        spread = [a * torch.ones(length).double() for a, length in zip(self.advantage, self.length, strict=True)]
        ids = [torch.ones(p + length, dtype=torch.int64) for p, length in zip(self.prompt, self.length, strict=True)]
        fields = {
            "input_ids": jagged(ids),
            "prompts": jagged(prompts),
            "responses": jagged(ones),
            "response_mask": jagged(self.mask),
        }
        fields |= {"old_log_probs": jagged(self.old), "ref_log_prob": jagged(self.ref), "advantages": jagged(spread)}
        data = TensorDict(fields | {WEIGHT: self.weight[rows]}, batch_size=len(rows))
        tu.assign_non_tensor(data, dp_size=1, batch_num_tokens=None)
        tu.assign_non_tensor(data, global_batch_size=len(self.length) if global_batch is True else global_batch)
        new = jagged(self.new).detach().requires_grad_(True)
        value, metrics = function(config, {"log_probs": new}, data)
        value.backward()
        return value.item(), new.grad.values(), metrics

    def equation(self, beta=BETA):
        """Eq. 6 term by term: (loss, gradient by the flat log-probabilities)."""
        new = [row.detach().requires_grad_(True) for row in self.new]
        objective = 0.0
        agents = self.agents.unique().tolist()
        for k in agents:
            rollouts = [i for i in range(len(self.agents)) if self.agents[i] == k]
            for i in rollouts:
                response = new[i][self.prompt[i] - 1 : -1]
                ratio = (response - self.old[i]).exp()
                clipped = ratio.clamp(1 - CLIP, 1 + CLIP)
                surrogate = torch.minimum(ratio * self.advantage[i], clipped * self.advantage[i])
                kl = (self.ref[i] - response).exp() - (self.ref[i] - response) - 1
                term = ((surrogate - beta * kl) * self.mask[i]).sum() / self.mask[i].sum()
                objective = objective + term / (len(rollouts) * len(agents))
        (-objective).backward()
        grads = [row.grad if row.grad is not None else torch.zeros_like(row) for row in new]
        return -objective.item(), torch.cat(grads)


UNEQUAL = [0, 0, 0, 0, 1, 2, 2, 0, 2, 3, 3, 0]


@pytest.mark.parametrize("agents", [UNEQUAL, [0, 1, 2], [5], [0, 0, 0, 1]])
@pytest.mark.parametrize("use_kl", [True, False])
def test_value_and_gradient_are_those_of_equation_6(agents, use_kl):
    batch = Batch(agents)
    value, gradient, _ = batch.loss(actor(use_kl_loss=use_kl))
    expected, expected_gradient = batch.equation(BETA if use_kl else 0.0)
    assert value == pytest.approx(expected, rel=1e-6, abs=1e-9)
    assert torch.allclose(gradient, expected_gradient, rtol=1e-6, atol=1e-9)
    assert gradient.abs().sum() > 0


def test_verls_bound_of_the_kl_estimator_stops_its_gradient_and_k3_plus_has_none():
    """docs/mhgpo.md: where log(π_ref/π) exceeds 2.6, low_var_kl trains nothing; k3+ has the gradient of the KL."""
    batch = Batch([0])
    batch.advantage = [0.0]
    batch.ref = [old + 5.0 for old in batch.old]
    batch.new = [torch.cat([torch.full((batch.prompt[0] - 1,), -9.0).double(), batch.old[0], torch.tensor([-9.0])])]
    own = slice(batch.prompt[0] - 1, -1)
    _, bounded, _ = batch.loss(actor())
    _, free, _ = batch.loss(actor(kl_loss_type="k3+"))
    assert bounded[own].abs().max() == 0
    assert free[own].tolist() == pytest.approx([-5.0 * BETA / batch.length[0]] * batch.length[0])


def test_hand_numbers():
    """Agent 0 has two calls, agent 1 one; ratios 1.1 and 2 (clipped to 1.2), π = π_ref: no KL."""
    batch = Batch([0, 0, 1])
    batch.prompt, batch.length = [1, 1, 1], [1, 2, 1]
    batch.mask = [torch.ones(n, dtype=torch.int64) for n in batch.length]
    batch.advantage = [1.0, -1.0, 2.0]
    batch.old = [torch.zeros(n).double() for n in batch.length]
    moved = [[math.log(1.1)], [0.0, math.log(1.1)], [math.log(2.0)]]
    batch.ref = [torch.tensor(row).double() for row in moved]
    batch.new = [torch.tensor([*row, -9.0]).double() for row in moved]
    # 1/2 · [1/2 · (1.1 + (−1 − 1.1)/2) + 1.2 · 2]
    expected = -0.5 * (0.5 * (1.1 - 1.05) + 2.4)
    assert batch.loss(actor())[0] == pytest.approx(expected)


def test_a_sum_over_tokens_has_the_gradient_of_joyagents_eq_4_where_the_policy_is_the_old_one():
    """Eq. 4 has the ratio of whole outputs. While it is 1, the sum of the tokens' ratios has the same gradient; the
    default, a mean over each output's tokens (GRPO as its first paper and TRL have it), is that divided by the length.
    """
    batch = Batch([0] * 5, scale=0.0)
    new = [row.detach().requires_grad_(True) for row in batch.new]
    objective = 0.0
    for i, row in enumerate(new):
        ratio = (row[batch.prompt[i] - 1 : -1].sum() - batch.old[i].sum()).exp()
        clipped = ratio.clamp(1 - CLIP, 1 + CLIP)
        objective = objective + torch.minimum(ratio * batch.advantage[i], clipped * batch.advantage[i]) / len(new)
    (-objective).backward()
    expected = torch.cat([row.grad for row in new])
    summed, mean = (
        batch.loss(actor(use_kl_loss=False, loss_agg_mode=mode))[1]
        for mode in ("seq-mean-token-sum", "seq-mean-token-mean")
    )
    assert torch.allclose(summed, expected, rtol=1e-6, atol=1e-12) and expected.abs().sum() > 0
    length = torch.cat([torch.full_like(row, n) for row, n in zip(batch.new, batch.length, strict=True)])
    assert torch.allclose(mean * length, expected, rtol=1e-6, atol=1e-12) and len(set(batch.length)) > 1


def test_the_plain_mean_of_verl_is_not_equation_6_when_agents_differ():
    batch = Batch(UNEQUAL)
    assert abs(batch.loss(actor(), function=ppo_loss)[0] - batch.equation()[0]) > 1e-3


def test_equal_agents_leave_verls_loss_as_it_is():
    batch = Batch([0, 1, 2, 2, 1, 0])
    for config in (actor(), actor(use_kl_loss=False), actor(loss_agg_mode="token-mean")):
        ours, theirs = batch.loss(config), batch.loss(config, function=ppo_loss)
        assert ours[0] == pytest.approx(theirs[0], rel=1e-12)
        assert torch.allclose(ours[1], theirs[1], rtol=1e-12)
        assert set(ours[2]) - {CHECKSUM, ASSIGNED} == set(theirs[2])


@pytest.mark.parametrize("split", [[4, 8], [1] * 12, [11, 1]])
def test_micro_batches_sum_to_the_whole(split):
    batch, config = Batch(UNEQUAL), actor()
    parts, start = [], 0
    for size in split:
        parts.append(batch.loss(config, list(range(start, start + size))))
        start += size
    whole = batch.loss(config)
    assert sum(part[0] for part in parts) == pytest.approx(whole[0], rel=1e-12)
    assert torch.allclose(torch.cat([part[1] for part in parts]), whole[1], rtol=1e-12)
    kl = sum(part[2]["kl_loss"].aggregate() for part in parts)
    assert kl == pytest.approx(whole[2]["kl_loss"].aggregate(), rel=1e-12)


@pytest.mark.parametrize("rows", [1, 4])
def test_padding_rows_do_not_bias(rows):
    batch = Batch(UNEQUAL)
    expected, expected_gradient = batch.equation()
    value, gradient, _ = batch.pad(rows).loss(actor())
    assert value == pytest.approx(expected, rel=1e-6)
    tokens = len(expected_gradient)
    assert torch.allclose(gradient[:tokens], expected_gradient, rtol=1e-6, atol=1e-9)
    assert not gradient[tokens:].any()


def test_masked_tokens_have_no_gradient_by_position():
    batch = Batch([0, 1])
    batch.prompt, batch.length = [2, 1], [3, 2]
    batch.mask = [torch.tensor([1, 0, 1]), torch.tensor([0, 1])]
    batch.old = batch.ref = [torch.full((n,), -1.0).double() for n in batch.length]
    batch.new = [torch.full((p + n,), -1.05).double() for p, n in zip(batch.prompt, batch.length, strict=True)]
    _, gradient, _ = batch.loss(actor())
    # Position t predicts token t + 1: prompt of 2, response at positions 1..3; prompt of 1, response at 0..1.
    assert (gradient != 0).tolist() == [False, True, False, True, False] + [False, True, False]
    assert torch.allclose(gradient, batch.equation()[1], rtol=1e-6)


def test_the_weight_survives_verls_dual_clip():
    """Far ratios with negative advantages: verl bounds the loss at clip_ratio_c · |A|, homogeneous in A as well."""
    batch = Batch([0, 0, 0, 1], scale=3.0)
    batch.weight = torch.tensor([2.0] * 4).double()
    config = actor(use_kl_loss=False)
    assert batch.loss(config)[0] == pytest.approx(2 * batch.loss(config, function=ppo_loss)[0], rel=1e-12)


def test_entropy_is_weighted_like_the_rest():
    batch = Batch([0, 0, 0, 1])
    sizes = zip(batch.prompt, batch.length, batch.agents, strict=True)
    entropies = [torch.full((p + n,), float(k)).double() for p, n, k in sizes]

    def with_entropy(config, output, data):
        jagged = torch.nested.as_nested_tensor(entropies, layout=torch.jagged)
        return weighted_ppo_loss(config, output | {"entropy": jagged}, data)

    plain = batch.loss(actor())[0]
    # Agents weigh the same: mean entropy (0 + 1) / 2, though three of four rows have 0.
    assert plain - batch.loss(actor(entropy_coeff=0.1), function=with_entropy)[0] == pytest.approx(0.05)


@pytest.mark.parametrize(("mode", "weight"), [("seq-mean-token-mean", 4 / 3), ("token-mean", 1.0)])
def test_padding_is_compensated_only_where_verl_counts_it(mode, weight):
    """verl's seq-mean modes divide by all rows, padding included; token-mean divides by live tokens."""
    tags = [{"agent": "a"}, {"agent": "a"}, {"agent": "b"}, {"agent": "b", "is_padding": True}]
    assert weights_of(tags, "none", mode).tolist() == pytest.approx([weight] * 3 + [0])
