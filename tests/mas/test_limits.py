"""How long a prompt may be."""

from __future__ import annotations

import pytest

from tests.helpers import FakeLLM, Script, forest_of, run, walk
from verl_ext.mas import Agent, Status


@pytest.mark.parametrize(
    ("trained", "room", "status"),
    [
        (False, 100 + 20, Status.OK),  # 20 are the output's
        (False, 99 + 20, Status.PROMPT_TOO_LONG),
        (True, 100 + 20, Status.PROMPT_TOO_LONG),  # it needs a row
        (False, None, Status.PROMPT_TOO_LONG),
    ],
)
def test_what_does_not_train_may_fill_the_engine_with_its_prompt(trained, room, status):
    """A helper that reads a whole history, with the shared checkpoint."""

    async def program(task, ctx):
        await ctx.call("helper", text="x" * 100)

    workflow = Script(program, {"helper": Agent(lambda text: [{"role": "user", "content": text}], trained=trained)})
    limits = {"max_prompt_tokens": 50, "max_context_tokens": room}
    forest = forest_of(workflow, FakeLLM(), limits=limits)
    forest.sampling = {"max_tokens": 20}
    (call,) = run(walk(forest)).calls
    assert len(call.prompt_ids) == 100 and call.status is status
