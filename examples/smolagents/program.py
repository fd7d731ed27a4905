"""An orchestrator and a code agent on smolagents: who works on the question, until the orchestrator ends the work.

It knows a server, a key, a search and a place where programs run, and nothing of verl_ext. The worker run_python is
smolagents' CodeAgent; its programs run where `execute` runs them. The other workers answer by text.

    orchestrator ─▶ run_python | web_search | reasoning | … ─▶ orchestrator ─▶ … ─▶ terminate
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from openai import DefaultHttpxClient
from smolagents import CodeAgent, LogLevel, OpenAIModel
from smolagents.local_python_executor import CodeOutput, PythonExecutor

WORKERS = ("planning", "reasoning", "critique", "reflect", "summarize", "conclude", "run_python", "web_search")
FINAL = "FINAL ANSWER:"
Use = Callable[[str], str]
# Runs share their connections, but not their keys: to make a client takes longer than a tiny model's answer.
HTTP = DefaultHttpxClient()


class Terse(OpenAIModel):
    """A model that knows compact prompts: `<agent>: <task>` in the place of smolagents' pages of instructions."""

    def generate(self, messages: list[Any], **options: Any) -> Any:
        said = [part["text"] for message in messages if message.role == "user" for part in message.content]
        task = said[0].removeprefix("New task:\n").strip()
        return super().generate([{"role": "user", "content": f"{self.model_id}: {task}"}], **options)

    def say(self, text: str) -> str:
        """The answer to a text as it stands."""
        answer = super().generate([{"role": "user", "content": text}])
        return str(answer.content).strip()


class Elsewhere(PythonExecutor):
    """Runs programs by `execute`, e.g. in a sandbox; what a program prints is the agent's answer."""

    def __init__(self, execute: Use):
        self.execute = execute

    def send_tools(self, tools: dict[str, Any]) -> None: ...

    def send_variables(self, variables: dict[str, Any]) -> None: ...

    def __call__(self, code_action: str) -> CodeOutput:
        printed = self.execute(code_action).strip()
        return CodeOutput(printed, printed, is_final_answer=True)


def work(question: str, execute: Use, search: Use, base_url: str, api_key: str) -> str:
    """The answer to a question after at most four steps."""
    options = {"api_base": base_url, "api_key": api_key, "client_kwargs": {"http_client": HTTP, "max_retries": 0}}
    models = {name: Terse(name, **options) for name in ("orchestrator", *WORKERS)}
    state, answer = question, ""
    for _ in range(4):
        name = models["orchestrator"].say(f"who: {state}")
        if name not in WORKERS:  # terminate
            break
        if name == "run_python":
            tags = ("^", "</code>")  # the model writes programs without an opening tag
            coder = CodeAgent([], models[name], executor=Elsewhere(execute), code_block_tags=tags, max_steps=1)
            coder.logger.level = LogLevel.OFF
            said = answer = str(coder.run(state))
        elif name == "web_search":
            said = answer = search(models[name].say(f"{name}: {state}"))
        else:
            said = models[name].say(f"{name}: {state}")
            answer = said.partition(FINAL)[2].strip() or answer
        state += f" [{name}] {said}"
    return answer
