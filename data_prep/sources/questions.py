"""Questions with an answer, and writing tasks: how a row of each set of reasoning.py is read."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from verl_ext.data_prep.rows import list_field, text_field

LETTERS = "ABCDEFGHIJ"


@dataclass(frozen=True)
class Question:
    """A question, or a writing task.

    Attributes:
        target: the gold answers; for a writing task what the text must have (concepts), or be about (a requirement).
        kind: how an answer is compared: number, letter, math (an expression), exact (GAIA), judged (HLE), qa (meaning),
            concepts, software.
        level, category: what the set calls its difficulty and its subject; "" if it does not say.
        part: of the set, which is reported apart: its data_source is the set's name, "_" and the part.
        file: name of the file that belongs to the question.
    """

    text: str
    target: list[str]
    kind: str
    level: str = ""
    category: str = ""
    file: str = ""
    part: str = ""


# (row, where) -> the question, or the reason why the row is left out.
Read = Callable[[dict[str, Any], str], "Question | str"]


def gsm8k(row: dict[str, Any], where: str) -> Question:
    """The number after the last `####`."""
    answer = text_field(row, "answer", where)
    if "####" not in answer:
        raise ValueError(f"{where}: field 'answer' has no '####' before its number: {answer[-60:]!r}")
    number = answer.rpartition("####")[2].strip().replace(",", "")
    if not re.fullmatch(r"[-+]?\$?\d*\.?\d+", number):
        raise ValueError(f"{where}: field 'answer' has no number after its '####': {answer[-60:]!r}")
    return Question(text_field(row, "question", where), [number], "number")


def gsm_hard(row: dict[str, Any], where: str) -> Question:
    """A float, written without an exponent and without a point that it does not need."""
    target = row.get("target")
    wrong = isinstance(target, bool) or (isinstance(target, float) and not math.isfinite(target))
    if wrong or not isinstance(target, int | float):
        raise ValueError(f"{where}: field 'target': given {target!r:.60}, expected a number.")
    shown = str(int(target)) if target == int(target) else f"{target:.10f}".rstrip("0")
    return Question(text_field(row, "input", where), [shown], "number")


def mmlu_pro(row: dict[str, Any], where: str) -> Question:
    """The question with its options; the letter of the right one."""
    options = [str(option) for option in list_field(row, "options", where)]
    letter = text_field(row, "answer", where)
    if letter not in list(LETTERS[: len(options)]):
        raise ValueError(f"{where}: field 'answer' is {letter!r}, but there are {len(options)} options.")
    listed = "\n".join(f"({LETTERS[i]}) {option}" for i, option in enumerate(options) if option != "N/A")
    text = f"{text_field(row, 'question', where)}\n{listed}\nAnswer with the letter of the right option."
    return Question(text, [letter], "letter", category=str(row.get("category") or ""))


def commongen_hard(row: dict[str, Any], where: str) -> Question:
    """The concepts that a paragraph must contain."""
    concepts = [str(concept) for concept in list_field(row, "concepts", where)]
    if not concepts:
        raise ValueError(f"{where}: field 'concepts' is empty.")
    text = f"Write a coherent paragraph that uses all of these concepts: {', '.join(concepts)}."
    return Question(text, concepts, "concepts")


def srdd(row: dict[str, Any], where: str) -> Question:
    """A software to be written; the target is its description, with which a judge compares the program."""
    name, description = (text_field(row, key, where) for key in ("Name", "Description"))
    if not description:
        raise ValueError(f"{where}: field 'Description' is empty.")
    text = (
        f"Write the software {name.replace('_', ' ')} in Python, as one complete program. It is to be:\n{description}"
    )
    return Question(text, [description], "software", category=str(row.get("Category") or "").strip())


def gaia(row: dict[str, Any], where: str) -> Question | str:
    """A question of GAIA; the answers of its test set are not public ("?")."""
    given = row.get("Final answer", row.get("answer"))
    answer = "" if given is None else str(given).strip()
    if answer in ("", "?"):
        return "no public answer"
    text, file = text_field(row, "Question", where), str(row.get("file_name") or "").strip()
    attached = f"\n\nAttached file: {file}" if file else ""
    part = str(row.get("problem_type") or ("file" if file else "text"))  # DeepAgent's copy also has mm
    return Question(f"{text}{attached}", [answer], "exact", level=str(row.get("Level") or ""), file=file, part=part)


def hle(row: dict[str, Any], where: str) -> Question | str:
    """A question of Humanity's Last Exam; those with an image are left out, because no tool here sees."""
    if row.get("image"):
        return "with an image"
    kind = {"multipleChoice": "letter"}.get(str(row.get("answer_type")), "judged")
    question, answer = text_field(row, "question", where), text_field(row, "answer", where)
    return Question(question, [answer], kind, category=str(row.get("category") or ""))


def deepmath(row: dict[str, Any], where: str) -> Question:
    """A question of DeepMath-103K; its solutions are not read."""
    question, answer = text_field(row, "question", where), text_field(row, "final_answer", where)
    level, topic = (str(row.get(name) or "") for name in ("difficulty", "topic"))
    return Question(question, [answer], "math", level=level, category=topic)


def web_question(row: dict[str, Any], where: str) -> Question:
    """A question of WebShaper or WebDancer."""
    return Question(text_field(row, "question", where), [text_field(row, "answer", where)], "qa")


def coig(row: dict[str, Any], where: str) -> Question:
    """An instruction of COIG or COIG-CQIA with its answer, or a question of COIG's exams."""
    parts: tuple[str, ...]
    if "textbox_question" in row:
        parts, answer = ("textbox_q_instruction", "textbox_q_context", "textbox_question"), "textbox_answer"
    else:
        own = "trans_" if row.get("trans_instruction") else ""
        parts, answer = (f"{own}instruction", f"{own}input"), f"{own}output"
    said = [str(row.get(part) or "").strip() for part in parts]
    text, target = "\n".join(part for part in said if part), text_field(row, answer, where)
    return Question(text, [target], "qa", category=str(row.get("subject") or ""))


class DataSet(NamedTuple):
    """What a set is, how its rows are read, and where they come from.

    test_only: a benchmark, whose questions all are test questions.
    file: the usual name of its file, with wildcards, where that does not begin with the set's name.
    """

    about: str
    read: Read
    ability: str
    hub: tuple[str, str | None] | None = None
    hub_splits: tuple[str, ...] = ()
    test_only: bool = False
    file: str = ""


SETS = {
    "gsm8k": DataSet("GSM8K: grade-school mathematics", gsm8k, "math", ("openai/gsm8k", "main"), ("train", "test")),
    "gsm_hard": DataSet(
        "GSM-Hard: GSM8K with large numbers", gsm_hard, "math", ("reasoning-machines/gsm-hard", None), ("train",)
    ),
    "mmlu_pro": DataSet(
        "MMLU-Pro: questions with up to ten options", mmlu_pro, "knowledge", ("TIGER-Lab/MMLU-Pro", None), ("test",)
    ),
    "commongen_hard": DataSet("CommonGen-Hard: a paragraph with given concepts", commongen_hard, "writing"),
    "srdd": DataSet("SRDD: software requirements", srdd, "software", file="data_attribute_format.csv"),
    "gaia": DataSet(
        "GAIA: general tasks with tools",
        gaia,
        "general",
        ("gaia-benchmark/GAIA", "2023_all"),
        ("validation",),
        True,
        "metadata*",
    ),
    "hle": DataSet("Humanity's Last Exam, questions in text", hle, "general", ("cais/hle", None), ("test",), True),
    "deepmath": DataSet(
        "DeepMath-103K: hard mathematics with one final answer",
        deepmath,
        "math",
        ("zwhe99/DeepMath-103K", None),
        ("train",),
    ),
    "webshaper": DataSet("WebShaper: questions for a web search", web_question, "web"),
    "webdancer": DataSet("WebDancer: questions for a web search", web_question, "web", file="sample_qa.jsonl"),
    "coig": DataSet("COIG: Chinese questions of an open domain", coig, "qa"),
}
