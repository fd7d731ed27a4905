"""What the puppeteer takes for an answer of what the real sandbox says: a program's words, not the sandbox's."""

from __future__ import annotations

import asyncio

import pytest

from tests.tools.sandboxing import sandbox
from verl_ext.recipe.puppeteer.puppets import Step, use_tool


class Told:
    """The one method of a context that a tool agent's step needs."""

    def __init__(self, said: str):
        self.said = said

    async def tool(self, name: str, **arguments: str) -> str:
        return self.said


@pytest.fixture(scope="module")
def room():
    with sandbox(cpu_s=1, wall_s=30.0) as room:
        yield room


@pytest.mark.parametrize(
    ("program", "answer"),
    [
        ("print(6 * 7)", "42"),
        ("print('first')\nprint(42)", "42"),
        ("while True: pass", ""),
        ("print(7)\nwhile True: pass", ""),
        ("raise ValueError('not 42')", ""),
        ("print(7)\nraise StopIteration(42)", ""),
        ("print(7)\nimport sys\nsys.exit(42)", ""),
        ("(", ""),
        ("print('x' * 10**8)", ""),
    ],
)
def test_the_last_line_is_an_answer_only_if_the_program_wrote_it(room, program, answer):
    said = room.run(program)
    step: Step = asyncio.run(use_tool(Told(said), "run_python", program, 200))
    assert step.found and step.answer == answer, said
