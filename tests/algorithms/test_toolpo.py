"""ToolPO: numbers by hand, a naive float64 reference, and what folding must not change."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from verl_ext.algorithms import TokenRows, ToolPO
from verl_ext.algorithms.toolpo import fold_preference, trajectory_weights


@dataclass
class Path:
    """A trajectory: rows of (tokens, action tokens), where a token is True if the policy generated it."""

    question: int
    success: float
    correct: float
    rows: list[tuple[list[bool], list[bool]]] = field(default_factory=lambda: [([True] * 2, [False, True])])

    @property
    def folds(self) -> int:
        return len(self.rows) - 1

    @property
    def length(self) -> int:
        return sum(len(tokens) for tokens, _ in self.rows)


def rows(paths: list[Path], padding: int = 0) -> TokenRows:
    flat = [(number, path, *row) for number, path in enumerate(paths) for row in path.rows]
    n, width = len(flat), padding + max(len(tokens) for _, _, tokens, _ in flat)
    mask, actions = torch.zeros(n, width, dtype=torch.int64), torch.zeros(n, width, dtype=torch.bool)
    for i, (_, _, tokens, acting) in enumerate(flat):
        mask[i, : len(tokens)] = torch.tensor(tokens).long()
        actions[i, : len(tokens)] = torch.tensor(acting)
    ids = torch.arange(n)
    success = torch.tensor([path.success for _, path, _, _ in flat], dtype=torch.float64)
    return TokenRows(
        reward=success,
        group=ids,
        agent=ids * 0,
        question=torch.tensor([path.question for _, path, _, _ in flat]),
        trajectory=torch.tensor([number for number, _, _, _ in flat]),
        decides=torch.zeros(n, dtype=torch.bool),
        outcome=success,
        length=torch.tensor([len(tokens) for _, _, tokens, _ in flat]),
        failed=torch.zeros(n, dtype=torch.bool),
        position=ids,
        metrics={
            "correct_calls": torch.tensor([path.correct for _, path, _, _ in flat], dtype=torch.float64),
            "folds": torch.tensor([float(path.folds) for _, path, _, _ in flat], dtype=torch.float64),
        },
        rewards=torch.zeros(n, width),
        mask=mask,
        actions=actions & mask.bool(),
    )


def naive(paths: list[Path], lambda_call: float, lambda_fold: float) -> list[list[list[float]]]:
    """Eqs. 5 to 7 word by word: per trajectory, per row, per token."""

    def preference(path: Path) -> float:
        direct = [other.length for other in paths if other.question == path.question and not other.folds]
        if not path.folds or not direct:
            return 0.0
        mean = sum(direct) / len(direct)
        return (mean - path.length) / (mean + path.length)

    action = [lambda_call * path.correct + lambda_fold * preference(path) for path in paths]
    result = []
    for path, own in zip(paths, action, strict=True):
        group = [i for i, other in enumerate(paths) if other.question == path.question]
        succ = path.success - sum(paths[i].success for i in group) / len(group)
        act = own - sum(action[i] for i in group) / len(group)
        result.append(
            [
                [(succ + act * a) if t else 0.0 for t, a in zip(tokens, acting, strict=True)]
                for tokens, acting in path.rows
            ]
        )
    return result


def flatten(values: list[list[list[float]]], width: int) -> torch.Tensor:
    return torch.tensor([row + [0.0] * (width - len(row)) for path in values for row in path])


def test_by_hand():
    """Two trajectories, success 1 and 0, correct calls 2 and 1; an observation between two outputs of the first."""
    first = Path(0, 1.0, 2.0, [([True, True, False, False, True], [False, True, False, False, False])])
    second = Path(0, 0.0, 1.0, [([True, True], [True, False])])
    found = ToolPO().advantages(rows([first, second]), None)
    # A_succ = ±0.5; A_action = 2 − 1.5 and 1 − 1.5.
    assert found.tolist() == [[0.5, 1.0, 0.0, 0.0, 0.5], [-1.0, -0.5, 0.0, 0.0, 0.0]]
    assert found.dtype == torch.float32
    plain = ToolPO(tool_advantage=False).advantages(rows([first, second]), None)
    assert plain.tolist() == [[0.5, 0.5, 0.0, 0.0, 0.5], [-0.5, -0.5, 0.0, 0.0, 0.0]]
    halved = ToolPO(lambda_call=0.5).advantages(rows([first, second]), None)
    assert halved[0, 1].item() == 0.75 and halved[1, 0].item() == -0.75


def test_fold_preference_by_hand():
    """Direct ones have 100 and 200 tokens: mean 150. A fold of 50 gains 100/200, one of 450 loses 300/600."""
    length, folded = torch.tensor([100, 200, 50, 450, 80, 80]), torch.tensor([False, False, True, True, True, True])
    question = torch.tensor([3, 3, 3, 3, 7, 7])  # of question 7 all fold: nothing to compare with
    assert fold_preference(length, folded, question).tolist() == [0.0, 0.0, 0.5, -0.5, 0.0, 0.0]


def test_a_batch_in_which_no_agent_acts_has_no_preference():
    idle = ([True, True], [False, False])
    found = ToolPO().advantages(rows([Path(0, 1.0, 0.0, [idle]), Path(0, 0.0, 0.0, [idle, idle])]), None)
    assert found.tolist() == [[0.5, 0.5], [-0.5, -0.5], [-0.5, -0.5]]


tokens = st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=6).map(
    lambda pairs: ([a for a, _ in pairs], [b for _, b in pairs])
)
paths = st.builds(
    Path, st.integers(0, 2), st.sampled_from([0.0, 0.5, 1.0]), st.integers(0, 4).map(float),
    st.lists(tokens, min_size=1, max_size=3),
)  # fmt: skip
batches = st.lists(paths, min_size=1, max_size=10)


@given(batches, st.floats(0, 2), st.floats(0, 2), st.integers(0, 3))
def test_equals_the_equations_word_by_word(batch, lambda_call, lambda_fold, padding):
    given_rows = rows(batch, padding)
    found = ToolPO(lambda_call=lambda_call, lambda_fold=lambda_fold).advantages(given_rows, None)
    expected = flatten(naive(batch, lambda_call, lambda_fold), given_rows.mask.shape[1])
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-6)


@given(batches)
def test_a_question_is_centred_over_trajectories_however_many_rows_they_have(batch):
    """Σ over a question's trajectories of A_succ is 0: of folded ones one row counts."""
    found = ToolPO(tool_advantage=False).advantages(rows(batch), None)
    first, sums = 0, {}
    for path in batch:
        block = found[first : first + len(path.rows)]
        values = {
            round(value, 6)
            for row, (said, _) in zip(block.tolist(), path.rows, strict=True)
            for value, t in zip(row, said, strict=False)
            if t
        }
        assert len(values) <= 1, "all generated tokens of a trajectory, in all its rows, have the same"
        succ = path.success - sum(p.success for p in batch if p.question == path.question) / sum(
            p.question == path.question for p in batch
        )
        assert not values or values == {round(succ, 6)} or abs(values.pop() - succ) < 2e-6
        sums[path.question] = sums.get(path.question, 0.0) + succ
        first += len(path.rows)
    assert all(abs(total) < 1e-9 for total in sums.values())


def test_degenerate_groups():
    alone = ToolPO().advantages(rows([Path(0, 1.0, 3.0)]), None)
    assert alone.abs().sum() == 0
    same = ToolPO().advantages(rows([Path(0, 1.0, 3.0), Path(0, 1.0, 3.0)]), None)
    assert same.abs().sum() == 0


def test_a_workflow_that_does_not_count_its_calls_is_told():
    batch = rows([Path(0, 1.0, 1.0)])
    batch.metrics = {"em": batch.outcome}
    with pytest.raises(ValueError, match="let the workflow's `reward` report `correct_calls` .it reports em."):
        ToolPO().advantages(batch, None)
    batch.metrics = {"correct_calls": batch.outcome}  # a workflow without folding
    assert ToolPO().advantages(batch, None).shape == (1, 2)


def test_weights_make_a_mean_over_rows_one_over_trajectories():
    """Sums of rows 1 + 2 and 6 of two trajectories: Eq. 8's mean is 4.5, that of three rows is 3."""
    weights = trajectory_weights(torch.tensor([0, 0, 5]))
    assert (weights * torch.tensor([1.0, 2.0, 6.0])).mean() == 4.5


def test_rows_of_a_helper_that_trains_do_not_count_in_the_length():
    """By hand: direct 100 tokens, folded 60: S_pref = 40/160 = 0.25, half of it above the mean of two; the memories of
    the auxiliary role, three rows of 100, change nothing."""
    direct, folded = (
        Path(0, 0.0, 0.0, [([True] * 100, [True] * 100)]),
        Path(0, 0.0, 0.0, [([True] * 30, [True] * 30)] * 2),
    )
    memory = ([True] * 100, [False] * 100)
    alone = ToolPO().advantages(rows([direct, folded]), None)
    folded.rows = folded.rows + [memory] * 3
    batch = rows([direct, folded])
    batch.metrics["folds"] = torch.tensor([0.0, 1.0, 1.0, 1.0, 1.0, 1.0], dtype=torch.float64)
    batch.agent[3:] = 1
    helped = ToolPO().advantages(batch, None)
    assert alone[1, 0] == pytest.approx(0.125) and alone[0, 0] == pytest.approx(-0.125)
    assert torch.equal(helped[:3], alone) and not helped[3:].any()
