"""`mas.tracing` in a rollout worker: who is asked for spans, of which model, and what a failure does."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest
from omegaconf import OmegaConf
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from tests.observe.test_trajectories import counting, sampled
from tests.trainer.test_config import configured
from verl_ext.mas.endpoint import EndpointLLM
from verl_ext.observe.trajectories import TraceStore
from verl_ext.tools.chat import ChatEndpoint
from verl_ext.trainer.config import read_mas_config
from verl_ext.trainer.rollout.tracing import Tracing
from verl_ext.trainer.rollout.worker import RolloutWorker
from verl_ext.trainer.sections import TracingSection

CONFIG = OmegaConf.create(
    {
        "actor_rollout_ref": {"model": {"path": "org/policy"}, "rollout": {"name": "vllm", "trace": {"backend": None}}},
        "trainer": {"project_name": "p", "experiment_name": "e"},
        "mas": {"policies": None},
    }
)


def worker_of(forest, otel, logged=0, config=CONFIG):
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    worker = RolloutWorker.__new__(RolloutWorker)
    worker.mas = SimpleNamespace(trajectory_log=SimpleNamespace(train_questions=logged, val_questions=0), seed=1)
    worker._traces = TraceStore()
    worker._tracing = Tracing(config, TracingSection(otel=otel), forest.workflow, provider=provider)
    return worker, exporter


def test_it_is_off_by_default_and_a_misspelt_key_is_an_error():
    assert not read_mas_config(configured()).tracing.otel
    with pytest.raises(ValueError, match="mas.tracing"):
        read_mas_config(configured(tracing={"otl": True}))
    forest = sampled("fof", counting)
    worker, exporter = worker_of(forest, otel=False)
    worker._trace(forest, {"uid": "u", "global_steps": 3}, False, False)
    assert exporter.get_finished_spans() == () and not worker._tracing.wanted


def test_every_question_is_traced_even_if_none_is_logged():
    forest = sampled("fof", counting)
    agents = forest.workflow.agents
    served = EndpointLLM(ChatEndpoint("http://127.0.0.1:9/v1", "helper"))
    forest.workflow.agents = {**agents, "b": agents["b"].changed(llm=served, trained=False)}
    worker, exporter = worker_of(forest, otel=True)
    worker._trace(forest, {"uid": "u", "global_steps": 3}, False, False)
    made = exporter.get_finished_spans()
    (root,) = [span for span in made if span.name == "question"]
    assert (root.attributes["verl_ext.step"], root.attributes["verl_ext.phase"]) == (3, "train")
    models = {
        span.attributes["gen_ai.agent.name"]: span.name for span in made if "gen_ai.agent.name" in span.attributes
    }
    assert models == {"a": "chat org/policy", "b": "chat helper", "c": "chat org/policy"}
    assert worker._traces.held() == {}
    logging_too, _ = worker_of(forest, otel=True, logged=1)
    logging_too._trace(forest, {"uid": "u", "global_steps": 3}, False, False)
    assert list(logging_too._traces.held()) == ["u"]


def test_a_span_names_the_policy_of_its_agent_and_that_policys_model():
    forest = sampled("fof", counting)
    config = CONFIG.copy()
    config.mas.policies = {"small": {"agents": ["a", "b"], "model": {"path": "org/small"}}, "large": {"agents": ["c"]}}
    worker, exporter = worker_of(forest, otel=True, config=config)
    worker._trace(forest, {"uid": "u", "global_steps": 3}, False, False)
    told = [span.attributes for span in exporter.get_finished_spans() if "gen_ai.agent.name" in span.attributes]
    names = ("gen_ai.agent.name", "gen_ai.request.model", "verl_ext.policy.name")
    assert {tuple(one.get(name) for name in names) for one in told} == {
        ("a", "org/small", "small"),
        ("b", "org/small", "small"),
        ("c", "org/policy", "large"),
    }


def test_a_failure_of_tracing_is_logged_once_and_the_run_goes_on(caplog, monkeypatch):
    forest = sampled("fof", counting)
    worker, _ = worker_of(forest, otel=True)

    def broken(*_):
        raise OSError("no exporter")

    monkeypatch.setattr(worker._tracing._spans, "write", broken)
    with caplog.at_level(logging.ERROR):
        for _ in range(2):
            worker._trace(forest, {"uid": "u", "global_steps": 3}, False, False)
    assert caplog.text.count("OSError: no exporter") == 1 and "mas.tracing" in caplog.text
