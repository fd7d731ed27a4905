"""Agents: a prompt, a parser and an agent-specific reward around the shared policy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from verl_ext.mas.choices import named
from verl_ext.mas.parameters import checked
from verl_ext.tracebacks import place_of

if TYPE_CHECKING:
    from verl_ext.mas.llm import LLM

_NO_FALLBACK = object()


class Unparsable(Exception):
    """Raised by a parser on output that breaks the agent's format.

    Args:
        message: what is wrong, for the log.
        fallback: value with which the workflow goes on; without one, `ctx.call` raises `CallFailed`.
    """

    def __init__(self, message: str, fallback: Any = _NO_FALLBACK):
        super().__init__(message)
        self.fallback = fallback

    @property
    def has_fallback(self) -> bool:
        return self.fallback is not _NO_FALLBACK


def plain(text: str, /, **_: Any) -> str:
    """The default parser: the text without surrounding blanks."""
    return text.strip()


def no_prompt(**inputs: Any) -> list[dict[str, str]]:
    """In place of a prompt, for agents that are only asked by `ctx.chat`."""
    raise TypeError("ctx.call asks an agent without a prompt. Remedy: Agent(prompt), or ctx.chat(agent, messages)")


def unless_broken(read: Callable[..., Any], text: str, /, **inputs: Any) -> Any:
    """A parser from `read`, whose values have a kind: those of kind "broken" count as unparsable, and are used.

    Raises:
        Unparsable: the value is broken; it is the fallback.
    """
    value = read(text, **inputs)
    if value.kind == "broken":
        raise Unparsable(value.problem, value)
    return value


@dataclass(frozen=True, eq=False)
class Agent:
    """A role of the shared policy. Its name is its key in the workflow's `agents`. It cannot be changed: a workflow is
    built with copies (`changed`), so that two configurations in one process share nothing.

    Attributes:
        prompt: inputs of the call -> chat messages. Must be a pure function of its arguments.
        parse: (text, /, **inputs) -> value; raises `Unparsable`. Must be pure.
        penalty: (text, value, parsable, /, **inputs) -> agent-specific reward R_spe (usually <= 0) and named quantities
            for the metrics (e.g. number of queries). None: R_spe = 0.
        sampling: overrides of top_p, top_k, max_tokens for this agent alone, and `stop`: a text, or several, with which
            an output ends. The temperature is common to all: verl's trainer computes log-probabilities at one, so an
            agent sampled at another would be trained off-policy.
        actions: text -> ranges [start, end) of its characters that are actions, e.g. tool calls with their tags. An
            algorithm may give their tokens an advantage of their own (ToolPO).
        whole: an output that reached max_tokens is not read, as it may end within an action, a plan or a list: it is
            unparsable, and its value is what `parse("")` returns, or its fallback. If that raises anything else, there
            is no value, and the call fails. For agents whose output is carried out.
        choices: inputs -> the texts among which the agent decides, e.g. who acts next. Its output is one of them, and
            the choice is what trains. Must be pure, as `prompt`.
        cost: of one generated token, relative to other agents (higher for a larger model); see `Call.cost`.
        trained: False for a helper, whose calls never train; credit passes through them to the calls before.
        llm: the model that answers in place of the policy: a served model, which cannot be trained, or a policy head.
        tool_parser: verl's parser of tool calls for `ctx.chat`, e.g. hermes; None: `rollout.multi_turn.format`.

    An agent that is only asked by `ctx.chat`, by `ctx.openai`, or by a program (`verl_ext.gateway`) needs no prompt; a
    chat uses neither `parse` nor `whole`. Its penalty gets the inputs messages and tools, and the assistant's message
    as the value.

    Raises:
        ValueError: another key in `sampling`, or a value that it cannot have.
    """

    prompt: Callable[..., list[dict[str, str]]] = no_prompt
    parse: Callable[..., Any] = plain
    penalty: Callable[..., tuple[float, dict[str, float]]] | None = None
    sampling: dict[str, Any] = field(default_factory=dict)
    actions: Callable[[str], list[tuple[int, int]]] | None = None
    whole: bool = False
    choices: Callable[..., Sequence[str]] | None = None
    cost: float = 1.0
    trained: bool = True
    llm: LLM | None = None
    tool_parser: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "sampling", checked("Agent.sampling", self.sampling))  # the class is frozen

    def changed(self, *, sampling: dict[str, Any] | None = None, **fields: Any) -> Agent:
        """A copy with other fields; `sampling` is merged into the agent's own.

        Raises:
            ValueError: see the class.
        """
        return replace(self, sampling={**self.sampling, **(sampling or {})}, **fields)

    def options(self, **inputs: Any) -> tuple[str, ...]:
        """The choices for these inputs, without repetition.

        Raises:
            ValueError: there are none, or they are no texts.
        """
        given = self.choices(**inputs) if self.choices else ()
        found = given if isinstance(given, str) else list(given)
        if isinstance(found, str) or not all(isinstance(option, str) for option in found):
            raise ValueError(f"an agent's `choices` are {found!r:.200}; they must be a list of texts")
        options = tuple(dict.fromkeys(found))
        if not options:
            raise ValueError("an agent's `choices` are empty; there must be at least one")
        return options

    def read(self, text: str, cut: bool = False, /, **inputs: Any) -> Any:
        """The value of an output. cut: it reached max_tokens.

        Raises:
            Unparsable: it breaks the agent's format, is none of its choices (a served model may say anything), or was
                cut off and must be whole.
        """
        if cut and self.whole:
            try:
                value = self.parse("", **inputs)
            except Unparsable as problem:
                value = problem.fallback
            except Exception as error:
                raise Unparsable(
                    f"the output reached max_tokens and was not read; nor does {place_of(self.parse)} take an empty "
                    f"text: {type(error).__name__}: {error}"
                ) from error
            raise Unparsable("the output reached max_tokens and was not read", value)
        if self.choices is not None:
            options = self.options(**inputs)
            chosen = named(text, options)
            if chosen is None:
                raise Unparsable(f"{text!r:.100} is none of the choices {', '.join(options)}")
            text = chosen
        return self.parse(text, **inputs)
