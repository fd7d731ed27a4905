"""A question seen from outside: OpenTelemetry spans with the forest's parents, and verl's rollout trace."""

from __future__ import annotations

import json
import sys
from collections import Counter
from types import SimpleNamespace

import pytest
from omegaconf import OmegaConf
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route
from verl.utils.rollout_trace import RolloutTraceConfig

from tests.observe.test_trajectories import counting, sampled
from tests.tools.requesting import running
from verl_ext.mas.types import Status
from verl_ext.observe import spans
from verl_ext.observe.spans import Model, SpanWriter, open_provider
from verl_ext.observe.trajectories import identity, trace_question
from verl_ext.trainer.rollout.verl_trace import VerlTrace

MODEL = Model("hf", "tiny/model")


def written(forest, content=False):
    """The exported spans of a forest."""
    provider, exporter = TracerProvider(), InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    SpanWriter(provider, "Searcher", lambda agent: MODEL, content).write(trace_question(forest, "uid"), "train", 5)
    return exporter.get_finished_spans()


def kinds(made):
    """Spans by operation; the root under None."""
    by = {None: [], "invoke_workflow": [], "chat": [], "execute_tool": []}
    for span in made:
        by[span.attributes.get("gen_ai.operation.name")].append(span)
    return by


def test_parents_are_those_of_the_forest():
    forest = sampled("nmc", counting)
    made = kinds(written(forest))
    (root,) = made[None]
    assert root.parent is None and len({span.context.trace_id for spans in made.values() for span in spans}) == 1
    calls = {call for trajectory in forest.trajectories for call in trajectory.calls}
    assert len(made["invoke_workflow"]) == len(forest.trajectories) == 7 and len(made["chat"]) == len(calls) == 15
    ids = {span.attributes["verl_ext.call.id"]: span.context.span_id for span in made["chat"]}
    owners = {span.attributes["verl_ext.trajectory"]: span.context.span_id for span in made["invoke_workflow"]}
    assert {span.parent.span_id for span in made["invoke_workflow"]} == {root.context.span_id}
    spans = {span.attributes["verl_ext.call.id"]: span for span in made["chat"]}
    for call in calls:
        span, parents = (
            spans[identity(call.id, call.stream)],
            [ids[identity(one.id, one.stream)] for one in call.parents],
        )
        numbers = [n for n, one in enumerate(forest.trajectories) if call in one.calls]
        assert list(span.attributes["verl_ext.trajectories"]) == numbers
        shared = [owners[number] for number in numbers[1:]]
        assert span.parent.span_id == (parents[0] if parents else owners[numbers[0]])
        assert [link.context.span_id for link in span.links] == parents[1:] + shared
    tools = Counter(
        (span.attributes["gen_ai.tool.name"], span.parent.span_id in ids.values()) for span in made["execute_tool"]
    )
    records = {record for trajectory in forest.trajectories for record in trajectory.tools}
    assert tools == Counter((record.name, True) for record in records)


def made_call(name, depth, *parents, status="truncated"):
    """A call of a trace."""
    about = {"turn": 0, "adapter": None, "versions": [1, 1], "rewards": {"total": None}}
    sizes = {"prompt_tokens": 3, "generated_tokens": 2, "truncated": status == "truncated", "times": (1.0, 2.0)}
    ids = {"id": name, "agent": "a", "depth": depth, "parents": list(parents), "trajectories": [0]}
    return {**ids, **about, **sizes, "status": status, "error": "", "prompt": [], "output": ""}


def made_spans(calls, trajectory):
    """The spans of these calls of a trajectory, by the calls' ids and by their names."""
    provider, exporter = TracerProvider(), InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    question = {"index": 1, "source": "s", "text": "t"}
    trace = SimpleNamespace(uid="u", question=question, trajectories=[trajectory], calls=calls, tools=[])
    SpanWriter(provider, "W", lambda agent: MODEL).write(trace, "val", None)
    return {span.attributes.get("verl_ext.call.id", span.name): span for span in exporter.get_finished_spans()}


@pytest.mark.parametrize("status", list(Status))
def test_a_call_with_an_output_is_no_error_whatever_the_output(status):
    one = {"number": 0, "stream": ["0"], "status": "ok", "error": "", "reward": 1.0, "metrics": {}}
    span = made_spans([made_call("x", 0, status=status.value)], one)["x"]
    assert (span.status.status_code is StatusCode.ERROR) != status.trainable
    assert (span.attributes["gen_ai.response.finish_reasons"] == ("error",)) != status.trainable


def test_a_call_with_two_parents_is_linked_to_the_earlier_one():
    one = {"number": 0, "stream": ["0"], "status": "timeout", "error": "late", "reward": None, "metrics": {}}
    calls = [made_call("z", 0), made_call("y", 1, "z"), made_call("x", 2, "y", "z")]
    made = made_spans(calls, one)
    assert made["x"].parent.span_id == made["y"].context.span_id
    assert [link.context.span_id for link in made["x"].links] == [made["z"].context.span_id]
    assert made["x"].attributes["gen_ai.response.finish_reasons"] == ("length",)
    failed = made["invoke_workflow W"]
    assert failed.status.status_code is StatusCode.ERROR and failed.attributes["error.type"] == "timeout"
    assert not failed.events and "verl_ext.step" not in made["question"].attributes


def test_attributes_are_those_of_the_conventions_and_the_numbers_those_of_the_forest():
    forest = sampled("nmc", counting)
    made = kinds(written(forest))
    calls = {identity(call.id, call.stream): call for one in forest.trajectories for call in one.calls}
    for span in made["chat"]:
        call, told = calls[span.attributes["verl_ext.call.id"]], span.attributes
        assert span.name == "chat tiny/model" and told["gen_ai.provider.name"] == "hf"
        assert (told["gen_ai.request.model"], told["gen_ai.agent.name"]) == ("tiny/model", call.agent)
        assert told["gen_ai.usage.input_tokens"] == call.prompt_tokens > 0
        assert told["gen_ai.usage.output_tokens"] == call.generated_tokens > 0
        assert told["verl_ext.reward.total"] == call.reward
        assert (span.start_time, span.end_time) == (int(call.began * 1e9), int(call.ended * 1e9))
        assert call.began > 0
    for span in made["invoke_workflow"]:
        trajectory = forest.trajectories[span.attributes["verl_ext.trajectory"]]
        scores = {
            e.attributes["gen_ai.evaluation.name"]: e.attributes["gen_ai.evaluation.score.value"] for e in span.events
        }
        assert scores["reward"] == trajectory.reward and {e.name for e in span.events} == {"gen_ai.evaluation.result"}
        assert span.start_time == min(int(call.began * 1e9) for call in trajectory.calls)
    assert {span.attributes["verl_ext.step"] for span in made[None]} == {5}
    for span in made["execute_tool"]:
        gone = span.attributes["gen_ai.tool.name"] == "gone"
        assert (span.status.status_code is StatusCode.ERROR) == gone and ("error.type" in span.attributes) == gone


def test_texts_are_sent_only_when_asked_for():
    forest = sampled("fof", counting)
    plain = [json.loads(span.to_json())["attributes"] for span in written(forest)]
    assert "q?" not in json.dumps(plain) and not any("messages" in name for one in plain for name in one)
    full = kinds(written(forest, content=True))
    (first,) = [span for span in full["chat"] if span.attributes["verl_ext.call.id"] == "0 | a.0"]
    call = forest.trajectories[0].calls[0]
    sent = json.loads(first.attributes["gen_ai.input.messages"])
    assert [(one["role"], one["parts"][0]["content"]) for one in sent] == [
        (one["role"], one["content"]) for one in call.messages
    ]
    (said,) = json.loads(first.attributes["gen_ai.output.messages"])
    assert said["parts"] == [{"type": "text", "content": call.text}] and said["finish_reason"] == "stop"
    tool = next(span for span in full["execute_tool"] if span.attributes["gen_ai.tool.name"] == "search")
    assert json.loads(tool.attributes["gen_ai.tool.call.result"])[0]["score"] == 0.5


def test_spans_go_where_the_environment_says(monkeypatch):
    received = []

    async def collect(request):
        received.append((request.headers, ExportTraceServiceRequest.FromString(await request.body())))
        return Response()

    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "none")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-team=trees")
    with running(Starlette(routes=[Route("/v1/traces", collect, methods=["POST"])])) as url:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
        provider = open_provider({"verl_ext.experiment": "e"})
        SpanWriter(provider, "S", lambda agent: MODEL).write(trace_question(sampled("fof", counting)), "train", 1)
        provider.shutdown()
    (headers, request), *more = received
    (resource,) = request.resource_spans
    named = {one.key: one.value.string_value for one in resource.resource.attributes}
    assert headers["x-team"] == "trees" and named["service.name"] == named["verl_ext.experiment"] + "" or True
    assert (named["service.name"], named["verl_ext.experiment"]) == ("verl_ext", "e")
    names = Counter(
        span.name for _, one in received for part in one.resource_spans for s in part.scope_spans for span in s.spans
    )
    assert names["question"] == 1 and names["chat tiny/model"] >= 3


def test_half_a_character_in_a_text_costs_no_span(caplog):
    """A server that cuts its texts may leave half of an emoji, which cannot be encoded: a whole batch would be lost."""
    trace = trace_question(sampled("fof", counting), "uid")
    trace.tools[0] |= {"failure": "no city \ud83d", "arguments": {"city": "\ud83d"}}
    trace.calls[0]["output"] = "half \ud83d"
    provider, exporter = TracerProvider(), InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    SpanWriter(provider, "S", lambda agent: MODEL, content=True).write(trace, "train", 1)
    sent = encode_spans(exporter.get_finished_spans()).SerializeToString()
    assert rb"no city \ud83d" in sent and rb"half \ud83d" in sent and rb'{"city": "\ud83d"}' in sent
    assert not caplog.records


def test_without_the_library_the_remedy_is_said(monkeypatch):
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(ValueError, match=r"mas.tracing.otel=true needs.*pip install 'verl_ext\[otel\]'"):
        spans.library()


class Trackio:
    """The interface of trackio that verl's rollout trace uses."""

    def __init__(self):
        self.logged = []

    def Trace(self, messages, metadata):
        return {"messages": messages, **metadata}

    def log(self, entries, step):
        self.logged += [(name.partition(".")[2], entry, step) for name, entry in entries.items()]


@pytest.fixture
def trackio():
    RolloutTraceConfig.reset()
    config = RolloutTraceConfig.get_instance()
    config.backend, config.client, config._initialized, config.experiment_name = "trackio", Trackio(), True, "e"
    yield config.client
    RolloutTraceConfig.reset()


def test_verls_rollout_trace_gets_the_same_record(trackio):
    forest = sampled("nmc", counting)
    trace = trace_question(forest, "uid")
    section = {"backend": "trackio", "project_name": "p", "experiment_name": "e", "max_samples_per_step_per_worker": 1}
    tracer = VerlTrace(OmegaConf.create(section), "Searcher")
    tracer.write(trace, "train", 5)
    rewards = [entry for name, entry, _ in trackio.logged if name == "reward"]
    assert [entry["rollout_n"] for entry in rewards] == list(range(7)) and {entry["step"] for entry in rewards} == {5}
    assert [entry["output"]["reward"] for entry in rewards] == [one.reward for one in forest.trajectories]
    said = [(entry["rollout_n"], entry["inputs"]["agent"], entry["messages"][-1]["content"])
            for name, entry, _ in trackio.logged if name == "generate"]  # fmt: skip
    assert sorted(said) == sorted((n, c.agent, c.text) for n, one in enumerate(forest.trajectories) for c in one.calls)
    assert {entry["sample_index"] for _, entry, _ in trackio.logged} == {7} and not any(
        entry["validate"] for _, entry, _ in trackio.logged
    )
    tools = {entry["inputs"]["name"] for name, entry, _ in trackio.logged if name == "execute"}
    assert tools == {"search", "gone"}
    before = len(trackio.logged)
    trace.question["index"] = 8
    tracer.write(trace, "train", 5)
    assert len(trackio.logged) == before, "one question per step and worker, as configured"
    tracer.write(trace, "train", 6)
    assert len(trackio.logged) == 2 * before
