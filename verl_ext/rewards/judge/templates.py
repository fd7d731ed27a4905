"""What a judge is asked: an instruction, the fields that it reads, and the answers that it may give.

The user's own are in a YAML file, which adds to these and may replace them:

    politeness:
      text: Judge how polite ANSWER is as a reply to QUESTION.
      fields: [question, answer]
      answers: {score: [1, 5], tone: [warm, neutral, cold]}
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import Field, field_validator

from verl_ext.rewards.judge.reading import Allowed
from verl_ext.settings import Settings


class Template(Settings):
    """One question to a judge.

    Attributes:
        text: the instruction; it names the fields in capitals.
        fields: what `Judge.ask` is given, shown below the instruction.
        answers: name -> the words allowed, at least two; or two numbers, the lowest and the highest.
    """

    text: str = Field(min_length=1)
    fields: list[str] = Field(min_length=1)
    answers: dict[str, list[Any]] = Field(min_length=1)

    @field_validator("answers")
    @classmethod
    def _check_answers(cls, given: dict[str, list[Any]]) -> dict[str, list[Any]]:
        if "reason" in given:
            raise ValueError("must not have `reason`: the judge is always asked for one")
        for name, allowed in given.items():
            Allowed.of(name, allowed)
        return given


def read_templates(path: str | None) -> dict[str, Template]:
    """The templates here, with those of a YAML file (None: no file).

    Raises:
        ValueError: the file cannot be read, or a template in it is wrong.
    """
    if path is None:
        return dict(TEMPLATES)
    try:
        content = yaml.safe_load(Path(path).read_text("utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ValueError(f"mas.judge.templates={path!r} cannot be read as YAML: {error}") from None
    if not isinstance(content, Mapping):
        raise ValueError(f"{path} must map names of templates to sections with text, fields and answers")
    return {**TEMPLATES, **{str(name): Template.read(given, f"{path}: {name}") for name, given in content.items()}}


STATUS = ["solved", "unsolved", "unsure"]
TEMPLATES = {
    # ToolEval's two steps (StableToolBench, toolbench/tooleval): the answer alone; where that is unsure, the calls too.
    "answer_status": Template(
        text="QUERY is what a user asked an assistant with tools, ANSWER is its final answer. Decide whether "
        "the answer gives all that was asked for. An answer that only apologises, says that something "
        "failed, or puts the user off is unsolved. Say unsure where it looks complete, but whether it is "
        "true depends on the tools' results, which you do not see.",
        fields=["query", "answer"],
        answers={"status": STATUS},
    ),
    "path_status": Template(
        text="QUERY is what a user asked an assistant with tools, CALLS are the calls that it made with their "
        "results, ANSWER is its final answer. Decide whether the calls' results support the answer and "
        "the answer gives all that was asked for. Where the calls failed and the answer makes something "
        "up, it is unsolved. Say unsure only where the results leave it open.",
        fields=["query", "calls", "answer"],
        answers={"status": STATUS},
    ),
    "preference": Template(
        text="Two assistants with tools worked on QUERY. FIRST and SECOND each give an assistant's final "
        "answer and its tool calls. Choose the better one: first by how much of the query is answered and "
        "supported by the calls' results, then by how informative and exact the answer is, then by how "
        "few needless calls were made. The order in which they stand means nothing.",
        fields=["query", "first", "second"],
        answers={"better": ["first", "second"]},
    ),
    "exact_answer": Template(
        text="RESPONSE answers QUESTION, whose right answer is TARGET. Find the final answer in the response "
        "(there may be none) and decide whether it is the target. Do not solve the question yourself, and "
        "do not argue for another answer. A small difference in rounding or another way of writing the "
        "same thing is correct; anything ambiguous or not equivalent, or no final answer, is incorrect.",
        fields=["question", "target", "response"],
        answers={"correct": ["yes", "no"]},
    ),
    "commongen": Template(
        text="TEXT was to be coherent prose that uses all CONCEPTS. Rate it in four ways, from 1 (useless) to "
        "10 (faultless). grammar: spelling, grammar and fluency. relevance: it is about the concepts and "
        "does what TASK asks. logic: what it says is consistent and agrees with common sense. coverage: "
        "the share of the concepts that it uses, in any inflection; 10 if all.",
        fields=["task", "concepts", "text"],
        answers={name: [1, 10] for name in ("grammar", "relevance", "logic", "coverage")},
    ),
    "software": Template(
        text="PROGRAM was written for REQUIREMENT. Rate its consistency from 1 (another program) to 10 (all that was "
        "asked for): does it do what the requirement describes? Judge what the code does, not how it looks, and "
        "not whether it runs.",
        fields=["requirement", "program"],
        answers={"consistency": [1, 10]},
    ),
}
