"""What a finished work earns: R_A of Eq. 3, and what the paper measures, for the system and for a single agent."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from verl_ext.mas import Task
from verl_ext.memory import EncoderSimilarity, HashingSimilarity, Similarity
from verl_ext.recipe.joyagents.accuracy import accuracy
from verl_ext.recipe.joyagents.react import Work
from verl_ext.tools.retrieval.dense import check_encoder_name

DETAILS = ("rounds", "claimed", "broken", "unanswered", "tool_failures")


def similarity_of(encoder: str) -> Similarity:
    """The similarity of answers that `mas.workflow.encoder` names.

    Raises:
        ValueError: there is no such encoder.
    """
    check_encoder_name(encoder, "mas.workflow.encoder", "hashing")
    return HashingSimilarity() if encoder == "hashing" else EncoderSimilarity(encoder)


@dataclass(frozen=True)
class Scorer:
    """R_A of a trajectory, and what the paper measures.

    Attributes:
        similarity: of answers to questions.
        exact_numbers, check_calls: arguments of `JoyAgents`.
    """

    similarity: Similarity
    exact_numbers: bool
    check_calls: bool

    async def __call__(self, task: Task, work: Work) -> tuple[float, dict[str, float]]:
        """R_A; accuracy, also by kind of task; reasoning rounds; `claimed`, functions reported without a call."""
        claimed, truth = work.claimed(), task.ground_truth
        right = await asyncio.to_thread(accuracy, truth, work.answer, self.similarity, self.exact_numbers)
        if self.check_calls and claimed and (truth["kind"] == "function" or truth.get("functions")):
            right = 0.0
        return right, {
            "accuracy": right,
            f"accuracy_{task.data_source}": right,
            "rounds": work.total("outputs"),
            "claimed": float(len(claimed)),
            "broken": work.total("broken"),
            "unanswered": float(bool(work.limit)),
            "tool_failures": work.total("tool_failures"),
        }
