"""What the tests of the command ask, and what they compare."""

from __future__ import annotations

from tests.evaluate.conftest import write_questions
from tests.serving import answer, question_of


def parrot(body, number):
    """Answers with the last word of the question, which is the gold answer."""
    return answer(question_of(body).split()[-1])


def questions(folder, n=6, **options):
    return write_questions(folder / "questions.parquet", [f"word{i}" for i in range(n)], **options)


def lasting(results):
    """Results without what depends on the clock or the command."""
    for source in results["data"].values():
        source["per_trajectory"].pop("seconds")
        for agent in source["agents"].values():
            agent.pop("seconds")
    return {name: results[name] for name in ("data", "average", "samples")}
