"""Prompts for instruction-tuned models: what the paper's Figures 12 to 16 ask of each puppet, in our own sentences.

A puppet's prompt is its role (ROLE; Figures 12 and 13) and its action (ACTION; Figures 14 to 16). docs/puppeteer.md
sets them beside the figures, rule by rule. Figures 13 and 14 are pictures: their rules are those of the published code.
The paper prints no prompt of the orchestrator, which is no text model there: `orchestrator` is ours.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from verl_ext.mas.messages import Messages, chat, user
from verl_ext.recipe.puppeteer.puppets import ACT, FINAL, REASONING, TERMINATE, State, pattern_of

# What each agent of the pool can do, for the orchestrator.
DOES = {
    "planning": "breaks the question down and plans the next steps",
    "reasoning": "continues the reasoning towards the answer",
    "critique": "examines the previous reasoning for errors",
    "reflect": "finds out why an attempt failed and outlines a new plan",
    "question": "asks the next sub-question and answers it",
    "summarize": "sums up the previous results",
    "conclude": "concludes with a final answer",
    "modify": "corrects errors of the previous reasoning",
    "read_file": "reads a file that the task names",
    "run_python": "writes a Python program, runs it, and reports what it prints",
    "web_search": "searches the web",
    "access_website": "reads a website of known address",
    "search_arxiv": "searches arXiv for papers",
    TERMINATE: "ends the work: the last final answer is handed in",
    ACT: "no further one for this step: those that are chosen act now, side by side",
}
# Who a puppet is. Figure 12 prints those of the tools, Figure 13 those of the patterns.
ROLE = {
    "planning": "You are a specialist for planning. You work out detailed plans by which a goal is reached.",
    "reasoning": "You are a specialist for logic. You think hard problems through and solve them with care.",
    "critique": "You are a specialist for criticism. You examine what others have reasoned and proposed.",
    "reflect": "You are a specialist for reflection. You look back at the reasoning and say how it can become better.",
    "question": "You are a specialist for questions. You find the sub-questions that help with the main problem.",
    "summarize": "You are a specialist for summaries. You condense what is known into brief conclusions.",
    "conclude": "You are a specialist for conclusions. You give the final conclusion that the reasoning leads to.",
    "modify": "You are a specialist for corrections. You find errors in what was reasoned, explain why they are wrong, "
    "and put them right.",
    "read_file": "You are a specialist for files. You read files and take from them what matters.",
    "run_python": "You are a specialist for Python. You run Python programs and hand back what they give.",
    "web_search": "You are a specialist for searching the web. You find information by a search engine.",
    "access_website": "You are a specialist for websites. You open given addresses and take the data from their pages.",
    "search_arxiv": "You are a specialist for research literature. You look for fitting papers on arXiv.",
}
TEMPLATE = f"{REASONING} [your reasoning result]."
ANSWERED = f"{TEMPLATE}\nThen end with:\n{FINAL} [your final answer]."


def _parameter(what: str, tool: str, example: str) -> str:
    return f'{what} Answer in JSON, for example: {{"action": "{tool}", "parameter": "{example}"}}'


# What a puppet is to do, and the cue after what was done so far. Figures 15 and 16: patterns; Figure 14: tools.
ACTION: dict[str, tuple[str, str]] = {
    "planning": (
        f"Break the question into parts, and plan the next steps towards its answer. Write the plan in this form:\n"
        f"{TEMPLATE}",
        "The plan contains:",
    ),
    "reasoning": (
        f"Carry the reasoning on, so that it comes nearer to the right answer. Write it in this form:\n{ANSWERED}",
        "Keep the direction in which the reasoning goes, and take it further:",
    ),
    "critique": (
        f"Criticise the reasoning so far. Write the criticism in this form:\n{ANSWERED}",
        "What to look at:\n1. Is it plausible?",
    ),
    "reflect": (
        "Below is an attempt to answer a question with the context that was at hand. It did not succeed: the answer "
        "was wrong, or it was worded otherwise than the expected one. Say in a few whole sentences what may have "
        "caused the failure or the other wording, and outline a new plan that keeps it from happening again: brief, "
        "and of the main points only. Consider where the task stands, and propose the next steps. End in this form:\n"
        f"{ANSWERED}",
        "",
    ),
    "question": (
        "Ask the next sub-question, and answer it. It must follow from the reasoning so far and close a gap in it. "
        f"Support the answer by evidence or by argument. End in this form:\n{ANSWERED}",
        "",
    ),
    "summarize": (
        f"Sum up the results so far, and draw intermediate conclusions. Write in this form:\n{ANSWERED}",
        "Sum up the lines of reasoning, and give a conclusion of them all:",
    ),
    "conclude": (
        f"Bring the task to its end, and give the final answer. Write in this form:\n{ANSWERED}",
        "",
    ),
    "modify": (
        "Find the errors in the reasoning so far, and correct them. Write in this form:\n"
        f"{REASONING} [say clearly: 1. which part of the reasoning was wrong; 2. why it was wrong; 3. how it is to be "
        f"understood]. Then:\n{FINAL} [the whole corrected answer].",
        "Name every error, misunderstanding and inaccuracy, and correct it.",
    ),
    "read_file": (_parameter("You are to read a file. Name the file.", "read_file", "data.txt"), ""),
    "run_python": (
        _parameter(
            "You are to write and run a Python program. Write general code that solves problems of this kind, with the "
            "standard library alone, and print whatever is to be seen.",
            "run_python",
            "print(6 * 7)",
        ),
        "",
    ),
    "web_search": (
        _parameter(
            "You are to search the web. Give a phrase or keywords that describe what you look for: concepts, names, "
            "events or a question, so that many kinds of pages are found.",
            "web_search",
            "tallest bridge of Norway",
        ),
        "",
    ),
    "access_website": (
        _parameter(
            "You are to open a website. Give its address, or the address that fits the question best.",
            "access_website",
            "https://www.example.org",
        ),
        "",
    ),
    "search_arxiv": (
        _parameter(
            "You are to search arXiv for papers. Give terms of research: the title of a paper, keywords, or topics of "
            "a field such as physics, mathematics or computer science.",
            "search_arxiv",
            "graph neural networks",
        ),
        "",
    ),
}


def orchestrator(state: State, names: Sequence[str], left: int) -> Messages:
    """Who is to act next."""
    chosen = f"\n\nChosen for this step: {', '.join(state.chosen)}." if state.chosen else ""
    return user(
        f"You direct a team that solves a task.\n\nTask: {state.task}\n\nThe team:\n{_team(names)}\n\n{_so_far(state)}"
        f"{chosen}\n\nAt most {left} more can act, and everything that is said costs. Who acts next? Answer with one "
        "name."
    )


def parts(name: str) -> dict[str, str]:
    """The texts of a puppet's prompt, which a user's own text can keep or replace."""
    action, cue = ACTION[pattern_of(name)]
    return {"role": ROLE[pattern_of(name)], "action": action, "cue": cue}


def puppet(name: str, state: State, role: str = "", action: str = "", cue: str = "") -> Messages:
    """What an agent of the pool is asked; role, action and cue are its `parts`."""
    asked = f"Task: {state.task}\n\n{action}\n\n{_so_far(state)}"
    return chat(role, f"{asked}\n\n{cue}" if cue else asked)


def _team(names: Sequence[str]) -> str:
    def line(name: str) -> str:
        model = name.partition("-")[2]
        return f"- {name}: {DOES[pattern_of(name)]}" + (f", by the model {model}" if model else "")

    return "\n".join(map(line, names))


def _so_far(state: State) -> str:
    if not state.steps:
        return "Nothing has been done yet."
    # Only a step begins at the beginning of a line: no result can pose as another agent's.
    done = "\n".join(step.shown.replace("\n", "\n  ") for step in state.steps)
    return f"The previous reasoning was:\n{done}"


# How a user's text sees arguments that are no texts (mas/prompts.py).
TEXTS: dict[str, Callable[[Any], str]] = {
    "state": lambda state: f"Task: {state.task}\n\n{_so_far(state)}",
    "names": _team,
}
