"""Chat servers that play the Smurfs' agents, and the agent of ReAct and DFSDT, by rule (playing.py)."""

from __future__ import annotations

import json
import re
from typing import Any

from tests.evaluate.playing import ToolPlayer, stopped
from tests.serving import answer
from verl_ext.recipe.smurfs.turns import STOPS

# What each agent's prompt begins with, and where the sub-task or question stands in it.
PROMPTS = {
    "planner": ("Divide a user's complex question", r".*The user's question: (.*)\nOutput:$"),
    "tool_check": ("You are a strong language model", r"The user's question:\n(.*)\nOutput:$"),
    "thought": ("Look at what has been done", r"The user's task:\n(.*?)\n(?:sub-task: |The tools:)"),
    "action": ("The user's question:", r"question:\n(.*?)\nYour thought about it:"),
    "arguments": ("You are given a user's question", r"present question: (.*?)\nThe documentation of the API:"),
    "answer": ("Answer the question on", r"user's question:\n(.*?)\nWhat (?:was done before|the API has returned):"),
    "verifier": ("Agents are working", r"\nThe original question: (.*?)\nOutput:$"),
    "final": ("Answer the user's question from", r"The user's question:\n(.*)\nOutput:$"),
}
THOUGHT = re.compile(r"Your thought about it:\ncall (\d+)")
LISTED = re.compile(r"^(\d+)\. (.+?): ", re.M)
DONE = re.compile(r"answer: call \d+ is done")
# Tokens of prompt and output that the server reports: of a planner, and of any other agent (`tests.serving.answer`).
PLANNED, OTHERS = (20, 10), (7, 2)


class SmurfsPlayer(ToolPlayer):
    """All agents of the Smurfs.

    A competent planner names a sub-task per gold call, "<number>. <question>". Without a planner the question itself is
    worked on until all calls are done; how many are, the history says. An incompetent team writes no JSON, and chooses
    a tool that there is not, as a server that ignores `structured_outputs` may let it.

    Args:
        rows, catalogue, competent: see `ToolPlayer`.
    """

    def role(self, body: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        (message,) = body["messages"]
        prompt = message["content"]
        ((agent, place),) = [(name, place) for name, (start, place) in PROMPTS.items() if prompt.startswith(start)]
        assert "structured_outputs" not in body, "Figure 10's agent writes a number; nobody decides"
        task = re.search(place, prompt, re.S)[1]
        said = self.say(agent, task, prompt) if self.competent else "Hm, no such tool."
        completion = answer(said)
        tokens = PLANNED if agent == "planner" else OTHERS
        completion["usage"] = dict(zip(("prompt_tokens", "completion_tokens"), tokens, strict=True))
        return agent, completion

    def say(self, agent: str, task: str, prompt: str) -> str:
        """A competent agent's output."""
        number, question = self.split(task)
        calls, final = self.plans[question]
        if agent == "planner":
            return json.dumps({"Tasks": [f"{place}. {question}" for place in range(len(calls))]})
        if agent == "final":
            return f"So it is.\nFINAL ANSWER: {final}"
        done = len(DONE.findall(prompt))
        if agent == "verifier":
            solved = number is not None or f"call {len(calls) - 1} is done" in prompt
            return json.dumps({"Speak": "well", "Status": int(solved)})
        place = min(done if number is None else number, len(calls) - 1)
        if agent == "tool_check":
            return json.dumps({"Reason": "a tool knows it", "Choice": "Yes"})
        if (
            agent == "action"
        ):  # a tool that was popped, where nobody says that a sub-task is solved, is no longer listed
            numbers = {name: int(number) for number, name in LISTED.findall(prompt)}
            wanted = calls[int(THOUGHT.search(prompt)[1])]["name"]
            return json.dumps({"ID": numbers.get(wanted, 0), "Reason": "it does what is asked"})
        said = {"thought": f"call {place} now", "answer": f"call {place} is done"}
        return said.get(agent) or json.dumps(calls[place]["arguments"])

    def split(self, task: str) -> tuple[int | None, str]:
        """(number of the gold call, question) of a sub-task; the number is None for a question itself."""
        if task in self.plans:
            return None, task
        number, _, question = task.partition(". ")
        return int(number), question


class BaselinePlayer(ToolPlayer):
    """The agent of ReAct and DFSDT."""

    def role(self, body: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        work = body["messages"][0]["content"].partition("\nQuestion: ")[2]
        question = max((one for one in self.plans if work.startswith(one)), key=len)
        # ReAct's calls stand in the message that it goes on in, DFSDT's in the one prompt.
        said = "".join(message["content"] for message in body["messages"] if message["role"] == "assistant")
        made = (said + work).count("\nObservation: ")
        return "agent", stopped(
            f"Thought: well\n{self.say(question, made)}\nObservation: made up", body["stop"], (STOPS,)
        )

    def say(self, question: str, made: int) -> str:
        """The next gold call, or the answer."""
        calls, final = self.plans[question]
        if made < len(calls):
            return f"Action: {calls[made]['name']}\nAction Input: {json.dumps(calls[made]['arguments'])}"
        return f"Action: Finish\nAction Input: {json.dumps({'answer': final})}"
