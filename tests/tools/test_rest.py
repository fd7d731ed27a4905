"""Operations of an OpenAPI document, called on a real server that is made from the same document."""

from __future__ import annotations

import asyncio
import gzip
import json
from pathlib import Path

import pytest
import yaml
from hydra.utils import instantiate
from omegaconf import OmegaConf
from starlette.responses import JSONResponse, Response

from tests.helpers import forest_of, walk
from tests.public_data import SHARED
from tests.tools.openapi_server import Api, serving
from verl_ext.mas import Status, ToolFailed
from verl_ext.tools.base import ToolError, ToolRefused
from verl_ext.tools.catalogue import Catalogue, Toolbox, load_catalogue
from verl_ext.tools.catalogue.formats.openapi_requests import Place, Request
from verl_ext.tools.catalogue.toolbox import tool_call
from verl_ext.tools.catalogue.types import CallError
from verl_ext.tools.http.client import Refused
from verl_ext.tools.rest import rest
from verl_ext.tools.rest.reading import ServerFailed
from verl_ext.tools.rest.writing import written

RESTBENCH = SHARED / "tools" / "restbench"
KEY = "s3cret+/key"
DOCUMENT = yaml.safe_load("""
openapi: 3.0.3
info: {title: Trees, version: "1"}
servers: [{url: "https://{zone}.trees.example/v1", variables: {zone: {default: eu}}}]
security: [{key: []}]
paths:
  /trees/{id}:
    parameters: [{name: id, in: path, required: true, schema: {type: string}}]
    get:
      summary: Get a tree
      parameters:
        - {name: lang, in: query, required: true, schema: {type: string}}
        - {name: kinds, in: query, explode: false, schema: {type: array, items: {type: string}}}
        - {name: near, in: query, schema: {type: array, items: {type: number}}}
        - {name: size, in: query, style: deepObject, schema: {type: object}}
        - {name: old, in: query, schema: {type: boolean}}
        - {name: X-Depth, in: header, schema: {type: integer}}
        - {name: seen, in: cookie, schema: {type: string}}
      responses:
        200: {description: ok, content: {application/json: {schema: {$ref: "#/components/schemas/Tree"}}}}
    put:
      parameters: [{name: body, in: query, schema: {type: boolean}}]
      requestBody: {required: true, content: {application/json: {schema: {$ref: "#/components/schemas/Tree"}}}}
      responses: {204: {description: done}}
  /forests:
    get:
      security: []
      responses: {200: {description: ok, content: {application/json: {schema: {type: array, items: {type: string}}}}}}
components:
  securitySchemes: {key: {type: apiKey, in: query, name: api_key}}
  schemas: {Tree: {type: object, required: [name], properties: {name: {type: string, example: Oak}}}}
""")
GET, PUT, FORESTS = "GET /trees/{id}", "PUT /trees/{id}", "GET /forests"
TREE = {"id": "1", "lang": "en"}


@pytest.fixture
def api(monkeypatch):
    monkeypatch.setenv("TREES_KEY", KEY)
    with serving(DOCUMENT, KEY) as made:
        yield made


@pytest.fixture
def catalogue(tmp_path) -> Catalogue:
    path = tmp_path / "trees.json"
    path.write_text(json.dumps(DOCUMENT))
    return load_catalogue([{"kind": "openapi", "path": str(path)}])


def call(catalogue, *calls, **settings):
    """The toolbox's answers to (name, arguments), one after the other; an exception in place of the failed one."""
    settings = {"key_env": "TREES_KEY", "allow_private": True, **settings}

    async def run():
        toolbox, answers = Toolbox(catalogue, rest(**settings)), []
        for name, arguments in calls:
            try:
                answers.append(await toolbox(name=name, arguments=arguments))
            except ToolError as error:
                answers.append(error)
        counts = toolbox.counts()
        await toolbox.close()
        return answers, counts

    return asyncio.run(run())


def test_arguments_go_where_the_document_says(api, catalogue):
    nasty = "../x?api_key=1#/ä"
    arguments = {"id": nasty, "lang": "a&lang=b", "kinds": ["a,b", "c"], "near": [1, 2.5], "old": False}
    arguments |= {"size": {"min": 3}, "X-Depth": 2, "seen": "a;b"}
    (answer,), _ = call(catalogue, (GET, arguments), server=api.url)
    assert answer == {"ok": True, "result": {"name": "Oak"}}
    (asked,) = api.asked
    path, query = asked["target"].split("?")
    assert path == "/trees/..%2Fx%3Fapi_key%3D1%23%2F%C3%A4"
    assert query.split("&") == [
        *("lang=a%26lang%3Db", "kinds=a%2Cb,c", "near=1", "near=2.5", "size[min]=3", "old=false"),
        "api_key=s3cret%2B%2Fkey",
    ]
    assert asked["headers"]["x-depth"] == "2" and asked["headers"]["cookie"] == "seen=a%3Bb"


def test_a_body_is_sent_only_where_the_settings_allow_the_method(api, catalogue):
    change = (PUT, {"id": "1", "body": {"name": "Elm ä"}, "body_query": True})
    (refused,), _ = call(catalogue, change, server=api.url)
    assert refused["kind"] == "tool_error" and "only GET" in refused["error"] and not api.asked
    (answer, wrong), _ = call(catalogue, change, (PUT, {"id": "1", "body": {}}), server=api.url, methods=["PUT"])
    assert answer == {"ok": True, "result": None} and wrong["kind"] == "bad_arguments"
    assert json.loads(api.asked[0]["body"]) == {"name": "Elm ä"} and "body=true" in api.asked[0]["target"]
    assert api.asked[0]["headers"]["content-type"] == "application/json" and len(api.asked) == 1


@pytest.mark.parametrize(
    ("style", "explode", "value", "path"),
    [
        ("simple", True, {"r": 1, "g": "a,b"}, "/r=1,g=a%2Cb"),
        ("label", False, ["a", "b"], "/.a,b"),
        ("label", True, ["a", "b.c"], "/.a.b.c"),
        ("label", True, {"r": 1, "g": 2}, "/.r=1.g=2"),
        ("matrix", False, ["a", "b"], "/;id=a,b"),
        ("matrix", True, ["a", "b;c"], "/;id=a;id=b%3Bc"),
        ("matrix", True, {"r": 1, "g": 2}, "/;r=1;g=2"),
        ("matrix", True, "a", "/;id=a"),
    ],
)
def test_a_path_has_its_arguments_in_the_style_of_the_document(style, explode, value, path):
    """The table of OpenAPI 3.1, "Style Examples"."""
    request = Request("GET", "/{id}", (Place("id", "id", "path", style, explode),))
    assert written(request, {"id": value}).target == path
    if style == "label":
        with pytest.raises(CallError, match="cannot stand in a path"):
            written(request, {"id": ["", ""] if explode else ""})


@pytest.mark.parametrize("kind", ["application/x-www-form-urlencoded", "multipart/form-data"])
def test_a_field_of_a_form_that_is_null_is_not_sent(kind):
    out = written(Request("POST", "/", (), kind), {"body": {"a": 1, "b": None, "c": ""}})
    assert (out.body, out.fields) in ((b"a=1&c=", None), (None, [("a", "1"), ("c", "")]))


@pytest.mark.parametrize("value", ["..", ".", ""])
def test_an_argument_cannot_leave_its_place_in_the_path(api, catalogue, value):
    (answer,), _ = call(catalogue, (GET, {"id": value, "lang": "en"}), server=api.url)
    assert answer["kind"] == "bad_arguments" and not api.asked


@pytest.mark.parametrize(("place", "sent"), [("bearer", f"Bearer {KEY}"), ("header", KEY)])
def test_the_settings_may_say_where_the_key_goes(api, catalogue, place, sent):
    name = "Authorization" if place == "bearer" else "X-Trees"
    call(catalogue, (GET, TREE), server=api.url, key_in=place, key_name=None if place == "bearer" else name)
    assert api.asked[0]["headers"][name.lower()] == sent and "api_key" not in api.asked[0]["target"]


def test_a_key_goes_only_to_operations_that_need_one(api, catalogue):
    (answer,), _ = call(catalogue, (FORESTS, {}), server=api.url)
    assert answer == {"ok": True, "result": ["text"]} and "api_key" not in api.asked[0]["target"]


def test_a_wrong_key_fails_the_call_and_is_no_answer_to_the_agent(api, catalogue, monkeypatch):
    monkeypatch.setenv("TREES_KEY", "wrong")
    (error,), _ = call(catalogue, (GET, TREE), server=api.url)
    assert isinstance(error, Refused) and error.status == 401 and len(api.asked) == 1
    assert "The key of TREES_KEY was sent as query api_key" in str(error) and "wrong" not in str(error)
    (answer,), _ = call(catalogue, (GET, TREE), server=api.url, key_statuses=[])
    assert answer["kind"] == "tool_error" and "Invalid API key" in answer["error"]


def test_errors_of_the_tool_are_answers_and_those_of_the_server_are_tried_again(api, catalogue):
    api.answers[GET] = [JSONResponse({"message": f"no tree; {KEY}"}, 404), Response("busy", 503), Response("{}", 200)]
    (missing, text), counts = call(catalogue, (GET, TREE), (GET, TREE), server=api.url)
    assert missing["kind"] == "tool_error" and "status 404" in missing["error"] and "no tree; [key]" in missing["error"]
    assert text == {"ok": True, "result": "{}"} and (counts["requests"], counts["retries"]) == (3, 1)
    api.answers[GET] = [Response(f"down {KEY}", 502)] * 9
    (error,), _ = call(catalogue, (GET, TREE), server=api.url, attempts=2)
    assert type(error) is ServerFailed and error.status == 502 and error.remedy in str(error) and KEY not in str(error)
    assert len(api.answers[GET]) == 7


def test_what_changes_something_is_not_sent_twice(api, catalogue):
    change = (PUT, {"id": "1", "body": {"name": "Elm"}})
    api.answers[PUT] = [
        Response("oops", 500),
        Response("slow down", 429, {"Retry-After": "0"}),
        Response(status_code=204),
    ]
    (error, done), _ = call(catalogue, change, change, server=api.url, methods=["PUT"])
    assert isinstance(error, ServerFailed) and error.status == 500 and "not sent twice" in str(error)
    assert done["ok"] and len(api.asked) == 3


def test_a_server_that_is_not_there_fails_with_a_remedy(catalogue, monkeypatch):
    monkeypatch.setenv("TREES_KEY", KEY)
    (error,), _ = call(catalogue, (GET, TREE), server="http://127.0.0.1:9", attempts=2)
    assert isinstance(error, ServerFailed) and error.status is None and "is it running" in str(error)
    assert KEY not in str(error) and "s3cret" not in str(error)


def test_long_and_odd_answers_have_bounds(api, catalogue):
    packed = Response(
        gzip.compress(b'"' + b"x" * 50_000_000 + b'"'), 200, {"Content-Encoding": "gzip"}, "application/json"
    )
    api.answers[GET] = [
        packed,
        Response(b"\xff\x00", 200, None, "image/png"),
        Response("{", 200, None, "application/json"),
    ]
    api.answers[GET] += [Response(None, 302, {"Location": "http://169.254.169.254/"})]
    (long, image, broken, moved), _ = call(catalogue, *[(GET, TREE)] * 4, server=api.url, attempts=1)
    assert long["kind"] == "tool_error" and "longer than 2 MB" in long["error"]
    assert image["result"] == "<2 bytes of image/png>"
    assert isinstance(broken, ServerFailed) and "no JSON" in str(broken)
    assert isinstance(moved, Refused) and "169.254.169.254" in str(moved) and len(api.asked) == 4


def test_an_empty_answer_needs_no_compression_that_its_header_names(api, catalogue):
    """As answers to HEAD, whose headers are those of a GET."""
    api.answers[GET] = [Response(b"", 200, {"Content-Encoding": "gzip"})]
    api.answers[GET] += [Response(gzip.compress(b"whole")[:-4], 200, {"Content-Encoding": "gzip"})]
    (empty, broken), _ = call(catalogue, (GET, TREE), (GET, TREE), server=api.url)
    assert empty == {"ok": True, "result": None}
    assert isinstance(broken, ToolRefused) and "its compression breaks off" in str(broken)


def test_an_answer_that_is_compressed_in_several_parts_is_read_whole(api, catalogue):
    """As RFC 1952 allows. Only the first part was read, and nobody was told. What else may follow is padding."""
    parts = [gzip.compress(b'{"name": '), gzip.compress(b'"' + b"Elm" * 5000 + b'"'), gzip.compress(b"}"), bytes(9)]
    api.answers[GET] = [Response(b"".join(parts), 200, {"Content-Encoding": "gzip"}, "application/json")]
    bomb = gzip.compress(bytes(1_500_000)) * 2
    api.answers[GET] += [Response(bomb, 200, {"Content-Encoding": "gzip"}, "application/json")]
    (whole, long), _ = call(catalogue, (GET, TREE), (GET, TREE), server=api.url)
    assert whole == {"ok": True, "result": {"name": "Elm" * 5000}}
    assert "longer than 2 MB" in long["error"]


def test_a_limit_of_time_ends_a_call(api, catalogue):
    async def never(scope, receive, send):
        while (await receive())["type"] != "http.disconnect":
            pass

    api.answers[GET] = [never]
    (error,), _ = call(catalogue, (GET, TREE), server=api.url, timeout_s=0.5)
    assert isinstance(error, ServerFailed) and "within 0.5 s" in str(error) and "timeout_s" in error.remedy


def test_requests_keep_a_pace(api, catalogue):
    async def run():
        backend, loop = (
            rest(server=api.url, allow_private=True, per_second=20, key_env="TREES_KEY"),
            asyncio.get_running_loop(),
        )
        start = loop.time()
        await asyncio.gather(*(backend(catalogue[FORESTS], {}) for _ in range(5)))
        took = loop.time() - start
        await backend.close()
        return took

    assert asyncio.run(run()) >= 0.19  # the fifth begins four intervals after the first


def test_only_allowed_hosts_are_asked(api, catalogue, monkeypatch):
    host = api.url.removeprefix("http://")
    (answer,), _ = call(catalogue, (GET, TREE), server=api.url, hosts=[host])
    assert answer["ok"]
    for settings, words in (
        ({"server": api.url, "hosts": ["eu.trees.example"]}, "no server that may be asked"),
        ({"hosts": ["us.trees.example"]}, "https://eu.trees.example/v1"),
        ({"server": api.url, "allow_private": False}, "private addresses are not asked"),
    ):
        (error,), _ = call(catalogue, (GET, TREE), **settings)
        assert type(error) is ToolRefused and words in str(error) and len(api.asked) == 1
    both = ["us.trees.example", "eu.trees.example"]  # of a document's servers, hosts choose the one that answers
    identities = [rest.identity(hosts=hosts) for hosts in (both, both[::-1], both[:1], None)]
    assert identities[0] == identities[1] and len({str(one) for one in identities}) == 3


def test_answers_are_recorded_and_replayed_without_server_and_key(api, catalogue, tmp_path, monkeypatch):
    cache, other = str(tmp_path / "real.db"), (GET, {"id": "2", "lang": "en"})
    api.answers[GET] = [JSONResponse({"name": "Elm"}), JSONResponse({"message": "none"}, 404)]
    first, counts = call(catalogue, (GET, TREE), other, (GET, TREE), server=api.url, mode="record", cache=cache)
    assert [answer.get("result") for answer in first] == [{"name": "Elm"}, None, {"name": "Elm"}] and counts[
        "recorded"
    ] == 1
    api.answers[GET] = [Response("late", 401)]
    call(catalogue, (GET, {"id": "3", "lang": "en"}), server=api.url, mode="record", cache=cache)  # is not recorded
    assert rest.recorded(mode="record", cache=cache)["results"] == 2
    assert KEY.encode() not in Path(cache).read_bytes()
    monkeypatch.delenv("TREES_KEY")
    asked = len(api.asked)
    again, _ = call(catalogue, (GET, TREE), other, (GET, {"id": "3", "lang": "en"}), mode="replay", cache=cache)
    assert again[:2] == first[:2] and again[2]["kind"] == "not_recorded" and len(api.asked) == asked


def test_an_answer_with_half_a_character_is_recorded(api, catalogue, tmp_path):
    """JSON can hold a lone surrogate (a server that cuts an emoji in two sends one), UTF-8 cannot."""
    api.answers[GET] = [Response(b'{"name": "Elm \\ud83d"}', 200, None, "application/json")]
    (first, again), _ = call(
        catalogue, (GET, TREE), (GET, TREE), server=api.url, mode="record", cache=str(tmp_path / "c.db")
    )
    assert first == again == {"ok": True, "result": {"name": "Elm ?"}} and len(api.asked) == 1


def test_a_byte_order_mark_before_an_answer_does_not_count(api, catalogue):
    tree = b'\xef\xbb\xbf{"name": "Elm"}'
    kinds = ("application/json", "application/json; charset=utf-8", "text/plain")
    api.answers[GET] = [Response(tree, 200, {"Content-Type": kind}) for kind in kinds]
    answers, _ = call(catalogue, *[(GET, TREE)] * 3, server=api.url)
    assert [answer["result"] for answer in answers] == [{"name": "Elm"}, {"name": "Elm"}, '{"name": "Elm"}']


def test_the_same_call_at_the_same_time_is_sent_once(api, catalogue, tmp_path):
    async def run():
        backend = rest(server=api.url, allow_private=True, mode="record", cache=str(tmp_path / "c.db"))
        answers = await asyncio.gather(*(backend(catalogue[FORESTS], {}) for _ in range(5)))
        await backend.close()
        return answers

    assert asyncio.run(run()) == [["text"]] * 5 and len(api.asked) == 1


def test_a_run_is_checked_before_it_starts(api, catalogue, tmp_path, monkeypatch):
    path = str(tmp_path / "trees.json")

    def check(**settings):
        backend = {"_target_": "verl_ext.tools.rest.rest", "endpoint": None, **settings}
        tool_call.preflight(sources=[{"kind": "openapi", "path": path}], backend=backend)

    check(server=api.url, allow_private=True, key_env="TREES_KEY")
    for settings, words in (
        ({"mode": "record"}, "needs a cache"),
        ({"mode": "replay", "cache": str(tmp_path / "no.db")}, "no record"),
        ({"servr": "x"}, "Did you mean 'server'"),
        ({"key_in": "header", "key_env": "TREES_KEY"}, "needs key_name"),
        ({"key_env": "NO_SUCH_KEY"}, "NO_SUCH_KEY is not set"),
        ({"hosts": ["elsewhere.example"]}, "no server that may be asked"),
        ({"server": "ftp://x"}, "must be a base URL"),
        ({"server": api.url}, "allow_private=true"),
    ):
        with pytest.raises(ValueError, match=words):
            check(**settings)
    functions = [{"kind": "json", "path": str(tmp_path / "tools.jsonl")}]
    (tmp_path / "tools.jsonl").write_text('{"name": "f", "description": "", "parameters": {"type": "object"}}\n')
    with pytest.raises(ValueError, match="no operation of an OpenAPI document"):
        tool_call.preflight(sources=functions, backend={"_target_": "verl_ext.tools.rest.rest"})


@pytest.mark.parametrize(("name", "operations"), [("trees", 3), ("tmdb", 54), ("spotify", 40)])
def test_every_operation_of_a_document_runs_as_a_recipe_has_it(catalogue, tmp_path, name, operations, monkeypatch):
    """Every operation is called with arguments of its schema, and the server refuses none."""
    path = tmp_path / "trees.json" if name == "trees" else RESTBENCH / f"{name}_oas.json"
    if not path.exists():
        pytest.skip(f"the public data sets are not at {RESTBENCH}")
    monkeypatch.setenv("TREES_KEY", KEY)
    with serving(json.loads(path.read_text()), KEY) as api:
        section = {
            "_target_": "verl_ext.tools.catalogue.tool_call",
            "sources": [{"kind": "openapi", "path": str(path)}],
            "backend": {
                "_target_": "verl_ext.tools.rest.rest",
                "server": api.url,
                "allow_private": True,
                "key_env": "TREES_KEY",
                "methods": ["GET", "PUT", "POST", "DELETE"],
            },
        }
        toolbox = instantiate(OmegaConf.create(section))

        async def run():
            answers = [await toolbox(name=one, arguments=_arguments(spec)) for one, spec in toolbox.catalogue.items()]
            await toolbox.close()
            return answers

        answers = asyncio.run(run())
    assert [answer for answer in answers if not answer["ok"]] == [] and len(answers) == operations
    assert len(api.asked) == operations and not any(KEY in json.dumps(answer) for answer in answers)


def _arguments(spec):
    """A value of each argument's schema, where the schema allows any: some contradict themselves."""
    api = Api(spec.parameters, examples=False)
    chosen = {name: api.instance(schema) for name, schema in spec.parameters["properties"].items()}
    if "body" in chosen:
        required = api.resolve(spec.parameters["properties"]["body"]).get("required", ())
        chosen["body"] = {**dict.fromkeys(required, "text"), **chosen["body"]}
    wrong = {problem.partition(":")[0] for problem in spec.problems(chosen)}
    return {name: value for name, value in chosen.items() if name not in wrong}


def test_a_failure_of_the_server_reaches_the_workflow_with_status_and_remedy(api, catalogue):
    api.answers[GET] = [Response("down", 502)]
    backend, seen = rest(server=api.url, allow_private=True, attempts=1, key_env="TREES_KEY"), []
    tools = {"tool_call": Toolbox(catalogue, backend)}

    async def ask(task, ctx):
        try:
            await ctx.tool("tool_call", name=GET, arguments=TREE)
        except ToolFailed as error:
            seen.append((error.status, str(error)))
        return await ctx.call("a")

    async def scenario():
        await walk(forest_of(ask, tools=tools, limits={"tool_retries": 0}))
        await tools["tool_call"].close()

    asyncio.run(scenario())
    ((status, words),) = seen
    assert status is Status.TOOL_ERROR and "status 502" in words and "Remedy: see whether it is well" in words
