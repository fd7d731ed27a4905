"""How questions are dealt to rollout workers."""

import pytest

from verl_ext.trainer.rollout.agent_loop import deal


@pytest.mark.parametrize("sizes", [[8, 8], [1] * 11, [5, 1, 1, 7, 3], [0, 2]])
def test_every_question_once_and_all_workers_alike_over_many_deals(sizes):
    dealt, received = 0, [[], [], []]
    for size in sizes:
        questions = list(range(dealt, dealt + size))
        for worker, share in zip(received, deal(questions, 3, dealt), strict=True):
            worker += share
        dealt += size
    assert received == [list(range(rank, sum(sizes), 3)) for rank in range(3)]
