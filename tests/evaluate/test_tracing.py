"""An evaluation seen by a collector of OpenTelemetry."""

from __future__ import annotations

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route

from tests.evaluate.conftest import write_questions
from tests.serving import ChatServer
from tests.tools.requesting import running
from verl_ext.evaluate.checkpoint import Model
from verl_ext.evaluate.checkpoint_parts import asked_of
from verl_ext.observe.spans import Model as Asked


def test_an_evaluation_sends_its_trajectories_before_it_ends(command, tmp_path, monkeypatch):
    spans = []

    async def collect(request):
        said = ExportTraceServiceRequest.FromString(await request.body())
        spans.extend(span for part in said.resource_spans for scope in part.scope_spans for span in scope.spans)
        return Response()

    write_questions(tmp_path / "questions.parquet", ["Paris", "Rome"])
    with running(Starlette(routes=[Route("/v1/traces", collect, methods=["POST"])])) as url, ChatServer() as server:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "none")
        assert command("mas.tracing.otel=true", server=server) == 0
    told = [{one.key: one.value for one in span.attributes} for span in spans]
    chats = [one for one in told if "gen_ai.agent.name" in one]
    assert len(chats) == sum(len(record["calls"]) for record in command.records) > 0
    assert {one["gen_ai.request.model"].string_value for one in chats} == {"tiny"}
    conversations = {one["gen_ai.conversation.id"].string_value for one in told if "gen_ai.conversation.id" in one}
    assert conversations == {"made-0/0", "made-1/0"}, "one for each trajectory"
    rewards = [
        attribute.value.double_value
        for span in spans
        for event in span.events
        for attribute in event.attributes
        if event.attributes[0].value.string_value == "reward" and attribute.key == "gen_ai.evaluation.score.value"
    ]
    assert sorted(rewards) == sorted(record["trajectories"][0]["reward"] for record in command.records)


def test_a_checkpoint_of_several_policies_names_each_agents_weights():
    small, large = Model("tiny", checkpoint="runs/two/actor/small"), Model("org/large")
    whole = Model("tiny", policies={"small": small, "large": large}, agents={"small": ["a", "b"], "large": ["c"]})
    of_small = Asked("verl_ext", "runs/two/actor/small", "small")
    assert asked_of(whole) == {"a": of_small, "b": of_small, "c": Asked("verl_ext", "org/large", "large")}
    assert asked_of(large) == asked_of(None) == {}
