"""The part of `ctx` that speaks OpenAI's form: `chat`, `openai`, `tool_schemas`, `run_tools`."""

from __future__ import annotations

import copy
import inspect
import json
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from verl_ext.mas.chat import ChatRequest, Message, Reply, continued_length, request_of
from verl_ext.mas.chat_answers import reply_of
from verl_ext.mas.tool_calls import BadToolCall
from verl_ext.mas.types import Call, CallFailed, CallId, Invocation
from verl_ext.tools.catalogue.render import neutral

if TYPE_CHECKING:
    from verl_ext.mas.agent import Agent
    from verl_ext.mas.openai_client import Client
    from verl_ext.mas.session import Session


class ChatContext:
    """What `Context` has of chats. It is the base of `Context` and nothing else."""

    _session: Session
    frontier: list[Call]

    @property
    def agents(self) -> dict[str, Agent]:
        """See `Context`."""
        raise NotImplementedError

    def _next_id(self, name: str) -> CallId:
        raise NotImplementedError

    def _known(self, agent: str) -> Agent:
        raise NotImplementedError

    def _made(self, invocation: Invocation, work: Coroutine[Any, Any, Any]) -> Coroutine[Any, Any, Any]:
        raise NotImplementedError

    async def _answered(self, invocation: Invocation) -> Call:
        raise NotImplementedError

    def tool(self, tool: str, /, **arguments: Any) -> Coroutine[Any, Any, Any]:
        """See `Context`."""
        raise NotImplementedError

    def chat(
        self,
        agent: str,
        messages: Sequence[Any],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        tool_choice: Any = "auto",
        sampling: Mapping[str, Any] | None = None,
        id: CallId | None = None,
        parents: list[Call] | None = None,
    ) -> Coroutine[Any, Any, Reply]:
        """Let `agent` answer a chat in OpenAI's form, with native tool calls.

        A chat that begins with an earlier one of this agent and its answer, both unchanged, goes on token by token, and
        both train as one sequence. One whose history was rewritten is a new sequence.

        Args:
            agent: a key of the workflow's `agents`. Its prompt, parser and `choices` are not used.
            messages: OpenAI's. Roles: system, developer, user, assistant, tool; content: text, or parts that are text.
            tools: OpenAI's definitions, e.g. `ctx.tool_schemas("search")`.
            tool_choice: auto, none, required, or {"type": "function", "function": {"name": …}}.
            sampling: top_p, top_k, max_tokens (at most the agent's), stop, for this chat alone.
            id: the identity of the call, for a caller that knows better than the order of calls in this scope.
            parents: calls whose output this chat uses, where that is not simply "the calls before it".

        Raises:
            CallFailed: as `call`; `no_tool_call` if `tool_choice` asks for a tool call and the output has none. A tool
                call that cannot be read is no error: its text is the content, and the reply's status is unparsable.
            ValueError: unknown agent, one with `choices`, messages or tools of another form, an unknown parameter.
        """
        role = self._known(agent)
        if role.choices is not None:
            raise ValueError(f"agent {agent!r} decides among given texts (`choices`). Remedy: ctx.call")
        if id is not None and id.agent != agent:
            raise ValueError(f"ctx.chat of agent {agent!r} was given the identity {id} of agent {id.agent!r}")
        request = request_of(messages, tools, tool_choice, sampling).named(role.tool_parser)
        edges = list(self.frontier) if parents is None else list(parents)
        before = list(self.frontier)
        inputs = {"messages": copy.deepcopy(request.messages), "tools": copy.deepcopy(request.tools)}
        earlier = _earlier(agent, request, [*before, *edges])
        call_id = id or self._next_id(agent)
        invocation = Invocation(call_id, role, inputs, before, edges, earlier, chat=request)
        return self._made(invocation, self._chat(invocation))

    async def _chat(self, invocation: Invocation) -> Reply:
        call = await self._answered(invocation)
        return reply_of(
            call, copy.deepcopy(call.value), invocation.agent.llm or self._session.forest.model_of(call.agent)
        )

    def openai(self, agent: str) -> Client:
        """A client with the interface of `openai.AsyncOpenAI` whose every chat completion is a `ctx.chat` of `agent`.

            completion = await ctx.openai("writer").chat.completions.create(messages=[…])

        Code in threads takes its `.sync`, which has the interface of `openai.OpenAI`.

        Raises:
            ValueError: unknown agent.
        """
        from verl_ext.mas.openai_client import Client

        self._known(agent)
        return Client(self, agent)

    def tool_schemas(self, *names: str) -> list[dict[str, Any]]:
        """The definitions of tools of `mas.tools` for `tools=`; without names, of all of them.

        A tool has a definition if it has one as attribute `definition` (verl's and MCP's tools), or is a function with
        type hints and a docstring in Google's style.

        Raises:
            ValueError: unknown tool, or one that cannot be described.
        """
        known = self._session.forest.tools
        for name in names:
            if name not in known:
                allowed = ", ".join(sorted(known)) or "none"
                raise ValueError(f"unknown tool {name!r}; tools configured under mas.tools: {allowed}")
        return [definition_of(name, known[name]) for name in names or known]

    async def run_tools(self, reply: Reply) -> list[Message]:
        """Run the tool calls of a reply, one after the other, and return their results as messages.

        What a tool refuses, and how it failed, stands in its message: the agent reads it. Special tokens in a result
        are made harmless, so that it cannot end the turn.
        """
        return [await self._run_tool(call) for call in reply.tool_calls]

    async def _run_tool(self, call: Mapping[str, Any]) -> Message:
        name, arguments = call["function"]["name"], call["function"]["arguments"]
        try:
            result = await self.tool(name, **json.loads(arguments))
        except (CallFailed, BadToolCall) as error:
            result = f"error: {error}"
        text = result if isinstance(result, str) else json.dumps(result, ensure_ascii=False, default=str)
        return {"role": "tool", "tool_call_id": call["id"], "content": neutral(text)}


def _earlier(agent: str, request: ChatRequest, before: Iterable[Call]) -> Call | None:
    """The call that a chat goes on from: of those that came before it, the one with the longest history in common.

    Only what came before by the structure of the workflow counts, never what has been answered by now: that depends on
    timing.
    """
    found: dict[Call, ChatRequest] = {}
    seen: set[Call] = set()
    waiting = list(before)
    while waiting:
        call = waiting.pop()
        if call not in seen:
            seen.add(call)
            waiting += call.parents
            if call.agent == agent and call.chat is not None and call.value is not None:
                found[call] = call.chat
    longest = sorted(found, key=lambda call: (len(found[call].messages), call.depth, call.id, call.stream.path))
    return next((call for call in reversed(longest) if continued_length(found[call], call.value, request)), None)


def definition_of(name: str, tool: Any) -> dict[str, Any]:
    """The definition of a tool under its name in `mas.tools`.

    Raises:
        ValueError: it cannot be described.
    """
    given = getattr(tool, "definition", None)
    if given is not None:
        return {"type": "function", "function": {**given["function"], "name": name}}
    from verl_ext.tools.catalogue.formats.functions import function_tool

    try:
        function = tool if inspect.isroutine(tool) else type(tool).__call__.__get__(tool)
        return {"type": "function", "function": {**function_tool(function).shown(), "name": name}}
    except ValueError as error:
        raise ValueError(
            f"the tool {name!r} of mas.tools has no definition for a model, and none can be made: {error}. Remedy: "
            "type hints and such a docstring, or an attribute `definition` in OpenAI's form"
        ) from error
