"""Simulator server: one model and one cache, many workers.

    python -m verl_ext.tools.simulator_server --catalogue openapi:data/tmdb_oas.json --cache data/simulator.db \\
        --endpoint http://127.0.0.1:8100/v1 --port 8200

    POST /call {"tool": "GET /search/movie", "arguments": {"query": "Titanic"}} -> {"result": ..., "source": "cache"}
    GET  /health -> {"ready": true, "mode": "record", "tools": 54, "counters": {"hits": 0, ...}, "cache": {...}, ...}

`source` is cache, recorded (a real call) or model. Errors are {"error": text, "kind": word}; docs/simulator.md lists
them with their statuses. If a client disconnects, its call is finished all the same, and the result is stored.
"""

import argparse
import json
import sys
from collections.abc import Collection, Sequence
from typing import Any

import yaml
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, ConfigDict, StrictStr

from verl_ext.arguments import exit_status
from verl_ext.tools.base import ToolError
from verl_ext.tools.catalogue import Catalogue, Recorded, load_catalogue
from verl_ext.tools.catalogue.types import NOT_RECORDED, CallError
from verl_ext.tools.http.guard import refusal
from verl_ext.tools.http.server import add_address, address_of, application, body_of, listen, serve, while_connected
from verl_ext.tools.retrieval.types import encodable
from verl_ext.tools.simulator.player import Busy, Simulator
from verl_ext.tools.simulator.settings import simulator as make_simulator

# Arguments may have 32 Ki characters, each of up to six bytes as JSON.
MAX_BODY_BYTES = 256 * 1024
MAX_ERROR_CHARS = 4000
EXPECTED = '{"tool": text, "arguments": object, "version": text or nothing}'
# Options that are passed to `simulator`.
SETTINGS = ("mode", "cache", "endpoint", "model", "api_key_env", "template", "concurrency", "retries", "max_tokens")
SETTINGS += ("timeout_s", "max_rows", "max_mb")


class CallRequest(BaseModel):
    """Body of POST /call. version: the caller's `ToolSpec.version`, compared with the server's if it is given."""

    model_config = ConfigDict(extra="forbid")
    tool: StrictStr
    arguments: Any = {}
    version: StrictStr | None = None


def create_app(
    simulator: Simulator, catalogue: Catalogue, hosts: Collection[str] = (), *, max_waiting: int | None = None
) -> FastAPI:
    """The server's application. The simulator is closed with it.

    max_waiting: calls that may wait for the model; by default twice as many as are asked at a time, so that a call
        that is taken is answered within the client's time limit.
    hosts: names under which clients may ask it, beside localhost and the machine's.
    """
    if simulator.chat is not None:
        simulator.max_waiting = max_waiting or 2 * simulator.chat.concurrency
    app = application("verl_ext simulator server", simulator.close, MAX_BODY_BYTES, "send shorter arguments", hosts)

    @app.post("/call")
    async def call(connection: Request) -> Response:
        request = await body_of(connection, CallRequest, EXPECTED)
        spec = catalogue.get(request.tool)
        if spec is None:
            return _refusal(404, "unknown_tool", f"there is no tool {request.tool!r:.100} in the server's catalogue.")
        if request.version not in (None, spec.version):
            return _refusal(
                409,
                "other_version",
                f"tool {spec.name!r} is another version here ({spec.version}, the caller's is "
                f"{request.version:.40}). Remedy: start the server with the catalogue of the run.",
            )
        return await _answer(simulator, spec, request.arguments, connection)

    @app.get("/health")
    async def health() -> dict[str, Any]:
        model = simulator.chat.model if simulator.chat else None
        about = {"ready": True, "mode": simulator.mode, "model": model, "waiting": simulator.waiting}
        about |= {"tools": len(catalogue), "catalogue": catalogue.version}
        cache = simulator.cache.info() if simulator.cache else None
        return {**about, "counters": simulator.counters.as_dict(), "cache": cache}

    return app


async def _answer(simulator: Simulator, spec: Any, arguments: Any, connection: Request) -> Response:
    try:
        served = await while_connected(simulator.serve(spec, arguments), connection)
    except CallError as error:
        return _refusal(404 if error.kind == NOT_RECORDED else 422, error.kind, str(error))
    except Busy as error:
        return _refusal(503, "busy", str(error))
    except ToolError as error:
        return _refusal(424, "failed", str(error))
    if served is None:
        return _refusal(499, "gone", "the client has gone.")
    content = f'{{"result":{served.text},"source":"{served.source}"}}'
    return Response(content.encode(), media_type="application/json")


def _refusal(status: int, kind: str, error: str) -> JSONResponse:
    return refusal(status, encodable(error[:MAX_ERROR_CHARS]), kind)


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Command line of the server."""
    parser = argparse.ArgumentParser(prog="python -m verl_ext.tools.simulator_server", description="Simulate tools.")
    parser.add_argument(
        "--catalogue",
        required=True,
        nargs="+",
        help="tools: KIND:FILE (openapi:data/tmdb_oas.json), several of them, or a .yaml with a list of sources",
    )
    parser.add_argument("--mode", choices=("record", "replay", "live"), help="by default record")
    parser.add_argument("--cache", help="file of the results (record, replay); made if there is none")
    parser.add_argument(
        "--endpoint", help="base URL of the model's server (record, live), e.g. http://127.0.0.1:8100/v1"
    )
    parser.add_argument("--model", help="its name there; by default the only one that it serves")
    parser.add_argument("--api_key_env", help="environment variable of the API key, by default OPENAI_API_KEY")
    parser.add_argument(
        "--template", type=json.loads, help="JSON for the chat template: '{\"enable_thinking\": false}'"
    )
    parser.add_argument("--concurrency", type=int, help="requests to the model at a time (32)")
    parser.add_argument("--retries", type=int, help="attempts after a first failure (2)")
    parser.add_argument("--max_tokens", type=int, help="longest answer of the model (1024)")
    parser.add_argument("--timeout_s", type=float, help="seconds for a call, all attempts together (25)")
    parser.add_argument("--max_rows", type=int, help="most results in the cache (1,000,000)")
    parser.add_argument("--max_mb", type=int, help="most MiB in the cache (1024)")
    parser.add_argument(
        "--recorded",
        nargs="+",
        help="results of real calls, served first: API-Bank's files, StableToolBench's tool_response_cache",
    )
    parser.add_argument("--no_verify", action="store_true", help="do not check a large cache when it is opened")
    add_address(parser, 8200)
    return parser.parse_args(argv)


def sources_of(given: Sequence[str]) -> list[dict[str, Any]]:
    """`--catalogue` as the sources of `load_catalogue`.

    Raises:
        ValueError: neither KIND:FILE nor a .yaml file with a list.
    """
    sources: list[dict[str, Any]] = []
    for value in given:
        kind, colon, path = value.partition(":")
        if colon:
            sources.append({"kind": kind, "path": path})
            continue
        try:
            with open(value) as file:
                listed = yaml.safe_load(file)
        except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
            raise ValueError(f"--catalogue {value}: neither KIND:FILE nor a YAML file ({error!s:.200}).") from error
        if not isinstance(listed, list):
            raise ValueError(
                f"--catalogue {value}: expected a list of sources, e.g. [{{kind: openapi, path: oas.json}}]."
            )
        sources += listed
    return sources


def overrides(address: str) -> str:
    """The overrides with which a recipe that has its own simulator asks this server instead."""
    place = "mas.tools.tool_call.backend"
    return " ".join([f"{place}.url={address}", *(f"{place}.{name}=null" for name in ("mode", "cache", "endpoint"))])


def run(arguments: argparse.Namespace) -> None:
    """Load the catalogue, open the cache, listen, serve until SIGINT or SIGTERM."""
    settings = {name: getattr(arguments, name) for name in SETTINGS}
    make_simulator.preflight(**settings, verify=not arguments.no_verify)
    catalogue = load_catalogue(sources_of(arguments.catalogue))
    recorded = Recorded.load(arguments.recorded, catalogue.values()) if arguments.recorded else None
    listener = listen(arguments.host, arguments.port)
    simulator = make_simulator(**settings, verify=False, recorded=recorded)
    address = address_of(listener, arguments.host)
    print(f"simulator of {len(catalogue)} tools, mode {simulator.mode}, at {address}")
    print(f"use it in a recipe: {overrides(address)}", flush=True)
    serve(create_app(simulator, catalogue, arguments.allowed_hosts), listener)


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit status; user errors are printed without a traceback."""
    arguments = parse_arguments(argv)
    return exit_status(lambda: run(arguments))


if __name__ == "__main__":
    sys.exit(main())
