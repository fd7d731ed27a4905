"""Puts generated texts through everything that reads what a model or a server wrote.

    python -m tests.bench.texts 100000

Three things are failures: an exception that the parser does not document, a second call that gives another result, and
a text that takes more than a second of CPU time. A failure names the parser and the text; the exit status is then 1.
"""

from __future__ import annotations

import argparse
import inspect
import json
import random
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from tests.bench.texts_made import made
from verl_ext.data_prep.rows import decoded
from verl_ext.mas import Agent, Task, Unparsable, Workflow
from verl_ext.mas.choices import named
from verl_ext.recipe.deepagent import DeepAgent, GeneralAgent, grammar, memories
from verl_ext.recipe.deepagent.environments.workflow import EnvironmentAgent
from verl_ext.recipe.joyagents import JoyAgents
from verl_ext.recipe.joyagents import grammar as joyagents_grammar
from verl_ext.recipe.joyagents.accuracy import functions_called, last_number
from verl_ext.recipe.joyagents.decision import FunctionDecision
from verl_ext.recipe.joyagents.single import SingleAgent
from verl_ext.recipe.mhgpo import SearchQA, SingleQA
from verl_ext.recipe.puppeteer import Puppeteer, puppets
from verl_ext.recipe.puppeteer.scoring import key_of, number_of
from verl_ext.recipe.smurfs import DFSDT, ReAct, Smurfs
from verl_ext.recipe.solver_verifier import SolveAndVerify
from verl_ext.rewards.calls import gold_path
from verl_ext.rewards.qa import qa_scores
from verl_ext.storage.jsonl import parse_line
from verl_ext.tools.catalogue.formats import api_bank
from verl_ext.tools.catalogue.recorded.toolbench import _arguments as recorded_arguments
from verl_ext.tools.catalogue.render import neutral
from verl_ext.tools.catalogue.types import Catalogue, ToolSpec
from verl_ext.tools.catalogue.written_calls import load_strictly, read_call
from verl_ext.tools.chat import endpoint, wire
from verl_ext.tools.http.client import Transient
from verl_ext.tools.simulator.answers import NoResult, result_of

LIMIT_S, HANG_S = 1.0, 20.0  # of CPU time; what takes longer than HANG_S is interrupted
SHOWN = 5  # failures that are printed
# Every recipe's system, with all agents that it can have.
SYSTEMS: list[Workflow] = [
    *(SearchQA(), SingleQA(), SolveAndVerify(), Smurfs(tool_check=True), ReAct(), DFSDT()),
    *(DeepAgent(), DeepAgent(max_folds=0), EnvironmentAgent(), GeneralAgent()),
    *(JoyAgents(), SingleAgent(), FunctionDecision()),
    Puppeteer(pool=puppets.POOL, judge=True),
]
NAMES = ["film", "find person", "Yes", "No", "terminate"]
INPUTS: dict[str, Any] = {
    "question": "Who?",
    "docs": [{"title": str(i), "text": "x"} for i in range(5)],
    "names": NAMES,
}
CATALOGUE = Catalogue([ToolSpec("film", "finds films", {"type": "object", "properties": {"x": {"type": "integer"}}})])
INPUTS |= {"options": NAMES, "state": puppets.State("Who?"), "left": 3}


class Parser(NamedTuple):
    """What reads a text, and the exceptions that it documents."""

    name: str
    read: Callable[[str], Any]
    raises: tuple[type[Exception], ...] = ()


class Reading(NamedTuple):
    """What an agent makes of an output."""

    value: Any
    parsable: bool
    penalty: Any
    actions: list[tuple[int, int]]


@dataclass
class Count:
    """What came of a parser's texts. seconds: CPU time of the slowest."""

    read: int = 0
    refused: int = 0
    seconds: float = 0.0
    failures: list[str] = field(default_factory=list)


class Hang(BaseException):
    """A parser was interrupted after HANG_S."""


def parsers() -> list[Parser]:
    """All of them: of the agents, of the tools' and servers' answers, and of rewards."""
    own = list(_of_agents())
    own += [Parser(f"deepagent memory {kind}", partial(_memory, kind)) for kind in memories.KINDS]
    functions = (grammar.answer_of, grammar.after_thoughts, grammar.neutral, joyagents_grammar.neutral, neutral)
    functions += (puppets.read_result, puppets.read_code, puppets.read_queries, puppets.read_url)
    functions += (number_of, last_number, functions_called, recorded_arguments, wire.complaint_of)
    own += [Parser(f"{one.__module__.removeprefix('verl_ext.')}.{one.__name__}", one) for one in functions]
    own += [Parser(f"key_of {kind}", partial(key_of, kind)) for kind in ("gsm8k", "mmlu_pro", "hotpotqa")]
    return own + [
        Parser("choices.named", lambda text: named(text, NAMES)),
        Parser("qa_scores", lambda text: qa_scores(text, ["Tova Brandt", "yes"])),
        Parser("written_calls.read_call", read_call, (ValueError,)),
        Parser("written_calls.load_strictly", load_strictly, (ValueError,)),
        Parser("simulator.result_of", result_of, (NoResult,)),
        Parser("api_bank.literals", lambda text: api_bank.literals(text, "row 1"), (ValueError,)),
        Parser("rows.decoded", decoded),
        Parser("catalogue.problems", lambda text: CATALOGUE.problems(text, {"x": text, text: text})),
        Parser("calls.gold_path", lambda text: gold_path(Task("Who?", {"path": text})), (ValueError,)),
        Parser("jsonl.parse_line", lambda text: parse_line(_bytes(text) + b"\n")),
        Parser("wire.model_names", lambda text: wire.model_names(_bytes(text))),
        Parser("wire.until_stop", lambda text: wire.until_stop(wire.Answer(text, text[:9]), grammar.STOPS)),
        Parser("wire.is_too_long", lambda text: wire.is_too_long(400, text)),
        Parser("wire.refused_parameters", lambda text: wire.refused_parameters({"seed": 1, "max_tokens": 2}, text)),
        Parser("endpoint: a body", lambda text: endpoint._answer(_bytes(text)), (Transient,)),
        Parser(
            "endpoint: a body's choices",
            lambda text: endpoint._answer(_bytes(f'{{"choices": [{text}]}}')),
            (Transient,),
        ),
    ]


def _of_agents() -> Iterator[Parser]:
    """What every agent does with an output: its value, its penalty, its actions. Equal ones once."""
    seen = set()
    for system in SYSTEMS:
        for name, agent in system.agents.items():
            key = str((agent.parse, agent.choices, agent.penalty, agent.actions))
            if key not in seen:
                seen.add(key)
                yield Parser(f"{type(system).__name__} {name}", partial(_read, agent, _inputs(agent)))


def _inputs(agent: Agent) -> dict[str, Any]:
    """Those of INPUTS that the agent's `choices` take."""
    taken = inspect.signature(agent.choices).parameters if agent.choices else {}
    return {name: value for name, value in INPUTS.items() if not taken or name in taken}


def _read(agent: Agent, inputs: dict[str, Any], text: str) -> Reading:
    """As a session reads an output; what is unparsable has its fallback for a value."""
    try:
        value, parsable = agent.read(text, **inputs), True
    except Unparsable as error:
        value, parsable = error.fallback if error.has_fallback else None, False
    penalty = agent.penalty(text, value, parsable, **inputs) if agent.penalty and (parsable or value) else None
    actions = agent.actions(text) if agent.actions else []
    assert all(0 <= start <= end <= len(text) for start, end in actions), f"actions {actions} of {len(text)} characters"
    return Reading(value, parsable, penalty, actions)


def _memory(kind: str, text: str) -> Any:
    return memories.read_memory(text, memories.SCHEMAS[kind])


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def outcome(parser: Parser, text: str) -> tuple[str, bool, float]:
    """(the result in words, whether it was refused, seconds of CPU time). Raises what the parser does not document."""
    start, refused = time.process_time(), False
    try:
        value = parser.read(text)
        result, refused = repr(value), isinstance(value, Reading) and not value.parsable
    except parser.raises as error:
        result, refused = f"{type(error).__name__}: {error}", True
    return result, refused, time.process_time() - start


def check(parser: Parser, text: str, count: Count, limit_s: float) -> None:
    """Read a text twice, and count what came of it."""
    signal.setitimer(signal.ITIMER_PROF, HANG_S)
    try:
        (first, refused, seconds), again = outcome(parser, text), outcome(parser, text)
        problem = "" if first == again[0] else f"gives {first:.200} and then {again[0]:.200}"
        seconds = min(seconds, again[2])
        problem = problem or (f"takes {seconds:.1f} s" if seconds > limit_s else "")
        count.read, count.refused, count.seconds = count.read + 1, count.refused + refused, max(count.seconds, seconds)
    except Hang:
        problem = f"takes more than {HANG_S:.0f} s"
    except Exception as error:  # what it does not document
        problem = f"raises {error!r:.200}"
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    if problem:
        count.failures.append(f"{parser.name} {problem} on {len(text)} characters: {json.dumps(text)[:400]}")


def run(number: int, seed: int = 0, limit_s: float = LIMIT_S) -> dict[str, Count]:
    """Counts per parser over `number` texts."""

    def interrupt(*_: Any) -> None:
        raise Hang

    before, rng, every = signal.signal(signal.SIGPROF, interrupt), random.Random(seed), parsers()
    counts = {parser.name: Count() for parser in every}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)  # of Python's own parser, about literals
            for _ in range(number):
                text = made(rng)
                for parser in every:
                    check(parser, text, counts[parser.name], limit_s)
    finally:
        signal.signal(signal.SIGPROF, before)
    return counts


def report(number: int, counts: dict[str, Count]) -> list[str]:
    """Lines: each parser, its failures, and the sum."""
    lines = [f"{'parser':<44} {'read':>9} {'refused':>9} {'slowest, ms':>12} {'failures':>9}"]
    for name, count in counts.items():
        shown = f"{count.read:>9,} {count.refused:>9,} {1000 * count.seconds:>12.1f} {len(count.failures):>9,}"
        lines += [f"{name:<44} {shown}", *(f"    {failure}" for failure in count.failures[:SHOWN])]
    slowest = max(counts, key=lambda name: counts[name].seconds)
    failures = sum(len(count.failures) for count in counts.values())
    lines.append(
        f"{number:,} texts through {len(counts)} parsers: {failures} failures; the slowest text took "
        f"{1000 * counts[slowest].seconds:.0f} ms ({slowest})"
    )
    return lines


def main(argv: Sequence[str] | None = None) -> int:
    """Command line. Returns 1 if there was a failure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("texts", type=int, nargs="?", default=100_000, help="how many (100000)")
    parser.add_argument("--seed", type=int, default=0, help="of the texts")
    given = parser.parse_args(argv)
    counts = run(given.texts, given.seed)
    print("\n".join(report(given.texts, counts)))
    return int(any(count.failures for count in counts.values()))


if __name__ == "__main__":
    sys.exit(main())
