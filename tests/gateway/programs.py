"""Programs for the gateway, an engine for them, and a loop to run them on."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from typing import Any
from urllib.request import Request, urlopen

from tests.helpers import FakeLLM, walk
from verl_ext.gateway import GatewayWorkflow, ProgramWorkflow
from verl_ext.gateway.pace import Pace
from verl_ext.gateway.server import close_here
from verl_ext.gateway.settings import GatewaySection
from verl_ext.mas import Agent, Task
from verl_ext.mas.forest import Forest
from verl_ext.mas.limits import Limits


class Program(GatewayWorkflow):
    """A workflow from a program."""

    def __init__(self, program: Callable[..., Any], agents: str = "planner solver", reward: Any = None):
        self.agents = {name: Agent() for name in agents.split()}
        self.program = program
        self._reward = reward or (lambda result: 1.0)

    program: Any = None

    def reward(self, task: Task, result: Any) -> tuple[float, dict[str, float]]:
        return self._reward(result), {}


def forest_of(workflow: GatewayWorkflow, llm: FakeLLM | None = None, **options: Any) -> Forest:
    """A forest on question "q"."""
    limits = {"retry_wait": 0.0, **options.pop("limits", {})}
    options = {"name": "f", "sampling": {"temperature": 1.0, "top_p": 1.0, "max_tokens": 64}} | options
    return Forest(Task("q"), workflow, llm or FakeLLM(), limits=Limits(**limits), **options)


def run(work: Coroutine[Any, Any, Any]) -> Any:
    """Run on an event loop of its own, and close the gateway there."""

    async def main() -> Any:
        try:
            return await work
        finally:
            await close_here()

    return asyncio.run(main())


def post(url: str, key: str, body: Any) -> tuple[int, Any]:
    """POST JSON; returns the status and what was answered."""
    from urllib.error import HTTPError

    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    try:
        with urlopen(Request(url, data, headers), timeout=60) as answer:
            return answer.status, json.loads(answer.read())
    except HTTPError as error:
        return error.code, json.loads(error.read())


def ask(endpoint: Any, agent: str, content: str, **fields: Any) -> str:
    """One chat completion, blocking; returns its text."""
    body = {"model": agent, "messages": [{"role": "user", "content": content}], **fields}
    status, answer = post(f"{endpoint.base_url}/chat/completions", endpoint.api_key, body)
    assert status == 200, answer
    return answer["choices"][0]["message"]["content"]


def numbered() -> FakeLLM:
    """An engine whose outputs all differ and are long enough to be found again."""
    llm = FakeLLM(lambda request: f"the output number {len(llm.log)}")
    return llm


def texts(trajectory: Any) -> list[str]:
    """What was sampled, in the order of the call graph."""
    return [call.text for call in trajectory.calls]


def parents(trajectory: Any, text: str) -> list[str]:
    """The outputs that the call with this output depends on."""
    found = next(call for call in trajectory.calls if call.text == text)
    return sorted(parent.text for parent in found.parents)


class ManualPace(Pace):
    """Is quiet once the program has asked `expected` things in all; no clock decides anything."""

    def __init__(self, expected: int):
        super().__init__(0.0)
        self.expected, self.count = expected, 0

    @property
    def quiet(self) -> bool:
        return self.count >= self.expected

    @property
    def patient_no_more(self) -> bool:
        return False

    def asked(self) -> None:
        self.count += 1
        super().asked()
        if self.quiet:
            self._quiet()


def played(program, llm=None, agents="planner solver", **options):
    """One run of a program; it must come to its end."""
    workflow = Program(program, agents)
    workflow.gateway = GatewaySection(**options.pop("gateway", {}))

    async def work():
        forest = forest_of(workflow, llm or FakeLLM(lambda request: "an answer"), **options)
        trajectory = await walk(forest)
        await forest.close()
        return trajectory

    trajectory = run(work())
    assert trajectory.ok, trajectory.error + trajectory.trace
    return trajectory


def stream(url, key, body):
    """The events of a streamed answer."""
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    with urlopen(Request(url, json.dumps({**body, "stream": True}).encode(), headers), timeout=60) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        lines = [line for line in answer.read().decode().splitlines() if line.startswith("data: ")]
    return [json.loads(line[6:]) for line in lines if line != "data: [DONE]"]


def end_of(program, llm=None, **options):
    """The trajectory of a program."""

    async def work():
        forest = forest_of(program if isinstance(program, ProgramWorkflow) else Program(program), llm, **options)
        trajectory = await walk(forest)
        await forest.close()
        assert forest.programs == 0
        return trajectory

    return run(work())
