"""The tool with which agents run Python: one program in a sandbox; the answer is what it printed.

    await run_python(program="print(sum(range(10)))")     "45"
    await run_python(program="1 / 0")                     "Traceback (most recent call last): …"
    await run_python(program="while True: pass")          "[The program was ended after 2 s of CPU time.]"

Every program gets an answer. Failures of the sandbox itself are ToolErrors.
"""

from __future__ import annotations

import asyncio
import platform
from collections import Counter, OrderedDict
from dataclasses import asdict, fields
from typing import Annotated, Any

from pydantic import Field
from pydantic.dataclasses import dataclass

from verl_ext.tools.base import Tool, ToolError
from verl_ext.tools.sandbox.forkserver import NoSandbox, ServerLost
from verl_ext.tools.sandbox.jail.limits import Limits
from verl_ext.tools.sandbox.pool import Pool
from verl_ext.tools.sandbox.report import CRASHES, OUTCOMES, WALL, Report, report
from verl_ext.tools.settings import STRICT, AtLeastOne, NotNegative, options_from
from verl_ext.tools.threads import run_blocking
from verl_ext.tools.time_limits import not_counted

MAX_PROGRAM = 100_000
RUNS, CACHED, REFUSED, RESTARTS = "runs", "cached", "refused", "restarts"
REMEDY = (
    "Remedy: run on a machine that has it; or, only for programs that you trust like your own, set unprotected=true: "
    "then programs can read and write the files of this user, use the network and start processes"
)


@dataclass(frozen=True, config=STRICT)
class Settings(Limits):
    """Settings of `run_python`: the fields of Limits, with their least values, and

    workers: programs that run at a time.
    max_output: how many characters of a program's output the model sees.
    cache: programs whose results are kept; 0: every call runs its program.
    unprotected: apply the limits, but not the locks. For machines without the locks, and trusted programs.
    """

    cpu_s: AtLeastOne = Limits.cpu_s
    wall_s: Annotated[float, Field(ge=0.1)] = Limits.wall_s
    memory_mb: Annotated[int, Field(ge=64)] = Limits.memory_mb
    threads: NotNegative = Limits.threads
    files: NotNegative = Limits.files
    file_mb: AtLeastOne = Limits.file_mb
    workers: AtLeastOne = 8
    max_output: Annotated[int, Field(ge=200)] = 4000
    cache: NotNegative = 0
    unprotected: bool = False

    @property
    def limits(self) -> Limits:
        """The limits of one program."""
        return Limits(**{field.name: getattr(self, field.name) for field in fields(Limits)})


class RunPython(Tool):
    """Runs programs that models wrote. In a recipe: `mas.tools.run_python`, with the settings of `Settings`.

    Raises:
        ValueError: a setting is unknown or wrong.
    """

    name = "run_python"

    def __init__(self, **settings: Any) -> None:
        self.settings = options_from(Settings, settings, "settings of run_python")
        self._limits = self.settings.limits
        self._pool: Pool | None = None
        self._kept: OrderedDict[str, str] = OrderedDict()
        self._running: dict[str, _Shared] = {}
        self._counts: Counter[str] = Counter(dict.fromkeys((RUNS, CACHED, REFUSED, RESTARTS, *OUTCOMES), 0))

    async def __call__(self, program: Any = None) -> str:  # type: ignore[override]
        """What `program` printed, and a note if a limit or an error ended it.

        Args:
            program: Python source; of any type, because the agent wrote it.

        Raises:
            ToolError: the sandbox could not run it.
        """
        if not isinstance(program, str) or len(program) > MAX_PROGRAM:
            self._counts[REFUSED] += 1
            given = f"{len(program):,} characters" if isinstance(program, str) else type(program).__name__
            return f"[Nothing was run: program must be Python of at most {MAX_PROGRAM:,} characters, given {given}.]"
        if program in self._kept:
            self._counts[CACHED] += 1
            self._kept.move_to_end(program)
            return self._kept[program]
        with not_counted():  # a program has a limit of its own, from when it has a worker
            return await self._shared(program) if self.settings.cache else (await self._run(program)).text

    def counts(self) -> dict[str, int]:
        """Programs run, results from the cache, programs refused, servers replaced, and how often each of OUTCOMES."""
        return dict(self._counts) | {RESTARTS: self._counts[RESTARTS] + (self._pool.restarts if self._pool else 0)}

    async def close(self) -> None:
        """Kill the running programs and the server. A later call starts a new server."""
        pool, self._pool = self._pool, None
        if pool is not None:
            self._counts[RESTARTS] += pool.restarts
            await pool.close()

    async def start(self) -> None:
        """Start the server now instead of at the first call.

        Raises:
            ToolError: this machine cannot run the sandbox.
        """
        try:
            await self._here().start()
        except (NoSandbox, ServerLost) as error:
            raise self._failure(error) from error

    @classmethod
    def preflight(cls, **settings: Any) -> None:
        """Check the settings, and start a sandbox. Raises ValueError."""
        tool = cls(**settings)

        async def start() -> None:
            try:
                await tool.start()
            except ToolError as error:
                raise ValueError(str(error)) from error
            finally:
                await tool.close()

        run_blocking(start())

    @classmethod
    def identity(cls, **settings: Any) -> dict[str, Any]:
        """What the answers depend on."""
        read = cls(**settings).settings
        return asdict(read.limits) | {"max_output": read.max_output, "python": platform.python_version()}

    async def _shared(self, program: str) -> str:
        """The result of `program`, which runs once for all concurrent callers. It is killed if all of them cancel."""
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
        if not {WALL, CRASHES} & set(done.outcomes):  # these depend on the load and the memory of the machine
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
    """A run with several callers."""

    def __init__(self, task: asyncio.Future[Report]):
        self.task, self.waiting = task, 0


run_python = RunPython  # as configurations name it
