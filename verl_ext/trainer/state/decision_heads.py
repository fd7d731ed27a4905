"""Policy heads in training: sent to rollouts, trained on each step's decisions, saved in checkpoints."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from verl_ext.algorithms import Algorithm
from verl_ext.heads import PolicyHead, Weights
from verl_ext.heads.learner import Learner, check_encoder
from verl_ext.mas.workflow import Workflow
from verl_ext.observe.question_stats import HeadDecision, QuestionStats
from verl_ext.storage.files import writing
from verl_ext.trainer.batch import numbered
from verl_ext.trainer.build import build_workflow
from verl_ext.trainer.config import MasConfig
from verl_ext.trainer.state import checkpoint

logger = logging.getLogger(__name__)

FOLDER, FILE = "heads", "heads.pt"


class DecisionHeads:
    """The policy heads of a run (`mas.agents.<name>.head`): trained here, after each step's rollouts.

    The rollouts of a step use the weights after the step before. Advantages are `Algorithm.head_advantages`.

    Args:
        mas: the configuration.
        algorithm: of the run.
        folder: of the run.
        temperature: of the rollouts.
    """

    def __init__(self, mas: MasConfig, algorithm: Algorithm, folder: str | Path, temperature: float):
        self.folder = Path(folder)
        self.algorithm = algorithm
        self.learners: dict[str, Learner] = {}
        if any(section.head for section in mas.agents.values()):
            for name, head in heads_of(build_workflow(mas)).items():
                section = mas.agents[name].head
                self.learners[name] = Learner(head.similarity, section.lr, section.entropy, temperature)

    @property
    def parts(self) -> tuple[str, ...]:
        """What a checkpoint of this run holds of them."""
        return (f"{FOLDER}/{FILE}",) if self.learners else ()

    def start(self, loaded: Path | None) -> None:
        """Begin with the heads of a checkpoint (…/global_step_N); with untrained ones if there is none.

        Raises:
            ValueError: a saved head is of another encoder.
        """
        saved = read_heads(loaded / FOLDER) if loaded is not None else {}
        for name, learner in self.learners.items():
            if name in saved:
                learner.load(saved[name])
            elif loaded is not None:
                logger.warning("%s has no head of agent %s: it begins untrained", loaded, name)

    def publish(self, reach: Callable[[dict[str, Weights]], None]) -> None:
        """Let rollouts see the heads: `reach` sends their weights to all workers, now and after each step."""
        self._reach = reach
        self._send()

    def _send(self) -> None:
        if self.learners:
            self._reach({name: learner.weights for name, learner in self.learners.items()})

    def learn(self, step: int, stats: Sequence[QuestionStats]) -> dict[str, float]:
        """Let the heads learn from a step's decisions; its next rollouts see them. Returns head/*."""
        metrics: dict[str, float] = {}
        trajectories = sum(len(question.rewards) for question in stats)
        for name, learner in self.learners.items():
            made = [made for question in stats for made in question.head_decisions if made.agent == name]
            found = self._learn(learner, made, trajectories) if made else {}
            learner.version = step
            metrics |= {f"head/{name}/{key}": value for key, value in found.items()}
        self._send()
        return metrics

    def _learn(self, learner: Learner, made: list[HeadDecision], trajectories: int) -> dict[str, float]:
        returns = torch.tensor([decision.reward for decision in made], dtype=torch.float64)
        group = numbered([decision.group for decision in made])
        advantages = self.algorithm.head_advantages(returns, group, learner.baseline)
        found = learner.learn(
            [decision.state for decision in made],
            [decision.options for decision in made],
            [decision.chosen for decision in made],
            advantages,
            trajectories,
        )
        return found | {"return": returns.mean().item(), "decisions": float(len(made))}

    def save(self, step: int) -> None:
        """Save the heads in the checkpoint of `step`; remove them from checkpoints whose weights verl has removed."""
        if not self.learners:
            return
        checkpoint.remove_stale(self.folder, FOLDER)
        with writing(self.folder / f"global_step_{step}" / FOLDER / FILE, "wb") as file:
            torch.save({name: learner.state() for name, learner in self.learners.items()}, file)


def heads_of(workflow: Workflow) -> dict[str, PolicyHead]:
    """The agents of a workflow that a head answers for."""
    return {name: agent.llm for name, agent in workflow.agents.items() if isinstance(agent.llm, PolicyHead)}


def set_weights(workflow: Workflow, weights: dict[str, Weights]) -> None:
    """Let the heads of a workflow decide with these weights from now on."""
    for name, head in heads_of(workflow).items():
        head.weights = weights[name]


def read_heads(folder: Path) -> dict[str, dict[str, Any]]:
    """Agent -> the saved `Learner.state` of its head; empty if there is no file.

    Raises:
        ValueError: the file cannot be read.
    """
    file = folder / FILE
    if not file.exists():
        return {}
    try:
        saved = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises many kinds of errors for a damaged file
        raise ValueError(f"{file} cannot be read: {type(error).__name__}: {error}") from error
    if not isinstance(saved, dict):
        raise ValueError(f"{file} cannot be read: it holds a {type(saved).__name__}, and no policy heads by agent")
    return saved


def weights_from(folder: Path, workflow: Workflow) -> dict[str, Weights]:
    """The weights of a workflow's heads in the folder of a checkpoint (…/global_step_N/heads).

    Raises:
        ValueError: the folder lacks a head, or a head is of another encoder.
    """
    saved, heads = read_heads(folder), heads_of(workflow)
    lacking = [name for name in heads if name not in saved]
    if lacking:
        raise ValueError(
            f"{folder} has no policy head of {', '.join(lacking)}. Remedy: the folder `{FOLDER}` of a checkpoint that "
            f"was trained with mas.agents.{lacking[0]}.head (…/global_step_N/{FOLDER})"
        )
    for name, head in heads.items():
        check_encoder(saved[name], head.similarity)
    return {name: Weights(saved[name]["matrix"].numpy(), saved[name]["version"]) for name in heads}
