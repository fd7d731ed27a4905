"""The tool by which agents run Python: one program, in a sandbox, and what it printed.

    await run_python(program="print(sum(range(10)))")     "45"
    await run_python(program="1 / 0")                     "Traceback (most recent call last): …"
    await run_python(program="while True: pass")          "[The program was ended after 2 s of CPU time.]"

Whatever a model wrote is answered. What is wrong with the sandbox itself is a ToolError.
"""

from __future__ import annotations

import asyncio
import platform
from collections import Counter, OrderedDict
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, fields
from typing import Any

from verl_ext.tools.base import Tool, ToolError
from verl_ext.tools.retrieval.types import options_from
from verl_ext.tools.sandbox.forkserver import NoSandbox, ServerLost
from verl_ext.tools.sandbox.jail.limits import Limits
from verl_ext.tools.sandbox.pool import Pool
from verl_ext.tools.sandbox.report import OUTCOMES, WALL, Report, report

MAX_PROGRAM = 100_000
RUNS, CACHED, REFUSED, RESTARTS = "runs", "cached", "refused", "restarts"
# setting -> (least value, is it a whole number)
LEAST = {
    "workers": (1, True), "cache": (0, True), "max_output": (200, True), "cpu_s": (1, True), "wall_s": (0.1, False),
    "memory_mb": (64, True), "threads": (0, True), "files": (0, True), "file_mb": (1, True),
}  # fmt: skip
REMEDY = (
    "Remedy: run on a machine that has it; or, only for programs that you trust as your own, set unprotected=true: "
    "then programs can read and write the files of this user, use the network and start processes"
)


@dataclass(frozen=True)
class Settings(Limits):
    """Settings of `run_python`: those of Limits, and

    workers: programs at a time.
    max_output: characters of what a program printed that the model is shown.
    cache: programs whose results are kept; 0: every call runs its program.
    unprotected: run programs without the locks, limits alone. For machines without the locks, and trusted programs.
    """

    workers: int = 8
    max_output: int = 4000
    cache: int = 0
    unprotected: bool = False

    def __post_init__(self) -> None:
        for name, (least, whole) in LEAST.items():
            value = getattr(self, name)
            right = isinstance(value, int if whole else int | float) and not isinstance(value, bool)
            if not right or not value >= least:
                kind = "an integer" if whole else "a number"
                raise ValueError(f"run_python: {name} must be {kind} >= {least}, given {value!r}")
        if not isinstance(self.unprotected, bool):
            raise ValueError(f"run_python: unprotected must be true or false, given {self.unprotected!r}")

    @property
    def limits(self) -> Limits:
        """Those of one program."""
        return Limits(**{field.name: getattr(self, field.name) for field in fields(Limits)})


class RunPython(Tool):
    """Runs programs that models wrote.

    Args:
        settings: limits and the rest.
    """

    name = "run_python"

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._limits = settings.limits
        self._pool: Pool | None = None
        self._kept: OrderedDict[str, str] = OrderedDict()
        self._running: dict[str, _Shared] = {}
        self._counts: Counter[str] = Counter(dict.fromkeys((RUNS, CACHED, REFUSED, RESTARTS, *OUTCOMES), 0))

    async def __call__(self, program: Any = None) -> str:  # type: ignore[override]
        """What `program` printed, and how it ended if not as it should.

        Args:
            program: Python source, as the agent wrote it, whatever it is.

        Raises:
            ToolError: the sandbox could not run it.
        """
        if not isinstance(program, str) or len(program) > MAX_PROGRAM:
            self._counts[REFUSED] += 1
            given = f"{len(program):,} characters" if isinstance(program, str) else type(program).__name__
            return f"[Nothing was run: program must be Python of at most {MAX_PROGRAM:,} characters, given {given}.]"
        if not self.settings.cache:
            return (await self._run(program)).text
        if program in self._kept:
            self._counts[CACHED] += 1
            self._kept.move_to_end(program)
            return self._kept[program]
        return await self._shared(program)

    def counts(self) -> dict[str, int]:
        """Programs run, results from the cache, programs refused, servers replaced, and programs by OUTCOMES."""
        return dict(self._counts) | {RESTARTS: self._counts[RESTARTS] + (self._pool.restarts if self._pool else 0)}

    async def close(self) -> None:
        """Kill what runs and the server. The next call would start another."""
        pool, self._pool = self._pool, None
        if pool is not None:
            self._counts[RESTARTS] += pool.restarts
            await pool.close()

    async def start(self) -> None:
        """Start the server, which the first call does otherwise.

        Raises:
            ToolError: the sandbox cannot be had.
        """
        try:
            await self._here().start()
        except (NoSandbox, ServerLost) as error:
            raise self._failure(error) from error

    async def _shared(self, program: str) -> str:
        """The result of `program`, run once for all who ask for it meanwhile; killed when the last gives up."""
        self._here()
        shared = self._running.get(program)
        if shared is None:
            shared = self._running[program] = _Shared(asyncio.ensure_future(self._run(program)))
        else:
            self._counts[CACHED] += 1
        shared.waiting += 1
        try:
            done = await asyncio.shield(shared.task)
        finally:
            shared.waiting -= 1
            if not shared.waiting:
                shared.task.cancel()
                if self._running.get(program) is shared:
                    del self._running[program]
        if WALL not in done.outcomes:  # how long it takes depends on what else the machine does
            self._kept[program] = done.text
            while len(self._kept) > self.settings.cache:
                self._kept.popitem(last=False)
        return done.text

    async def _run(self, program: str) -> Report:
        pool = self._here()
        try:
            run, ended = await pool.run(program.encode("utf-8", "surrogatepass"), keep=4 * self.settings.max_output)
        except (NoSandbox, ServerLost, OSError) as error:
            raise self._failure(error) from error
        done = report(run, ended, self._limits, self.settings.max_output)
        self._counts[RUNS] += 1
        self._counts.update(done.outcomes)
        return done

    def _here(self) -> Pool:
        """The pool of this event loop."""
        loop = asyncio.get_running_loop()
        if self._pool is None or self._pool.loop is not loop:
            if self._pool is not None:
                self._counts[RESTARTS] += self._pool.restarts
                self._pool.abandon()
            self._running = {}
            self._pool = Pool(self._limits, self.settings.workers, not self.settings.unprotected)
        return self._pool

    def _failure(self, error: Exception) -> ToolError:
        return ToolError(f"run_python: {error}." + (f" {REMEDY}." if isinstance(error, NoSandbox) else ""))


class _Shared:
    """A run that several wait for."""

    def __init__(self, task: asyncio.Future[Report]):
        self.task, self.waiting = task, 0


def run_python(**settings: Any) -> RunPython:
    """The run_python of a recipe (`mas.tools.run_python`); `settings` are those of Settings.

    Raises:
        ValueError: a setting is unknown or wrong.
    """
    return RunPython(_read(settings))


def _preflight(**settings: Any) -> None:
    """Settings, and a sandbox that was really tried."""
    read = _read(settings)

    async def tried() -> None:
        tool = RunPython(read)
        try:
            await tool.start()
        except ToolError as error:
            raise ValueError(str(error)) from error
        finally:
            await tool.close()

    with ThreadPoolExecutor(max_workers=1) as executor:  # a thread, because a loop may be running in this one
        executor.submit(asyncio.run, tried()).result()


def _identity(**settings: Any) -> dict[str, Any]:
    read = _read(settings)
    return asdict(read.limits) | {"max_output": read.max_output, "python": platform.python_version()}


# A run asks this before it starts anything; an evaluation that goes on asks the other: are the answers still the same?
run_python.preflight = _preflight
run_python.identity = _identity


def _read(settings: Mapping[str, Any]) -> Settings:
    given = {key: value for key, value in settings.items() if value is not None}
    return options_from(Settings, given, "settings of run_python")
