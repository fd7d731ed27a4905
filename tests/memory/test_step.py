"""A step of the memory against the literal algorithm, over random histories; invariances; what is refused."""

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.memory.histories import AGENTS, QUERIES, Halves, Naive, episodes, everything
from verl_ext.memory import Episode, Memory, Rules, Use, View
from verl_ext.memory.step import COUNTS, evolve

EMPTY = View(0, Halves())
RULES = st.builds(
    Rules,
    alpha=st.sampled_from([0.0, 0.01, 0.1, 1.0]),
    beta=st.sampled_from([0.0, 0.3, 1.0]),
    threshold=st.sampled_from([-1.0, 0.0, 0.7]),
    capacity=st.sampled_from([1, 3, 10, 1000]),
)


def winners(query="q", plan=(), output="a", agent="math", recalled=(), reward=2.0, question="0"):
    """Five trajectories of which the first stands out."""
    use = Use(agent, query, plan, output, recalled)
    first = Episode(question, "0", reward, 0.0, (use,))
    return [first, *(Episode(question, str(n), 0.0, 0.0) for n in range(1, 5))]


def losers(recalled, agent="math"):
    """Five trajectories of which the first stands out as bad, having recalled these."""
    first = Episode("0", "0", 0.0, 0.0, (Use(agent, "q", (), "a", recalled),))
    return [first, *(Episode("0", str(n), 1.0, 0.0) for n in range(1, 5))]


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32), RULES, st.lists(st.integers(1, 3), min_size=1, max_size=12), st.booleans())
def test_random_histories_give_the_numbers_of_the_literal_algorithm(seed, rules, gaps, late):
    """Bit by bit: ids, times, scores, survivors and recalls. late: trajectories recall one version behind.

    Episodes arrive in any order, and the literal algorithm treats the agents one by one.
    """
    rng, naive, view, step = random.Random(seed), Naive(rules), EMPTY, 0
    before = view
    for gap in gaps:
        step += gap
        made = episodes(rng, before if late else view, step)
        before = view
        view, changes, counts = evolve(view, step, made, rules)
        naive.apply(step, made)
        assert everything(view) == naive.all()
        assert view.version == step and view.next_id == naive.next_id and counts["memories"] == len(naive.memories)
        asked = [(agent, query) for agent in AGENTS for query in (*QUERIES[:4], "something else", " ")]
        found = view.recall_many(asked, 4)
        assert [[memory.id for memory in one] for one in found] == [naive.recall(*one, 4) for one in asked]


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32), RULES)
def test_the_changes_lead_from_one_state_to_the_next(seed, rules):
    rng, view = random.Random(seed), EMPTY
    rows = {}
    for step in range(1, 8):
        view, changes, _ = evolve(view, step, episodes(rng, view, step), rules)
        for number in changes.deleted:
            del rows[number]
        for time, score, number in changes.scored:
            assert rows[number] != (time, score)
            rows[number] = (time, score)
        rows |= {memory.id: (memory.time, memory.score) for memory, _ in changes.inserted}
        assert rows == {memory.id: (memory.time, memory.score) for memory in everything(view)}


def test_a_trajectory_that_stands_out_is_inserted_with_its_reward():
    view, changes, counts = evolve(EMPTY, 4, winners("two and two", ("sum",), "four"), Rules())
    (memory,) = everything(view)
    assert memory == Memory(1, "math", "two and two", ("sum",), "four", time=4, score=2.0)
    expected = {"episodes": 5, "above": 1, "inserted": 1, "memories": 1}
    assert counts == dict.fromkeys(COUNTS, 0) | expected
    assert changes.deleted == [] and changes.scored == [] and len(changes.inserted) == 1


def test_modes_compare_what_the_paper_says():
    """One memory has the trajectory's plan, the other its output: the mode decides which gains more."""
    view = View(0, Halves())
    view, _, _ = evolve(view, 1, winners("q", ("search",), "red", question="a"), Rules(alpha=0))
    view, _, _ = evolve(view, 2, winners("q", ("math",), "blue", question="b"), Rules(alpha=0))
    by_plan, _, _ = evolve(view, 3, winners("q", ("search",), "blue", recalled=(1, 2)), Rules(alpha=0))
    by_output, _, _ = evolve(view, 3, winners("q", (), "blue", recalled=(1, 2)), Rules(alpha=0))
    gains = [[m.score - 2 for m in everything(v)[:2]] for v in (by_plan, by_output)]
    assert gains[0][0] > gains[0][1] > 0 and gains[1][1] > gains[1][0] > 0
    for gain in gains:
        assert sum(gain) == pytest.approx(2 - (0.4 + 1.96 * 0.8))


def test_what_trajectories_share_is_inserted_once_and_what_differs_apart():
    use = Use("math", "q", (), "a")
    rest = [Episode("0", f"r{n}", 0.0, 0.0) for n in range(20)]
    twins = [Episode("0", name, 2.0, 0.0, (use, use)) for name in ("x", "y")]
    other = Episode("0", "z", 2.0, 0.0, (Use("math", "q", (), "another"),))
    view, _, counts = evolve(EMPTY, 1, [*rest, *twins], Rules())
    assert counts["inserted"] == 1 and counts["above"] == 2
    _, _, counts = evolve(EMPTY, 1, [*rest, *twins, other], Rules())
    assert counts["inserted"] == 2
    view, _, counts = evolve(view, 2, [*rest, *twins], Rules())  # another step, another t: another memory
    assert counts["inserted"] == 1


def test_a_memory_inserted_below_the_threshold_does_not_stay():
    low = [
        Episode("0", "0", -1.0, 0.0, (Use("math", "q", (), "a"),)),
        *(Episode("0", str(n), -5.0, 0.0) for n in range(1, 9)),
    ]
    view, changes, counts = evolve(EMPTY, 1, low, Rules())
    assert (counts["inserted"], counts["deleted_low"], len(view), changes.inserted) == (1, 1, 0, [])
    assert view.next_id == 2


def test_capacity_one_keeps_the_best():
    rules = Rules(alpha=0, capacity=1)
    view, _, _ = evolve(EMPTY, 1, winners(reward=3.0), rules)
    view, changes, counts = evolve(view, 2, winners(output="worse", reward=2.0), rules)
    assert [memory.score for memory in everything(view)] == [3.0] and counts["deleted_full"] == 1
    assert changes.inserted == [] and changes.deleted == []
    view, changes, _ = evolve(view, 3, winners(output="better", reward=4.0), rules)
    assert [memory.output for memory in everything(view)] == ["better"] and changes.deleted == [1]


def test_failures_wear_a_memory_out_and_its_id_is_not_used_again():
    rules = Rules(alpha=0.1, beta=50)
    view, _, _ = evolve(EMPTY, 1, winners(reward=1.0), rules)
    view, changes, counts = evolve(view, 2, losers((1,)), rules)  # −0.1 − 50·0.016 = −0.9
    assert everything(view)[0].score == pytest.approx(0.1)
    view, changes, counts = evolve(view, 3, losers((1,)), rules)
    assert changes.deleted == [1] and counts["deleted_low"] == 1 and len(view) == 0
    view, _, _ = evolve(view, 4, winners(), rules)
    assert [memory.id for memory in everything(view)] == [2]


def test_a_memory_deleted_since_it_was_recalled_counts_as_stale():
    rules = Rules(capacity=1, alpha=0)
    view, _, _ = evolve(EMPTY, 1, winners(), rules)
    view, _, _ = evolve(view, 2, winners(output="b", reward=3.0), rules)
    view, _, counts = evolve(view, 3, losers((1, 2)), rules)
    assert (counts["stale"], counts["recalled"], counts["below"]) == (1, 1, 1)
    assert everything(view)[0].score == pytest.approx(3 - 0.016)  # the whole share is left to the other one


def test_a_step_without_episodes_lets_time_pass_for_all_agents():
    view, _, _ = evolve(EMPTY, 1, winners(reward=9.0), Rules())
    for step, score in ((2, 8.0), (3, 6.0), (7, 0.0)):
        view, _, counts = evolve(view, step, [], Rules())
        assert [memory.score for memory in everything(view)] == [score]
    assert counts == dict.fromkeys(COUNTS, 0) | {"memories": 1}
    assert len(evolve(view, 8, [], Rules())[0]) == 0


@pytest.mark.parametrize("blank", ["", " \n"])
def test_what_gave_no_answer_is_no_memory_and_scores_those_that_it_recalled(blank):
    view, _, counts = evolve(EMPTY, 1, winners(output=blank), Rules(alpha=0))
    assert (len(view), counts["inserted"], counts["above"], counts["episodes"]) == (0, 0, 1, 5)
    view, _, _ = evolve(view, 2, winners(), Rules(alpha=0))
    view, _, counts = evolve(view, 3, winners(query="x", output=blank, recalled=(1,)), Rules(alpha=0))
    assert counts["inserted"] == 0 and [memory.score > 2 for memory in everything(view)] == [True]


@pytest.mark.parametrize("step", [0, 3, -1, 3.5, True, "4", None])
def test_a_step_that_does_not_follow_is_refused(step):
    view, _, _ = evolve(EMPTY, 3, [], Rules())
    with pytest.raises(ValueError, match="the memory is at step 3, given step .*restores that step's snapshot"):
        evolve(view, step, [], Rules())


def test_the_same_episode_twice_is_refused():
    with pytest.raises(ValueError, match=r"two episodes of one step are called \('0', '1'\)"):
        evolve(EMPTY, 1, [*winners(), Episode("0", "1", 0.0, 0.0)], Rules())


def test_memories_of_others_are_refused():
    view, _, _ = evolve(EMPTY, 1, winners(agent="expert"), Rules())
    for number in (1, 2, 0, -1):
        with pytest.raises(ValueError, match=rf"agent 'math' is said to have recalled \[{number}\]"):
            evolve(view, 2, losers((number,)), Rules())


def test_records_refuse_nonsense():
    with pytest.raises(ValueError, match="plan must be a sequence of names, given 'search'"):
        Use("math", "q", "search", "a")
    with pytest.raises(ValueError, match="name each memory once"):
        Use("math", "q", (), "a", (1, 1))
    for agent in ("", "\ud800"):
        with pytest.raises(ValueError, match="agent must be a name"):
            Use(agent, "q", (), "a")
    for reward in (float("nan"), float("inf")):
        with pytest.raises(ValueError, match="must be finite.*leave failed trajectories out"):
            Episode("q", "t", reward, 0.0)


def test_the_random_histories_meet_every_case():
    totals = Counter()
    for seed in range(20):
        rng, view = random.Random(seed), EMPTY
        before, rules = view, Rules(alpha=0.05 if seed % 2 else 3.0, capacity=3)
        for step in range(1, 9):
            made = episodes(rng, before, step)
            before, (view, _, counts) = view, evolve(view, step, made, rules)
            totals.update(counts)
            totals["plans"] += sum(bool(use.plan and use.recalled) for episode in made for use in episode.uses)
            totals["answers"] += sum(bool(use.recalled and not use.plan) for episode in made for use in episode.uses)
    assert set(totals) == {*COUNTS, "plans", "answers"} and min(totals.values()) > 10
