"""Sends each sampled question to the outside, from one record of it (`QuestionTrace`): as OpenTelemetry spans
(`mas.tracing`), and to the backend of verl's rollout trace (`actor_rollout_ref.rollout.trace`: weave, mlflow, trackio).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from omegaconf import DictConfig, OmegaConf

from verl_ext.mas.workflow import Workflow
from verl_ext.observe.spans import Model, SpanWriter, open_provider
from verl_ext.observe.trajectories import QuestionTrace
from verl_ext.trainer.policies.settings import read_policies
from verl_ext.trainer.rollout.verl_trace import VerlTrace
from verl_ext.trainer.sections import TracingSection

logger = logging.getLogger(__name__)
TRACE = "actor_rollout_ref.rollout.trace"


class Tracing:
    """The traces of one process.

    Args:
        config: verl's whole configuration.
        options: `mas.tracing`.
        workflow: whose agents are called.
        policy: the model that answers for agents without one of their own; None: the trained one.
        policies: the same for each agent whose policy is one of several; None: as `mas.policies` says.
        provider: OpenTelemetry's, in place of the one that exports.

    Raises:
        ValueError: a library is missing.
    """

    def __init__(
        self,
        config: DictConfig,
        options: TracingSection,
        workflow: Workflow,
        policy: Model | None = None,
        policies: Mapping[str, Model] | None = None,
        provider: Any = None,
    ) -> None:
        actor = config.actor_rollout_ref
        self._policy = policy or Model(str(actor.rollout.name), str(actor.model.path))
        self._policies = _models_of_agents(config) if policies is None else policies
        self._workflow, self._failed = workflow, False
        self._spans, self._provider = None, None
        if options.otel:
            names = ("project", "experiment")
            about = {f"verl_ext.{name}": OmegaConf.select(config, f"trainer.{name}_name") for name in names}
            self._provider = provider or open_provider(about)
            self._spans = SpanWriter(self._provider, type(workflow).__name__, self._model_of, options.content)
        self._verl = VerlTrace(OmegaConf.select(config, TRACE), type(workflow).__name__)

    @property
    def wanted(self) -> bool:
        """Whether anybody wants traces."""
        return self._spans is not None or self._verl.backend is not None

    def emit(self, trace: QuestionTrace, phase: str, step: int | None) -> None:
        """Send a sampled question. Never raises: a failure is logged once, and the run goes on without traces."""
        try:
            if self._spans is not None:
                self._spans.write(trace, phase, step)
            self._verl.write(trace, phase, step)
        except Exception:
            if not self._failed:
                logger.exception("a question could not be traced (mas.tracing, %s); further ones are tried", TRACE)
            self._failed = True

    def close(self) -> None:
        """Send what is still held. Blocks, some seconds if nobody listens."""
        if self._provider is not None:
            self._provider.shutdown()

    def _model_of(self, agent: str) -> Model:
        llm = self._workflow.agents[agent].llm if agent in self._workflow.agents else None
        if llm is None:
            return self._policies.get(agent, self._policy)
        chat = getattr(llm, "chat", None)
        return Model("verl_ext", type(llm).__name__) if chat is None else Model("openai", str(chat.model or chat.url))


def _models_of_agents(config: DictConfig) -> dict[str, Model]:
    """Who answers for each agent of `mas.policies`; empty without these."""
    actor = config.actor_rollout_ref
    return {
        agent: Model(str(actor.rollout.name), str(section.model.get("path", actor.model.path)), name)
        for name, section in read_policies(config).items()
        for agent in section.agents
    }
