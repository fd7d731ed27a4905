"""Retrieval server: one index, many training processes.

    python -m verl_ext.tools.retrieval_server --index data/hotpotqa/index --port 8000

    POST /search {"queries": ["who ...", ...], "k": 5} -> {"hits": [[{"pid", "title", "text", "score"}, ...], ...]}
    GET  /health -> {"ready": true, "backend": "bm25", "passages": 22389}

The server batches the searches of concurrent clients. It answers malformed requests with 422 and {"error": ...}, too
large ones with 413, and with 503 while too many queries wait. A search whose client has disconnected is dropped unless
it has already begun.
"""

import argparse
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Annotated, Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field, StrictInt, StrictStr

from verl_ext.tools.base import ToolError
from verl_ext.tools.http.server import BodyLimit, address_of, listen, serve, while_connected
from verl_ext.tools.retrieval.batching import BatchedRetriever
from verl_ext.tools.retrieval.open import open_retriever
from verl_ext.tools.retrieval.types import MAX_K, MAX_QUERIES_PER_REQUEST, Hit, Retriever, encodable

MAX_BODY_BYTES = 16 * 1024 * 1024
# Queries that may wait for the retriever. Clients of more would have given up before their answers.
MAX_WAITING = 4096


class SearchRequest(BaseModel):
    """Body of POST /search."""

    model_config = ConfigDict(extra="forbid")
    queries: Annotated[list[StrictStr], Field(max_length=MAX_QUERIES_PER_REQUEST)]
    k: Annotated[StrictInt, Field(ge=1, le=MAX_K)] = 5


def create_app(retriever: Retriever, *, max_waiting: int = MAX_WAITING) -> FastAPI:
    """The server's application around any retriever. max_waiting: queries that may wait before it answers 503."""
    batched = BatchedRetriever(retriever)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        await batched.close()

    app = FastAPI(title="verl_ext retrieval server", lifespan=lifespan)
    app.add_middleware(BodyLimit, limit=MAX_BODY_BYTES, remedy="send fewer or shorter queries per request")

    @app.post("/search")
    async def search(request: SearchRequest, connection: Request) -> JSONResponse:
        if batched.waiting + len(request.queries) > max_waiting:
            error = f"{batched.waiting} queries wait already, at most {max_waiting} may; try again later."
            return JSONResponse({"error": error}, 503)
        lists = await while_connected(batched.search(request.queries, request.k), connection)
        if lists is None:
            return JSONResponse({"error": "the client has disconnected."}, 499)
        return JSONResponse({"hits": [[_as_json(hit) for hit in hits] for hits in lists]})

    @app.get("/health")
    async def health() -> dict[str, Any]:
        return {"ready": True, "backend": retriever.backend, "passages": len(retriever)}

    app.add_exception_handler(RequestValidationError, _malformed)
    return app


async def _malformed(_: Request, error: Any) -> JSONResponse:
    found = [f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors()[:5]]
    expected = (
        f'expected {{"queries": at most {MAX_QUERIES_PER_REQUEST} strings, "k": integer from 1 to {MAX_K}}}, '
        "as application/json"
    )
    return JSONResponse({"error": f"{'; '.join(found)}; {expected}."}, 422)


def _as_json(hit: Hit) -> dict[str, Any]:
    passage = hit.passage
    text = {"pid": passage.pid, "title": passage.title, "text": passage.text}
    return {**{key: encodable(value) for key, value in text.items()}, "score": hit.score}


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Command line of the server."""
    parser = argparse.ArgumentParser(prog="python -m verl_ext.tools.retrieval_server", description="Serve an index.")
    parser.add_argument("--index", required=True, help="folder of an index, or a corpus .jsonl (BM25 in memory)")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on; 0.0.0.0 for other machines too")
    parser.add_argument("--port", type=int, default=8000, help="0 takes a free one")
    parser.add_argument("--device", default=None, help="dense indexes: cpu, cuda, ... for the encoder")
    parser.add_argument("--index_device", default="cpu", help="dense indexes: cuda:0, ... searches on a GPU")
    parser.add_argument(
        "--batched_encoding", action="store_true", help="dense indexes: encode queries together; near ties may swap"
    )
    parser.add_argument("--ivf_probes", type=int, default=None, help="ivf indexes: cells searched; null: as built")
    parser.add_argument("--no_verify", action="store_true", help="do not compare the hashes of a large index")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Load the index, listen, serve until SIGINT or SIGTERM. Returns the exit status."""
    arguments = parse_arguments(argv)
    source = {"corpus" if arguments.index.endswith((".jsonl", ".jsonl.gz")) else "index": arguments.index}
    try:
        settings = {"device": arguments.device, "index_device": arguments.index_device}
        settings |= {"batch_invariant": not arguments.batched_encoding, "verify": not arguments.no_verify}
        settings["ivf_probes"] = arguments.ivf_probes
        retriever = open_retriever({**source, **settings})
        listener = listen(arguments.host, arguments.port)
    except (ValueError, ImportError, ToolError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    address = address_of(listener, arguments.host)
    print(f"{retriever.backend} index with {len(retriever)} passages at {address}")
    others = "mas.tools.search.index=null mas.tools.search.corpus=null"
    print(f"use it in a recipe: mas.tools.search.url={address} {others}", flush=True)
    serve(create_app(retriever), listener)
    return 0


if __name__ == "__main__":
    sys.exit(main())
