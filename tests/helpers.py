"""A fake engine (`FakeLLM`, in the place of `verl_ext.mas.llm.TokenLLM`), and an event loop whose clock jumps.

On that loop delays cost no time, and a program that waits for ever raises an error instead of hanging.
"""

from __future__ import annotations

import asyncio
import gc
import selectors
import signal
from collections.abc import Callable, Coroutine
from typing import Any

from verl_ext.mas import Agent, Task, Trajectory, Workflow
from verl_ext.mas.forest import Forest
from verl_ext.mas.limits import Limits
from verl_ext.mas.llm import TokenLLM
from verl_ext.mas.session import Session
from verl_ext.mas.types import CallId, Completion, Generation, Stream


class _JumpingSelector(selectors.DefaultSelector):
    """Waits for threads only. For a delay it moves the clock; with nothing to wait for it raises an error."""

    now = 0.0
    threads = 0

    def select(self, timeout: float | None = None) -> list[Any]:
        events = super().select(None if self.threads and timeout != 0 else 0)
        if events:
            return events
        if timeout is None:
            raise RuntimeError("the program hangs: every coroutine waits for another one")
        self.now += max(timeout, 0)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose time passes only in sleeps. `complaints` holds exceptions that nobody retrieved."""

    def __init__(self) -> None:
        self._clock = _JumpingSelector()
        self.complaints: list[dict[str, Any]] = []
        super().__init__(self._clock)
        self.set_exception_handler(lambda _, context: self.complaints.append(context))

    def time(self) -> float:
        return self._clock.now

    def run_in_executor(self, *work: Any) -> Any:
        future = super().run_in_executor(*work)
        self._clock.threads += 1
        future.add_done_callback(self._thread_done)
        return future

    def _thread_done(self, _: Any) -> None:
        self._clock.threads -= 1


def heed_signals() -> None:
    """`preexec_fn` of a process that a test will interrupt.

    A process in the background or under nohup ignores signals, and its children inherit that.
    """
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def run(work: Coroutine[Any, Any, Any], quiet: bool = True) -> Any:
    """Run to the end on a `VirtualLoop`. `quiet`: no task may be left behind and no exception unretrieved."""
    loop = VirtualLoop()
    gc.freeze()  # collect only what this run leaves, not all of torch
    try:
        result = loop.run_until_complete(work)
        names = loop.run_until_complete(_cancel_others())
        gc.collect()
        if quiet:
            assert not names, f"left running: {names}"
            assert not loop.complaints, loop.complaints
        return result
    finally:
        gc.unfreeze()
        loop.close()


async def _cancel_others() -> list[str]:
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)
    return [task.get_coro().__qualname__ for task in left]


def now() -> float:
    """Seconds on the clock of the running `VirtualLoop`."""
    return asyncio.get_running_loop().time()


class FakeLLM(TokenLLM):
    """Tokens are the UTF-8 bytes of a text. `log` holds every generation.

    Args:
        answer: `Request` -> text, or an exception to raise. Default: a text that no other generation has, so that a
            test notices what is generated twice.
        delay: `Request` -> seconds.
    """

    end_token = 0

    def __init__(self, answer: Callable[..., Any] | None = None, delay: Callable[..., float] | None = None):
        self.answer = answer or (lambda request: f"{len(self.log)}")
        self.delay = delay or (lambda request: 0.0)
        self.log: list[Request] = []

    def encode(self, messages: list[dict[str, str]]) -> list[int]:
        return list(messages[-1]["content"].encode())

    def encode_text(self, text: str) -> list[int]:
        return list(text.encode())

    def decode(self, token_ids: list[int]) -> str:
        return bytes(token_ids).decode(errors="replace")

    async def generate(self, prompt_ids: list[int], sampling: dict[str, Any], key: tuple[str, ...]) -> Generation:
        request = Request(key, bytes(prompt_ids).decode(), sampling, now())
        self.log.append(request)
        text = self.answer(request)
        await asyncio.sleep(self.delay(request))
        request.finished = now()
        if isinstance(text, Exception):
            raise text
        if isinstance(text, Generation):
            return text
        return Generation(list(text.encode()), [-0.5] * len(text.encode()))

    def count(self, agent: str) -> int:
        """Generations of an agent."""
        return sum(request.agent == agent for request in self.log)


class DecidingLLM(FakeLLM):
    """A fake engine that spells `decide(request)` where an agent chooses; `offered` holds the choices of each time."""

    def __init__(self, answer: Callable[..., Any], decide: Callable[..., str]):
        super().__init__(answer)
        self.decide, self.offered = decide, []

    async def complete(
        self, messages: list[dict[str, str]], prompt_ids: list[int], sampling: dict[str, Any], key: tuple[str, ...]
    ) -> Completion:
        if "choices" in sampling:
            wanted = self.decide(Request(key, messages[-1]["content"], sampling, now()))
            assert wanted in sampling["choices"], (wanted, sampling["choices"])
            self.offered.append(list(sampling["choices"]))
            self.spelling = [*prompt_ids, *wanted.encode(), self.end_token]
        return await super().complete(messages, prompt_ids, sampling, key)

    async def generate(self, prompt_ids: list[int], sampling: dict[str, Any], key: tuple[str, ...]) -> Generation:
        if "allowed_token_ids" not in sampling:
            return await super().generate(prompt_ids, sampling, key)
        self.log.append(Request(key, bytes(prompt_ids).decode(), sampling, now()))
        return Generation([self.spelling[len(prompt_ids)]], [-0.5])


class Request:
    """One generation: key (forest, streams …, call), prompt, sampling parameters, start and end on the clock."""

    def __init__(self, key: tuple[str, ...], prompt: str, sampling: dict[str, Any], started: float):
        self.key, self.prompt, self.sampling, self.started = key, prompt, sampling, started
        self.finished: float | None = None

    @property
    def agent(self) -> str:
        return self.key[-1].split("/")[-1].rpartition(".")[0]


def choice(request: Request, place: int = -1, log_prob: float = -0.25) -> Generation | None:
    """In a decision: the allowed token at `place`; elsewhere None."""
    allowed = request.sampling.get("allowed_token_ids")
    return allowed and Generation([allowed[place]], [log_prob], min_version=3, max_version=4)


def speaker(name: str, **options: Any) -> Agent:
    """An agent whose prompt is its name and its inputs in words."""
    return Agent(lambda **inputs: [{"role": "user", "content": f"{name} {inputs}"}], **options)


class Script(Workflow):
    """A workflow from a function `run(task, ctx)`; its reward is `reward(result)`."""

    def __init__(self, run: Callable[..., Any], agents: str | dict[str, Agent] = "abc", reward: Any = None):
        self.agents = agents if isinstance(agents, dict) else {name: speaker(name) for name in agents}
        self._run, self._reward = run, reward or (lambda result: 1.0)

    async def run(self, task: Task, ctx: Any) -> Any:
        return await self._run(task, ctx)

    def reward(self, task: Task, result: Any) -> tuple[float, dict[str, float]]:
        return self._reward(result), {}


async def chain(task: Task, ctx: Any) -> str:
    """a -> b -> c, each prompt with the output before it."""
    said = task.question
    for agent in ctx.agents:
        said = await ctx.call(agent, said=said)
    return said


def forest_of(workflow: Workflow | Callable[..., Any], llm: FakeLLM | None = None, **options: Any) -> Forest:
    """A forest on question "q" with a fake engine. A function is a `Script`."""
    made = workflow if isinstance(workflow, Workflow) else Script(workflow)
    limits = {"retry_wait": 0.5, **options.pop("limits", {})}
    return Forest(Task("q"), made, llm or FakeLLM(), limits=Limits(**limits), name="f", **options)


async def walk(forest: Forest, stream: Stream | None = None) -> Trajectory:
    """One session in `stream` (a new root by default)."""
    return await Session(forest, stream or Stream("0")).run()


async def fork(forest: Forest, base: Trajectory, call_id: CallId, name: str = "fork") -> Trajectory:
    """One further sample of a call of `base`, continued to its end."""
    return await walk(forest, Stream(name, base.stream, call_id))
