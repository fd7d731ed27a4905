"""Prompts for instruction-tuned models: every rule and every kind of example of the paper's Figures 7 to 13.

The sentences and the examples are ours; docs/smurfs.md sets them beside the paper's. `final` has no figure: the paper
prints no such prompt. Small models copy examples: an output that is an example is refused (`EXAMPLES`, grammar.py).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from verl_ext.mas.messages import Messages, user
from verl_ext.recipe.smurfs.search import Element
from verl_ext.tools.catalogue.render import clean, neutral, render

# (sub-task, its answer) of those before.
Solved = Sequence[tuple[str, str]]

# Question -> its sub-tasks, as the two of Figure 7: a story that asks for two things.
PLANS = {
    "My sister moves to Porto in May. Which museums there are free on Sundays? I also want to send her a parcel, so "
    "please tell me the price of 3 kg from Graz to Porto.": [
        "List the museums in Porto that are free on Sundays.",
        "Find the price of sending a parcel of 3 kg from Graz to Porto.",
    ],
    "We are writing a quiz about rivers. Please look up the length of the river with the id R-2207, and find three "
    "songs that have a river in their title.": [
        "Look up the length of the river with the id R-2207.",
        "Find three songs with a river in their title.",
    ],
}
ARGUMENTS = {"station": "Ostrava-Svinov", "language": "Czech"}
CHECKS = [
    {"Reason": "why the question can be answered without an external API", "Choice": "No"},
    {"Reason": "why an external API has to be called for the question", "Choice": "Yes"},
]
VERDICTS = [
    {"Speak": "the whole answer for the user, from all that was found", "Status": "1"},
    {"Speak": "your words to the agents, if the task is not finished", "Status": "0"},
]
# What a parser refuses as copied from the prompt, by agent.
EXAMPLES: dict[str, list[Any]] = {
    "planner": [{"Tasks": tasks} for tasks in PLANS.values()],
    "arguments": [ARGUMENTS],
    "tool_check": CHECKS,
    "verifier": VERDICTS,
}


def planner(question: str) -> Messages:
    """Figure 7."""
    shown = "".join(f"The user's question: {asked}\n{_says({'Tasks': tasks})}\n" for asked, tasks in PLANS.items())
    return quoted_user(
        "Divide a user's complex question into simple sub-tasks, which a model will then carry out step by step. "
        "Mind these rules:\n"
        "1. Write only simple sub-tasks, such as one tool alone can easily carry out.\n"
        "2. Write each of them in natural language.\n"
        "3. Each sub-task has the information of the original question that it needs. It is complete and explicit, and "
        "does not contradict itself.\n"
        "4. Write JSON that can be parsed, and NOTHING else, in the form of these examples.\n"
        f"{shown}"
        f"The user's question: {question}\nOutput:"
    )


def tool_check(task: str) -> Messages:
    """Figure 8, asked for each sub-task."""
    no, yes = CHECKS
    return quoted_user(
        "You are a strong language model and can answer questions from the knowledge that you have gathered. But some "
        "answers are only right if an external API is called. So check whether the user's question needs a call of an "
        "external API. It may help you to ask:\n"
        "1. Does the question need information of this moment? Your knowledge is not updated as time goes on, so "
        "every such question needs a call.\n"
        "2. Do you need a piece of information, such as an ID, a name, a phone number, a place or a rank, of which you "
        "are not sure? Then the APIs of a database have to be called.\n"
        "3. Would one have to search a database or the internet for the answer? Then a call is needed, too.\n"
        "If a call is needed, say 'YES'; if not, say 'NO'. Give your reasons first, and decide then. Write JSON that "
        "can be parsed, and nothing else. Two examples of its form:\n"
        f"Example 1: {json.dumps(no)}\nExample 2: {json.dumps(yes)}\n"
        f"The user's question:\n{task}\nOutput:"
    )


def thought(task: str, memory: Sequence[Element], tools: list[dict[str, Any]], hint: str, solved: Solved) -> Messages:
    """Figure 9: γ = EA.gen_thought(p, M, τ, h)."""
    return quoted_user(
        "Look at what has been done so far, and write down what you think about the task and how you want to solve it, "
        "given the attempts up to now.\n"
        "Keep the thought short: two or three sentences will do.\n"
        f"The user's task:\n{task}\n{_before(solved)}"
        f"The tools:\n{_listed(tools)}\n"
        f"What has been done so far:\n{_history(memory)}\n"
        f"The evaluator's hint:\n{hint or 'none'}\nOutput:"
    )


def action(task: str, thought: str, tools: list[dict[str, Any]], names: Sequence[str]) -> Messages:
    """α as a decision: the answer is one of the names, and nothing else can be sampled (`tool_choice: name`)."""
    return quoted_user(
        f"The user's question:\n{task}\nYour thought about it:\n{thought}\n"
        f"You can choose among these tools to solve the question:\n{_listed(tools)}\n"
        "Choose one tool and no more. Write its name and nothing else.\nOutput:"
    )


def action_by_id(task: str, thought: str, tools: list[dict[str, Any]], names: Sequence[str]) -> Messages:
    """Figure 10: α = EA.choose_tool(p, γ, τ), as JSON with the tool's number and a reason (`tool_choice: id`)."""
    listed = "\n".join(clean(f"{number}. {tool['name']}: {tool['description']}") for number, tool in enumerate(tools))
    return quoted_user(
        f"The user's question:\n{task}\nYour thought about it:\n{thought}\n"
        f"You can choose among these tools to solve the question:\n{listed}\n"
        "Mind these rules:\n"
        "1. Choose one tool of the list and no more.\n"
        "2. Write the ID of the tool and your reason for the choice, as JSON that can be parsed, and NOTHING else. An "
        "example of its form:\n"
        'Example: {"ID": the number of the tool, "Reason": "why you choose it"}\nOutput:'
    )


def arguments(task: str, memory: Sequence[Element], tool: dict[str, Any], solved: Solved) -> Messages:
    """Figure 11: β = EA.gen_arguments(p, M, D[α])."""
    return quoted_user(
        "You are given a user's question and the documentation of an API. Write the parameters with which a call of "
        "the API succeeds and solves the question, as the documentation asks for them. Mind these rules:\n"
        "1. If the documentation has an example, it helps you to understand how the API is used.\n"
        "2. The parameters must be right. All required ones must be there, and optional ones may be, if the question "
        "calls for them. If the API has neither required nor optional parameters, write {}\n"
        "3. The question may speak of other APIs. Keep to the documentation that you are given, and leave others "
        "aside.\n"
        "4. The question may depend on the answers to other questions: below you find the earlier questions and "
        "answers.\n"
        f"5. Write JSON that can be parsed, and NOTHING else. An example of its form: {json.dumps(ARGUMENTS)}\n"
        f"Earlier questions and answers:\n{_before(solved)}{_history(memory)}\n"
        f"The user's present question: {task}\n"
        f"The documentation of the API: {_documentation(tool)}\nOutput:"
    )


def answer(task: str, result: str, memory: Sequence[Element]) -> Messages:
    """Figure 12: a = AA(q, r, M). Without a result: from the memory alone, or where there is none, without tools."""
    history = f"What was done before:\n{_history(memory)}\n" if memory else ""
    said = result or ("see above" if memory else "none: no API was called, so answer from what you know")
    return quoted_user(
        "Answer the question on the basis of what the API has returned. Mind these rules:\n"
        "1. Answer in natural language, sensibly and to the point, by what the API has returned.\n"
        "2. The user does not see what the API returns. So use all of it, and give whatever in it serves the question, "
        "in as much detail as you can.\n"
        "3. Keep the answer short: three to six sentences will do.\n"
        f"The user's question:\n{task}\n{history}"
        f"What the API has returned:\n{said}\nOutput:"
    )


def verifier(task: str, answer: str) -> Messages:
    """Figure 13: h, c = VA(q, a)."""
    solved, pending = VERDICTS
    return quoted_user(
        "Agents are working on a user's query. Judge whether the query has been carried out sensibly and accurately. "
        "If it has, sum up the solution for the user. If not, sum up how far they are, and say what is missing.\n"
        "Your response has two elements:\n"
        "Speak: your words to the agents if the task is not finished, or, if it is, the complete answer for the user "
        "from the whole record of the work\n"
        "Status: 0 or 1; 0: not finished, 1: finished\n"
        "Write JSON that can be parsed, and nothing else. Two examples of its form:\n"
        f"Example 1: {json.dumps(solved)}\nExample 2: {json.dumps(pending)}\n"
        f"The answer from the work so far:\n{answer}\n"
        f"The original question: {task}\nOutput:"
    )


def final(question: str, solved: Solved, whole: bool = False) -> Messages:
    """The answer to the question from those of its sub-tasks. The paper prints no prompt for it.

    whole: for a reader, as detailed as they are; otherwise short, to be compared with a target.
    """
    form = (
        "Answer in natural language. The user sees none of those answers, so give whatever in them serves the "
        "question, in as much detail as you can."
        if whole
        else "Reason in one or two sentences, then end with a line `FINAL ANSWER: ` and the answer as short as it can "
        "be (a name, a number, yes or no, or the list that is asked for)."
    )
    return quoted_user(
        f"Answer the user's question from the answers to its sub-tasks. {form}\n"
        f"{_before(solved)}The user's question:\n{question}\nOutput:"
    )


def documents(result: Any, limit: int) -> str:
    """A tool's result, as the answer agent reads it."""
    return render(result, limit)


def _says(value: Any) -> str:
    return f"Output: {json.dumps(value, ensure_ascii=False)}"


def _documentation(tool: dict[str, Any]) -> str:
    return clean(json.dumps(tool, ensure_ascii=False))


def _listed(tools: list[dict[str, Any]]) -> str:
    return "\n".join(clean(f"- {tool['name']}: {tool['description']}") for tool in tools) or "none"


def _history(memory: Sequence[Element]) -> str:
    return "\n".join(f"thought: {m.thought}\nanswer: {m.answer}" for m in memory) or "none"


def _before(solved: Solved) -> str:
    return "".join(f"sub-task: {task}\nanswer: {answer}\n" for task, answer in solved)


def _numbered(names: Sequence[str]) -> str:
    return "\n".join(f"{number}. {name}" for number, name in enumerate(names))


def quoted_user(content: str) -> Messages:
    """Whatever agents, tools and their documentation say in it is no special token."""
    return user(neutral(content))


# How an argument is written in a text of `mas.workflow.prompts`.
TEXTS: dict[str, Callable[[Any], str]] = {
    "memory": lambda memory: neutral(_history(memory)),
    "names": lambda names: neutral(_numbered(names)),
    "solved": lambda solved: neutral(_before(solved)),
    "tool": lambda tool: neutral(_documentation(tool)),
    "tools": lambda tools: neutral(_listed(tools)),
}
