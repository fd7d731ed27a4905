"""A customer service on the OpenAI Agents SDK: a receptionist hands a question to one of four specialists.

It knows a server, a key and the shop's APIs, and nothing of verl_ext.

    master ─▶ transfer (a native tool call) ─▶ math_agent      answers
                                            └▶ shop_agent      calls one of twelve APIs, whose result is the answer
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from agents import Agent, AgentsException, FunctionTool, OpenAIChatCompletionsModel, RunConfig, Runner, handoff
from agents.handoffs import HandoffInputData
from openai import AsyncOpenAI, DefaultAsyncHttpxClient

# Runs share their connections, but not their keys: to make a client takes longer than a tiny model's answer.
HTTP = DefaultAsyncHttpxClient()
SHOP = {"type": "object", "properties": {"shop": {"type": "string"}}, "required": ["shop"]}
Api = Callable[[str, str], Awaitable[str]]  # name, arguments as JSON -> result


async def serve(question: str, apis: Sequence[str], call: Api, base_url: str, api_key: str) -> str:
    """Answer a customer's question."""
    client = AsyncOpenAI(base_url=base_url, api_key=api_key, http_client=HTTP, max_retries=0)

    def agent(name: str, **options: Any) -> Agent[Any]:
        return Agent(name, model=OpenAIChatCompletionsModel(name, client), **options)

    def api(name: str) -> FunctionTool:
        return FunctionTool(name, name, SHOP, lambda _, arguments: call(name, arguments), strict_json_schema=False)

    def only(prompt: str) -> Callable[[HandoffInputData], HandoffInputData]:
        """What the next agent sees of the conversation: the question alone."""
        return lambda data: data.clone(input_history=prompt, pre_handoff_items=(), new_items=())

    math = agent("math_agent")
    shop = agent("shop_agent", tools=[api(name) for name in apis], tool_use_behavior="stop_on_first_tool")
    specialists = [
        handoff(math, tool_name_override="math_agent", input_filter=only(f"math: {question}")),
        handoff(shop, tool_name_override="shop_agent", input_filter=only(f"shop: {question}")),
    ]
    master = agent("master", handoffs=specialists)
    config = RunConfig(tracing_disabled=True)
    try:
        done = await Runner.run(master, f"user: {question}", max_turns=3, run_config=config)
    except AgentsException:  # a call of a tool that the agent does not have
        return "none"
    return str(done.final_output)
