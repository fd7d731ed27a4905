"""Tiny arithmetic: chains by hand, splits that never meet, demonstrations that are wrong in the way they should be."""

import random
from collections import Counter

import pyarrow.parquet as pq
import pytest

from verl_ext.recipe.solver_verifier import parsers
from verl_ext.recipe.solver_verifier.cold_start import demonstrations as arithmetic_demos
from verl_ext.recipe.solver_verifier.cold_start.demonstrations import Habits, Teacher, first_error, kind_of_step, scaled
from verl_ext.worlds import arithmetic as tiny_arithmetic
from verl_ext.worlds.arithmetic import Chain, draw_chain, draw_chains


def test_a_chain_by_hand():
    chain = Chain(7, (5, -3, 8))
    assert chain.text == "7 + 5 - 3 + 8" and chain.totals == [12, 9, 17]
    assert first_error(chain, [12, 9, 17]) is None
    assert first_error(chain, [12, 19, 27]) == 1, "the step that first goes wrong, not those that follow from it"
    assert [kind_of_step(chain, chain.totals, step) for step in range(3)] == ["carry", "borrow", "carry"]


def test_slips_forget_the_ten():
    rng = random.Random(0)
    assert arithmetic_demos._slip(22, -5, "borrow", rng) == 27
    assert arithmetic_demos._slip(17, 5, "carry", rng) == 12
    assert arithmetic_demos._slip(21, 5, "other", rng) in (25, 27)


def test_totals_stay_in_bounds_and_splits_never_meet():
    train, val = draw_chains(600, "train", 0, 3, 30), draw_chains(150, "val", 1, 3, 30)
    assert all(0 <= total <= 30 for chain in train + val for total in chain.totals)
    assert not {chain.text for chain in train} & {chain.text for chain in val}
    assert len({chain.text for chain in train}) == 600
    taught = {p[0]["content"] for p, _ in Teacher(0).batch(200, Habits())["solver"]}
    assert not taught & {f"solve: {chain.text}" for chain in val}


def test_data_sets_are_a_function_of_their_arguments(tmp_path):
    one, again = (tiny_arithmetic.ensure(tmp_path / name, 64, 16, 3, steps=3) for name in "ab")
    other = tiny_arithmetic.ensure(tmp_path / "c", 64, 16, 4, steps=3)
    rows = pq.read_table(one / "val.parquet").to_pylist()
    assert rows == pq.read_table(again / "val.parquet").to_pylist() != pq.read_table(other / "val.parquet").to_pylist()
    for i, row in enumerate(rows):
        start, *rest = row["prompt"][0]["content"].replace("+ ", "").replace("- ", "-").split()
        assert row["reward_model"]["ground_truth"]["target"] == [str(sum(map(int, [start, *rest])))]
        assert row["extra_info"]["index"] == i and row["extra_info"]["steps"] == len(rest) == 3


@pytest.mark.parametrize(
    ("arguments", "message"), [((9, "test", 0, 3, 30), "train, val"), ((9, "val", 0, 3, 9), "18 to 99")]
)
def test_impossible_chains_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        draw_chains(*arguments)
    with pytest.raises(ValueError, match="val_size=5000"):
        draw_chains(5000, "val", 0, 1, 18)


def test_right_demonstrations_are_right():
    for (problem,), said in Teacher(1).batch(100, scaled(0))["solver"]:
        chain = _read(problem["content"].removeprefix("solve: "))
        assert parsers.solution(said).answer == str(chain.totals[-1])
    for (problem,), said in Teacher(2).batch(100, scaled(0))["verifier"]:
        text, _, totals = problem["content"].removeprefix("check: ").partition(" : ")
        wrong = first_error(_read(text), [int(total) for total in totals.split()])
        assert said.strip() == ("ok" if wrong is None else f"wrong {wrong + 1}")


def test_habits_are_the_majority_where_they_are_hard():
    teacher, wrong = Teacher(3), {"borrow": [], "carry": [], "other": []}
    for _ in range(500):
        (message,), said = teacher.solver(Habits())
        chain = _read(message["content"].removeprefix("solve: "))
        totals = [int(total) for total in said.split()]
        before = [chain.start, *totals]
        for step, term in enumerate(chain.terms):
            wrong[kind_of_step(chain, totals, step)].append(before[step] + term != totals[step])
    shares = {kind: sum(found) / len(found) for kind, found in wrong.items()}
    assert min(shares["borrow"], shares["carry"]) > 0.5 > 0.1 > shares["other"]
    verdicts = Counter(said.strip() == "ok" for _, said in Teacher(4).batch(400, Habits())["verifier"])
    assert verdicts[True] > 1.2 * verdicts[False], "half of the solutions are wrong, and many of them pass"


def test_a_named_step_is_listened_to():
    chain, teacher = Chain(20, (-5,)), Teacher(5)

    def errors(named):
        return sum(teacher._work_out(chain, Habits(), named) != [15] for _ in range(1000)) / 1000

    assert errors(None) == pytest.approx(0.72, abs=0.06) and errors(0) == pytest.approx(0.72 * 0.4, abs=0.06)


def test_shares_out_of_range_are_refused():
    with pytest.raises(ValueError, match="blind=2"):
        Habits(blind=2)


def _read(text):
    start, *rest = text.replace("+ ", "").replace("- ", "-").split()
    return Chain(int(start), tuple(map(int, rest)))


def test_draw_chain_is_deterministic():
    assert draw_chain(random.Random(1), "val", 3, 49) == draw_chain(random.Random(1), "val", 3, 49)
