"""Retrieval server: one index, many training processes.

    python -m verl_ext.tools.retrieval_server --index data/hotpotqa/index --port 8000

    POST /search {"queries": ["who ...", ...], "k": 5} -> {"hits": [[{"pid", "title", "text", "score"}, ...], ...]}
    GET  /health -> {"ready": true, "backend": "bm25", "passages": 22389}

The server batches the searches of concurrent clients. Errors are {"error": text, "kind": word}: 422 `malformed`, 503
`busy` while too many queries wait, and those of every server (http/guard.py). A search whose client has disconnected is
dropped unless it has already begun.
"""

import argparse
import sys
from collections.abc import Collection, Sequence
from typing import Annotated, Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field, StrictInt, StrictStr

from verl_ext.arguments import exit_status
from verl_ext.tools.http.guard import refusal
from verl_ext.tools.http.server import add_address, address_of, application, body_of, listen, serve, while_connected
from verl_ext.tools.retrieval.batching import BatchedRetriever
from verl_ext.tools.retrieval.open import open_retriever
from verl_ext.tools.retrieval.types import MAX_K, MAX_QUERIES_PER_REQUEST, Hit, Retriever, encodable

MAX_BODY_BYTES = 16 * 1024 * 1024
# Queries that may wait for the retriever. Clients of others ask again after a second, without a limit. Those that wait
# here are answered within their clients' 15 s by a retriever of 40 queries per second or more.
MAX_WAITING = 512
EXPECTED = f'{{"queries": at most {MAX_QUERIES_PER_REQUEST} strings, "k": integer from 1 to {MAX_K}}}'


class SearchRequest(BaseModel):
    """Body of POST /search."""

    model_config = ConfigDict(extra="forbid")
    queries: Annotated[list[StrictStr], Field(max_length=MAX_QUERIES_PER_REQUEST)]
    k: Annotated[StrictInt, Field(ge=1, le=MAX_K)] = 5


def create_app(retriever: Retriever, *, max_waiting: int = MAX_WAITING, hosts: Collection[str] = ()) -> FastAPI:
    """The server's application around any retriever.

    Args:
        max_waiting: queries that may wait before it answers 503.
        hosts: names under which clients may ask it, beside localhost and the machine's.
    """
    batched = BatchedRetriever(retriever)
    remedy = "send fewer or shorter queries per request"
    app = application("verl_ext retrieval server", batched.close, MAX_BODY_BYTES, remedy, hosts)

    @app.post("/search")
    async def search(connection: Request) -> JSONResponse:
        request = await body_of(connection, SearchRequest, EXPECTED)
        if batched.waiting + len(request.queries) > max_waiting:
            error = f"{batched.waiting} queries wait already, at most {max_waiting} may; try again later."
            return refusal(503, error, "busy")
        lists = await while_connected(batched.search(request.queries, request.k), connection)
        if lists is None:
            return refusal(499, "the client has disconnected.", "gone")
        return JSONResponse({"hits": [[_as_json(hit) for hit in hits] for hits in lists]})

    @app.get("/health")
    async def health() -> dict[str, Any]:
        return {"ready": True, "backend": retriever.backend, "passages": len(retriever)}

    return app


def _as_json(hit: Hit) -> dict[str, Any]:
    return {**{key: encodable(value) for key, value in vars(hit.passage).items()}, "score": hit.score}


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Command line of the server."""
    parser = argparse.ArgumentParser(prog="python -m verl_ext.tools.retrieval_server", description="Serve an index.")
    parser.add_argument("--index", required=True, help="folder of an index, or a corpus .jsonl (BM25 in memory)")
    add_address(parser, 8000)
    parser.add_argument("--device", default=None, help="dense indexes: cpu, cuda, ... for the encoder")
    parser.add_argument("--index_device", default="cpu", help="dense indexes: cuda:0, ... searches on a GPU")
    parser.add_argument(
        "--batched_encoding", action="store_true", help="dense indexes: encode queries together; near ties may swap"
    )
    parser.add_argument("--ivf_probes", type=int, default=None, help="ivf indexes: cells searched; null: as built")
    parser.add_argument("--no_verify", action="store_true", help="do not compare the hashes of a large index")
    return parser.parse_args(argv)


def run(arguments: argparse.Namespace) -> None:
    """Load the index, listen, serve until SIGINT or SIGTERM."""
    settings = {name: getattr(arguments, name) for name in ("device", "index_device", "ivf_probes")}
    settings |= {"batch_invariant": not arguments.batched_encoding, "verify": not arguments.no_verify}
    settings["corpus" if arguments.index.endswith((".jsonl", ".jsonl.gz")) else "index"] = arguments.index
    retriever = open_retriever(settings)
    listener = listen(arguments.host, arguments.port)
    address = address_of(listener, arguments.host)
    print(f"{retriever.backend} index with {len(retriever)} passages at {address}")
    others = "mas.tools.search.index=null mas.tools.search.corpus=null"
    print(f"use it in a recipe: mas.tools.search.url={address} {others}", flush=True)
    serve(create_app(retriever, hosts=arguments.allowed_hosts), listener)


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit status; user errors are printed without a traceback."""
    arguments = parse_arguments(argv)
    return exit_status(lambda: run(arguments))


if __name__ == "__main__":
    sys.exit(main())
