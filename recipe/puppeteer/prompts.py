"""Prompts in full, for instruction-tuned models: the paper's patterns (Figures 12 to 16) and its templates."""

from __future__ import annotations

from collections.abc import Sequence

from verl_ext.mas.messages import Messages, user
from verl_ext.recipe.puppeteer.puppets import FINAL, REASONING, TERMINATE, State

# What each agent of the pool can do, for the orchestrator.
ROLES = {
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
}
TEMPLATE = f"{REASONING} [your reasoning result]."
ANSWERED = f"{TEMPLATE}\nFinish your answer with:\n{FINAL} [your final answer]."
PATTERNS = {
    "planning": "Decompose the question and plan the next steps to address it. Complete your planning using the "
    f"following template:\n{TEMPLATE}",
    "reasoning": "Continue the reasoning to get closer to the correct answer. You need to follow the direction of the "
    f"reasoning path and go forward. Use the following template:\n{ANSWERED}",
    "critique": "Critique the previous reasoning: is it plausible, is it complete, is every step right? Use the "
    f"following template:\n{ANSWERED}",
    "reflect": "Reflect on the current state of the task. In a few sentences, diagnose what may be wrong and outline a "
    f"new, concise, high-level plan. Use the following template:\n{ANSWERED}",
    "question": "Propose the next sub-question along with its answer. It must follow from the previous reasoning and "
    f"address a gap of it. Use the following template:\n{ANSWERED}",
    "summarize": f"Summarize the previous results and give an intermediate conclusion. Use the template:\n{ANSWERED}",
    "conclude": f"Conclude the task and provide a final answer. Use the following template:\n{ANSWERED}",
    "modify": "Identify and correct errors of the previous reasoning: say which part was wrong, why, and what is "
    f"right. Use the following template:\n{ANSWERED}",
    "read_file": "Which file do you want to read? Answer with its path and nothing else.",
    "run_python": "Write a Python program that brings the task forward, and print what is to be known. Answer with the "
    "program in a fenced block.",
    "web_search": "What do you want to search the web for? Answer with one query and nothing else.",
    "access_website": "Which website do you want to read? Answer with its address (https://…) and nothing else.",
    "search_arxiv": "What do you want to search arXiv for? Answer with a title or keywords and nothing else.",
}


def orchestrator(state: State, names: Sequence[str], left: int) -> Messages:
    """Who is to act next."""
    roles = "\n".join(f"- {name}: {ROLES[name]}" for name in names)
    return user(
        f"You direct a team that solves a task.\n\nTask: {state.task}\n\nThe team:\n{roles}\n\n{_so_far(state)}\n\n"
        f"At most {left} more can act, and everything that is said costs. Who acts next? Answer with one name."
    )


def puppet(name: str, state: State) -> Messages:
    """What an agent of the pool is asked."""
    return user(f"Task: {state.task}\n\n{PATTERNS[name]}\n\n{_so_far(state)}")


def judge(task: str, answer: str) -> Messages:
    """How good a text is (open tasks)."""
    return user(
        f"Task: {task}\n\nText: {answer}\n\nRate its grammar, its fluency and its sense together. Answer with a whole "
        "number from 1 (very bad) to 10 (very good)."
    )


def _so_far(state: State) -> str:
    if not state.steps:
        return "Nothing has been done yet."
    # Only a step begins at the beginning of a line: no result can pose as another agent's.
    done = "\n".join(step.shown.replace("\n", "\n  ") for step in state.steps)
    return f"The previous reasoning was:\n{done}"
