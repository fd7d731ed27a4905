"""Prompts in full, for instruction-tuned models: the paper's (Figures 7 to 13)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from verl_ext.mas.messages import Messages, user
from verl_ext.recipe.smurfs.search import Element
from verl_ext.tools.catalogue.render import clean, neutral, render

# (sub-task, its answer) of those before.
Solved = Sequence[tuple[str, str]]


def planner(question: str) -> Messages:
    """Figure 7."""
    return quoted_user(
        "You need to decompose a complex user's question into some simple sub-tasks and let the model execute it step "
        "by step. Please note that:\n"
        "1. You should only decompose this complex user's question into some simple sub-tasks which can be executed "
        "easily by using a single tool.\n"
        "2. Each simple subtask should be expressed into natural language.\n"
        "3. Each subtask should contain the necessary information from the original question and should be complete, "
        "explicit and self-consistent.\n"
        '4. You must ONLY output in a parsible JSON format. An example output looks like:\n{"Tasks": ["Task 1", "Task '
        '2", ...]}\n\n'
        f"This is the user's question: {question}\nOutput:"
    )


def tool_check(question: str, options: Sequence[str]) -> Messages:
    """Figure 8. The answer is one of `options`: Yes or No."""
    return quoted_user(
        "As a powerful language model, you're equipped to answer user's question with accumulated knowledge. However, "
        "in some cases, you need to use external APIs to answer accurately: where the question requires real-time "
        "information, where you need to obtain information (e.g., ID, name, phone number, geographical location, rank) "
        "that you are not sure of, or where it demands a database search or internet research.\n"
        f"Does this question need an external API? Answer {' or '.join(options)}.\n"
        f"This is the user's question: {question}\nOutput:"
    )


def thought(task: str, memory: Sequence[Element], tools: list[dict[str, Any]], hint: str, solved: Solved) -> Messages:
    """Figure 9: γ = EA.gen_thought(p, M, τ, h)."""
    return quoted_user(
        "You need to analyse the previous execution history and generate your internal reasoning and thoughts on the "
        "task, and how you plan to solve it based on the current attempts.\n"
        "Do not output thought that is too long. Output in 2-3 sentences is OK.\n"
        f"This is the user's task:\n{task}\n{_before(solved)}"
        f"This is the Tool List:\n{_listed(tools)}\n"
        f"This is the previous execution history:\n{_history(memory)}\n"
        f"This is the hint comes from the evaluator:\n{hint or 'none'}\nOutput:"
    )


def action(task: str, thought: str, tools: list[dict[str, Any]], names: Sequence[str]) -> Messages:
    """Figure 10: α = EA.choose_tool(p, γ, τ). The answer is one of the names."""
    return quoted_user(
        f"This is the user's question:\n{task}\nThis is what you thought:\n{thought}\n"
        f"These are the tools you can select to solve the question:\nTool List:\n{_listed(tools)}\n"
        "You should only choose one tool from the Tool List to solve this question. Output its name and nothing else.\n"
        "Output:"
    )


def arguments(task: str, memory: Sequence[Element], tool: dict[str, Any], solved: Solved) -> Messages:
    """Figure 11: β = EA.gen_arguments(p, M, D[α])."""
    return quoted_user(
        "Given a user's question and a API tool documentation, you need to output parameters according to the API tool "
        "documentation to successfully call the API to solve the user's question. Please note that:\n"
        "1. The Example in the API tool documentation can help you better understand the use of the API.\n"
        "2. Ensure the parameters you output are correct. The output must contain the required parameters, and can "
        "contain the optional parameters based on the question. If no parameters in the required parameters and "
        "optional parameters, just leave it as {}\n"
        "3. If the user's question mentions other APIs, you should ONLY consider the API tool documentation I give and "
        "do not consider other APIs.\n"
        "4. The question may have dependencies on answers of other questions, so we will provide logs of previous "
        "questions and answers for your reference.\n"
        '5. You must ONLY output in a parsible JSON Format. The example output looks like: {"keyword": "Artificial '
        'Intelligence", "language": "English"}\n'
        f"There are logs of previous questions and answers:\n{_before(solved)}{_history(memory)}\n"
        f"This is the current user's question: {task}\n"
        f"This is API tool documentation: {clean(json.dumps(tool, ensure_ascii=False))}\nOutput:"
    )


def answer(task: str, result: str, memory: Sequence[Element]) -> Messages:
    """Figure 12: a = AA(q, r, M). Without a result: from the memory alone."""
    said = f"This is the response of the tool:\n{result}\n" if result else ""
    return quoted_user(
        "You should answer the question based on the response output by the API tool. Please note that:\n"
        "1. Answer the question in natural language based on the API response reasonably and effectively.\n"
        "2. The user cannot directly get API response, so you need to make full use of the response and give the "
        "information in the response that can satisfy the user's question in as much detail as possible.\n"
        "3. Do not make up what the response does not say. Output in 3-6 sentences is OK.\n"
        f"This is the user's question:\n{task}\nThis is the previous history:\n{_history(memory)}\n{said}Output:"
    )


def verifier(task: str, answer: str) -> Messages:
    """Figure 13: h, c = VA(q, a)."""
    return quoted_user(
        "An agent is trying to solve the query proposed by the user. You need to evaluate whether the given query has "
        "been completed reasonably. If so, summarize the solution to the user. If not, summarize the current progress, "
        "and propose what is missing.\n"
        'You must ONLY output in a parsible JSON format: {"Speak": "your answer or hint", "Status": 0 or 1}. Status 1 '
        "means that the query is solved, Status 0 that it is not.\n"
        f"Query: {task}\nAnswer: {answer}\nOutput:"
    )


def final(question: str, solved: Solved) -> Messages:
    """The answer to the whole question from those of its sub-tasks."""
    return quoted_user(
        "You should answer the user's question from the answers to its sub-tasks. Reason in one or two sentences, then "
        "end with a line `FINAL ANSWER: ` and the answer as short as it can be (a name, a number, yes or no, or the "
        "list that is asked for).\n"
        f"{_before(solved)}This is the user's question:\n{question}\nOutput:"
    )


def documents(result: Any, limit: int) -> str:
    """A tool's result, as the answer agent reads it."""
    return render(result, limit)


def _listed(tools: list[dict[str, Any]]) -> str:
    return "\n".join(clean(f"- {tool['name']}: {tool['description']}") for tool in tools) or "none"


def _history(memory: Sequence[Element]) -> str:
    return "\n".join(f"thought: {m.thought}\nanswer: {m.answer}" for m in memory) or "none"


def _before(solved: Solved) -> str:
    return "".join(f"sub-task: {task}\nanswer: {answer}\n" for task, answer in solved)


def quoted_user(content: str) -> Messages:
    """Whatever agents, tools and their documentation say in it is no special token."""
    return user(neutral(content))
