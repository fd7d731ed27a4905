"""The simulator in a configuration: settings, checks before a start, and the settings on which answers depend."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import closing
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from verl_ext.tools.chat import ChatEndpoint
from verl_ext.tools.settings import STRICT, AtLeastOne, NotNegative, options_from
from verl_ext.tools.simulator.cache import MAX_MB, MAX_ROWS, ResultCache
from verl_ext.tools.simulator.client import ATTEMPTS, HttpSimulator
from verl_ext.tools.simulator.client import TIMEOUT_S as CLIENT_TIMEOUT_S
from verl_ext.tools.simulator.player import MAX_TOKENS, TIMEOUT_S, RecordedResults, Simulator, check_mode
from verl_ext.tools.simulator.prompt import PROMPT_VERSION
from verl_ext.tools.threads import run_blocking

# Settings that may stand beside `url`; all others belong to the server.
WITH_URL = ("url", "timeout_s", "attempts", "check")


@dataclass(frozen=True, config=STRICT)
class SimulatorSettings:
    """Settings of `simulator`; null means the default.

    mode: record, replay or live, see player.py. In replay an `endpoint` is ignored, in live a `cache`.
    cache: file of the results.
    endpoint: base URL of the model's OpenAI-compatible server. model: its name there, null: the only one it serves.
    api_key_env: environment variable of the server's API key.
    template: arguments of the server's chat template, e.g. {enable_thinking: false}.
    concurrency: parallel requests. retries: attempts after a first failure.
    max_tokens: longest answer of the model.
    max_rows, max_mb: bounds of the cache. verify: check the whole file when it is opened.
    recorded: results of real calls, an object with `get(name, arguments)`.
    url: http://HOST:PORT of a simulator's server, instead of the settings above. attempts: per call, with `url`.
    timeout_s: seconds for a call, all attempts together.
    check: ask the model's or the simulator's server before a start whether it answers.
    """

    mode: Literal["record", "replay", "live"] = "record"
    cache: str | None = None
    endpoint: str | None = None
    model: str | None = None
    api_key_env: str = "OPENAI_API_KEY"
    template: Any = None
    concurrency: AtLeastOne = 32
    retries: NotNegative = 2
    max_tokens: AtLeastOne = MAX_TOKENS
    max_rows: AtLeastOne = MAX_ROWS
    max_mb: AtLeastOne = MAX_MB
    verify: bool = True
    recorded: Any = None
    url: str | None = None
    attempts: AtLeastOne = ATTEMPTS
    timeout_s: Annotated[float, Field(gt=0)] | None = None
    check: bool = True

    def __post_init__(self) -> None:
        if self.url is not None:
            others = {field.name for field in fields(self) if getattr(self, field.name) != field.default}
            wrong = sorted(others - set(WITH_URL))
            if wrong:
                raise ValueError(
                    f"with url={self.url} the server has its own {', '.join(wrong)}. Remedy: give them to the "
                    "server (python -m verl_ext.tools.simulator_server), or no url."
                )
            return
        check_mode(self.mode, self.cache is not None, self.endpoint is not None)
        if self.endpoint is not None and not self.endpoint.startswith(("http://", "https://")):
            raise ValueError(f"endpoint={self.endpoint!r} must be a base URL, e.g. http://127.0.0.1:8100/v1.")


def read_settings(settings: Mapping[str, Any]) -> SimulatorSettings:
    """The typed settings. Raises ValueError for unknown or inconsistent ones."""
    return options_from(SimulatorSettings, settings, "settings of the simulator")


def simulator(**settings: Any) -> Simulator | HttpSimulator:
    """A back end of `tool_call` that simulates every tool; `settings` are those of SimulatorSettings.

    In a recipe: mas.tools.tool_call.backend: {_target_: verl_ext.tools.simulator.simulator, mode: record, …}.

    Raises:
        ValueError: a setting is unknown or wrong, or the cache cannot be used.
    """
    given = read_settings(settings)
    if given.url is not None:
        return HttpSimulator(given.url, timeout_s=given.timeout_s or CLIENT_TIMEOUT_S, attempts=given.attempts)
    if given.recorded is not None and not isinstance(given.recorded, RecordedResults):
        raise ValueError(f"simulator: recorded must have get(name, arguments), given {type(given.recorded).__name__}.")
    return Simulator(
        mode=given.mode,
        cache=None if given.mode == "live" else _cache(given),
        chat=None if given.mode == "replay" else _chat(given),
        recorded=given.recorded,
        max_tokens=given.max_tokens,
        timeout_s=given.timeout_s or TIMEOUT_S,
    )


def _cache(given: SimulatorSettings) -> ResultCache:
    bounds = {"max_rows": given.max_rows, "max_mb": given.max_mb, "verify": given.verify}
    return ResultCache(given.cache, writable=given.mode == "record", **bounds)


def _chat(given: SimulatorSettings) -> ChatEndpoint:
    return ChatEndpoint(
        given.endpoint,
        given.model,
        api_key_env=given.api_key_env,
        concurrency=given.concurrency,
        timeout=given.timeout_s or TIMEOUT_S,
        retries=given.retries,
        template=given.template,
        setting=("endpoint", "model"),
    )


def preflight(**settings: Any) -> None:
    """Check before a start that the model's or the simulator's server answers and that the cache is usable.

    No file is created: for a cache that does not exist yet, only its folder is checked.

    Raises:
        ValueError: a setting, the cache or the model's server is not usable.
        ToolError: the simulator's server does not answer.
    """
    given = read_settings(settings)
    if given.url is not None:
        if given.check:
            HttpSimulator(given.url, attempts=given.attempts).health()
        return
    if given.mode != "live" and given.cache is not None:
        if given.mode == "replay" or Path(given.cache).exists():
            _cache(given).close()
        else:
            _check_folder(Path(given.cache))
    if given.mode != "replay" and given.check:
        run_blocking(_find_model(_chat(given)))


def identity(**settings: Any) -> dict[str, Any]:
    """The settings on which answers depend. With `url` none are known; `record` still changes the cache's content."""
    given = read_settings(settings)
    if given.url is not None:
        return {}
    common = {"mode": given.mode, "prompt": PROMPT_VERSION}
    if given.mode == "replay":
        with closing(_cache(given)) as cache:
            return common | {"cache": cache.content()}
    return common | {"model": given.model, "template": dict(given.template or {}), "max_tokens": given.max_tokens}


def recorded(first: int = -1, **settings: Any) -> dict[str, Any] | None:
    """How many results the cache of a recording simulator holds, and the hash of the `first` of them (-1: of all).

    None: nothing is recorded here, or nothing yet.
    """
    given = read_settings(settings)
    if given.mode != "record" or given.cache is None or not Path(given.cache).exists():
        return None
    with closing(ResultCache(given.cache, writable=False, verify=False)) as cache:
        return {"results": cache.info()["results"], "content": cache.content(first)}


# A run calls `preflight` before it starts. A resumed evaluation compares `identity`: are the answers still the same?
simulator.preflight = preflight
simulator.identity = identity
# A checkpoint holds what was `recorded`: is it in the cache of the run that continues?
simulator.recorded = recorded


def _check_folder(path: Path) -> None:
    folder = next(parent for parent in path.absolute().parents if parent.exists())
    if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        raise ValueError(f"the cache {path} cannot be made: {folder} cannot be written. Remedy: another path.")


async def _find_model(chat: ChatEndpoint) -> str:
    try:
        return await chat.find_model()
    finally:
        await chat.close()
