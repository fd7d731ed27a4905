"""One sampled question as OpenTelemetry spans, with the attributes of the GenAI semantic conventions (`gen_ai.*`).

    question                                   the trace: one question
    ├─ invoke_workflow SearchQA                one per trajectory, with its reward (event gen_ai.evaluation.result)
    │  └─ chat Qwen/Qwen2.5-1.5B-Instruct      a call without parents, below the trajectory that made it first
    │     ├─ execute_tool search               a tool call, below the last call before it
    │     └─ chat …                            a call, below its last parent; its other parents are links

Spans are made when the question has been sampled and scored, from the plain values of its `QuestionTrace`; calls that
trajectories share are there once. https://opentelemetry.io/docs/specs/semconv/gen-ai/
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from verl_ext.mas.types import Status
from verl_ext.observe.record import as_json
from verl_ext.observe.trajectories import QuestionTrace

OWN = "verl_ext"
# Statuses of calls that have an output, even if it could not be used.
WITH_OUTPUT = tuple(status.value for status in Status if status.trainable)
# Spans leave the process after so many milliseconds; OTEL_BSP_SCHEDULE_DELAY has precedence.
DELAY_MS = 1000
REMEDY = "`pip install 'verl_ext[otel]'`, or mas.tracing.otel=false"


class Model(NamedTuple):
    """Who answers for an agent: `gen_ai.provider.name` and `gen_ai.request.model`; of several policies, which one."""

    provider: str
    name: str
    policy: str | None = None


def library() -> Any:
    """The package `opentelemetry.sdk.trace`.

    Raises:
        ValueError: it, or its OTLP exporter, is missing; says the remedy.
    """
    try:
        import opentelemetry.exporter.otlp.proto.http.trace_exporter  # noqa: F401
        import opentelemetry.sdk.trace as sdk
    except ImportError as error:
        raise ValueError(f"mas.tracing.otel=true needs OpenTelemetry's SDK ({error}). Remedy: {REMEDY}") from error
    return sdk


def open_provider(about: Mapping[str, Any]) -> Any:
    """A TracerProvider that exports by OTLP over HTTP, to where OpenTelemetry's own environment variables say.

    OTEL_EXPORTER_OTLP_ENDPOINT (http://localhost:4318 by default), _HEADERS, OTEL_SERVICE_NAME, OTEL_TRACES_SAMPLER, …

    Args:
        about: attributes of the resource, e.g. the name of the experiment.

    Raises:
        ValueError: see `library`.
    """
    sdk = library()
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    named = {} if os.environ.get("OTEL_SERVICE_NAME") else {"service.name": OWN}
    provider = sdk.TracerProvider(resource=Resource.create({**named, **_known(about)}))
    delay = None if os.environ.get("OTEL_BSP_SCHEDULE_DELAY") else DELAY_MS
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(), schedule_delay_millis=delay))
    return provider


class SpanWriter:
    """Makes the spans of questions.

    Args:
        provider: OpenTelemetry's TracerProvider.
        workflow: name of the system.
        model_of: agent -> who answers for it.
        content: also prompts, outputs, and arguments and results of tools; they may be long, or private.
    """

    def __init__(self, provider: Any, workflow: str, model_of: Callable[[str], Model], content: bool = False) -> None:
        self._tracer = provider.get_tracer(OWN)
        self._workflow, self._model_of, self._content = workflow, model_of, content

    def write(self, trace: QuestionTrace, phase: str, step: int | None) -> None:
        """Write the spans of one question.

        Args:
            phase: train, val or eval. step: of training; None: not known.
        """
        times = [moment for one in (*trace.calls, *trace.tools) for moment in one["times"] if moment]
        begin, end = min(times, default=time.time()), max(times, default=time.time())
        about = {"phase": phase, "step": step, "question.id": trace.uid or None}
        about |= {f"question.{name}": trace.question[name] for name in ("index", "source")}
        if self._content:
            about["question.text"] = str(trace.question["text"])
        root = self._start("question", None, begin, _own(about))
        trajectories = {one["number"]: self._trajectory(one, trace, root) for one in trace.trajectories}
        spans: dict[str, Any] = {}
        depths = {call["id"]: call["depth"] for call in trace.calls}
        for call in sorted(trace.calls, key=lambda call: (call["depth"], call["id"])):
            spans[call["id"]] = self._call(call, _above(call, call["parents"], depths, spans, trajectories))
        for tool in trace.tools:
            self._tool(tool, _above(tool, tool["after"], depths, spans, trajectories))
        root.end(_ns(end))

    def _trajectory(self, one: Mapping[str, Any], trace: QuestionTrace, root: Any) -> Any:
        """The span of a trajectory, which has already ended."""
        own = [part for part in (*trace.calls, *trace.tools) if one["number"] in part["trajectories"]]
        times = [moment for part in own for moment in part["times"] if moment]
        begin, end = min(times, default=time.time()), max(times, default=time.time())
        attributes = _own({"trajectory": one["number"], "stream": one["stream"], "status": one["status"]})
        attributes |= {
            "gen_ai.operation.name": "invoke_workflow",
            "gen_ai.workflow.name": self._workflow,
            "gen_ai.conversation.id": f"{trace.uid}/{one['number']}",
        }
        span = self._start(f"invoke_workflow {self._workflow}", root, begin, attributes)
        for name, value in {"reward": one["reward"], **one["metrics"]}.items():
            if value is not None and math.isfinite(value):
                score = {"gen_ai.evaluation.name": name, "gen_ai.evaluation.score.value": float(value)}
                span.add_event("gen_ai.evaluation.result", score, _ns(end))
        if one["status"] != "ok":
            _fail(span, one["status"], one["error"])
        span.end(_ns(end))
        return span

    def _call(self, call: Mapping[str, Any], above: list[Any]) -> Any:
        model = self._model_of(call["agent"])
        finish = "length" if call["truncated"] else "stop"
        attributes = {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": model.provider,
            "gen_ai.request.model": model.name,
            "gen_ai.agent.name": call["agent"],
            "gen_ai.usage.input_tokens": call["prompt_tokens"],
            "gen_ai.usage.output_tokens": call["generated_tokens"],
            "gen_ai.response.finish_reasons": [finish] if call["status"] in WITH_OUTPUT else ["error"],
        }
        own = {name: call[name] for name in ("status", "turn", "depth", "trajectories", "adapter")}
        own |= {"call.id": call["id"], "policy.name": model.policy, "policy.versions": call["versions"]}
        own |= {f"reward.{name}": value for name, value in call["rewards"].items()}
        if self._content:
            said = [{"role": "assistant", "parts": [_text(call["output"])], "finish_reason": finish}]
            sent = [{"role": one["role"], "parts": [_text(one["content"])]} for one in call["prompt"]]
            attributes |= {"gen_ai.input.messages": _json(sent), "gen_ai.output.messages": _json(said)}
        span = self._start(f"chat {model.name}", above, call["times"][0], attributes | _own(own), client=True)
        if call["status"] not in WITH_OUTPUT:
            _fail(span, call["status"], call["error"])
        span.end(_ns(call["times"][1]))
        return span

    def _tool(self, tool: Mapping[str, Any], above: list[Any]) -> None:
        attributes = {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": tool["name"],
            "gen_ai.tool.call.id": tool["id"],
            "gen_ai.tool.type": "function",
        }
        if self._content:
            attributes |= {f"gen_ai.tool.call.{name}": _json(tool[name]) for name in ("arguments", "result")}
        attributes |= _own({"trajectories": tool["trajectories"]})
        span = self._start(f"execute_tool {tool['name']}", above, tool["times"][0], attributes)
        if tool["failure"] is not None:
            _fail(span, "tool_error", tool["failure"])
        span.end(_ns(tool["times"][1]))

    def _start(self, name: str, above: Any, begin: float, attributes: Mapping[str, Any], client: bool = False) -> Any:
        """A started span. above: its parent, or its parent and what it is linked to; None: the root."""
        from opentelemetry.trace import Link, SpanKind, set_span_in_context

        first, *others = above if isinstance(above, list) else [above]
        return self._tracer.start_span(
            name,
            context=None if first is None else set_span_in_context(first),
            kind=SpanKind.CLIENT if client else SpanKind.INTERNAL,
            attributes=_known(attributes),
            links=[Link(one.get_span_context()) for one in others],
            start_time=_ns(begin),
        )


def _above(
    one: Mapping[str, Any],
    parents: Iterable[str],
    depths: Mapping[str, int],
    spans: Mapping[str, Any],
    trajectories: Mapping[int, Any],
) -> list[Any]:
    """The span's parent first, then its links: the other parents, and the further trajectories that share it."""
    latest = sorted(
        (parent for parent in parents if parent in spans), key=lambda name: (depths[name], name), reverse=True
    )
    owners = [trajectories[number] for number in one["trajectories"]]
    return [*(spans[parent] for parent in latest), *owners[1:]] if latest else owners


def _fail(span: Any, kind: str, reason: str) -> None:
    from opentelemetry.trace import StatusCode

    span.set_attribute("error.type", kind)
    span.set_status(StatusCode.ERROR, _whole(reason))


def _own(attributes: Mapping[str, Any]) -> dict[str, Any]:
    return {f"{OWN}.{name}": value for name, value in attributes.items()}


def _known(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Attributes without those that are not known: None and NaN."""
    return {
        name: _whole(value) if isinstance(value, str) else value
        for name, value in attributes.items()
        if value is not None and not (isinstance(value, float) and math.isnan(value))
    }


def _whole(text: str) -> str:
    """A text without halves of characters, which cannot be sent."""
    return text.encode("utf-8", "backslashreplace").decode()


def _text(content: Any) -> dict[str, Any]:
    return {"type": "text", "content": content if isinstance(content, str) else _json(content)}


def _json(value: Any) -> str:
    return json.dumps(as_json(value), ensure_ascii=False)


def _ns(seconds: float) -> int:
    return int(seconds * 1e9)
