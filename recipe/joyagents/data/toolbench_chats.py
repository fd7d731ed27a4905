"""Conversations from ToolBench's training dialogues, for the single agents of Table 5 (Section A.3).

    python -m verl_ext.recipe.joyagents.data.toolbench_chats --input toolllama_G123_dfs_train.json \\
        --output_dir data/toolbench_sft                                                     # Single-think-SFT
    python -m verl_ext.recipe.joyagents.data.toolbench_chats --input toolllama_G123_dfs_train.json \\
        --output_dir data/toolbench_sft_bare --no_thoughts                                  # Single-nothink-SFT

The input is ToolBench's (https://github.com/OpenBMB/ToolBench, data/toolllama_G123_dfs_train.json, Apache-2.0). One
row, shortened:
    {"id": "Step 5: …", "conversations": [{"from": "system", "value": "You are AutoGPT, … access to the following APIs:
     [{'name': 'eta_for_transit', …}, …]"}, {"from": "user", "value": "I …\\nBegin!\\n"}, {"from": "assistant", "value":
     "\\nThought: \\nAction: eta_for_transit\\nAction Input: {…}"}, {"from": "function", "value": "…"}, …]}

Each conversation has the function agent's prompt and grammar; a call of Finish becomes the answer. Left out are rows
whose steps cannot be read, and those that give up. Writes function_agent.parquet.
"""

from __future__ import annotations

import argparse
import ast
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from verl_ext.arguments import Parser, exit_status
from verl_ext.data_prep.rows import print_written
from verl_ext.data_prep.sources.toolbench_static import ANSWERS, FINISH, step_of
from verl_ext.mas.messages import Messages
from verl_ext.recipe.joyagents import prompts
from verl_ext.recipe.joyagents.data import thoughts
from verl_ext.recipe.joyagents.data.agent_chats import Chat
from verl_ext.recipe.joyagents.data.sft_conversations import chats_schema
from verl_ext.recipe.joyagents.react import safe
from verl_ext.storage.parquet import write_parquet

LISTED = "access to the following APIs:"


def conversation(row: dict[str, Any]) -> Messages:
    """One dialogue in the function agent's grammar.

    Raises:
        ValueError: a step cannot be read, or the dialogue does not end with an answer.
    """
    turns = [(turn["from"], turn["value"]) for turn in row["conversations"]]
    said = dict(reversed(turns))  # the first of each
    tools = _listed(said.get("system", ""))
    query = said.get("user", "").strip().removesuffix("Begin!").strip()
    chat = Chat(prompts.decision(query, tools))
    for number, (who, text) in enumerate(turns):
        if who != "assistant":
            continue
        thought, name, arguments = step_of(text)
        if name == FINISH:
            if arguments.get("return_type") != ANSWERS:
                raise ValueError("it gives up")
            return chat.answer(thought, str(arguments.get("final_answer", "")))
        after = turns[number + 1] if number + 1 < len(turns) else ("", "")
        if after[0] != "function":
            raise ValueError("a call without a result")
        chat.call(thought, name, arguments, safe(after[1]))
    raise ValueError("no answer")


def _listed(system: str) -> list[dict[str, Any]]:
    """The APIs that a system message lists as a Python literal."""
    try:
        tools = ast.literal_eval(system.partition(LISTED)[2].strip())
        return [
            {key: tool[key] for key in ("name", "description", "parameters")}
            for tool in tools
            if tool["name"] != FINISH
        ]
    except (SyntaxError, ValueError, TypeError, KeyError):
        raise ValueError("no list of APIs in the system message") from None


def write(arguments: argparse.Namespace) -> dict[str, int]:
    """Write the conversations; returns rows per file.

    Raises:
        ValueError: the input cannot be read, or nothing of it can be used.
    """
    try:
        rows = json.loads(arguments.input.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"--input {arguments.input} cannot be read: {error}") from error
    chats, left_out = [], 0
    for row in rows:
        try:
            chats.append(conversation(row))
        except ValueError:
            left_out += 1
    if not chats:
        raise ValueError(f"--input {arguments.input}: none of the {len(rows)} rows can be used")
    print(f"read {len(rows)} dialogues; {left_out} left out")
    chats = [thoughts.without(chat) for chat in chats] if arguments.no_thoughts else chats
    made = [{"agent": "function_agent", "messages": chat} for chat in chats]
    write_parquet(made, arguments.output_dir / "function_agent.parquet", chats_schema())
    return {"function_agent.parquet": len(made)}


def main(argv: Sequence[str] | None = None) -> int:
    """Command line. Returns the exit status."""
    parser = Parser(description=__doc__)
    parser.add_argument("--input", type=Path, required=True, help="ToolBench's file of training dialogues")
    parser.add_argument("--output_dir", type=Path, required=True, help="folder of everything that is written")
    parser.add_argument("--no_thoughts", action="store_true", help="leave all thoughts out")
    arguments = parser.parse_args(argv)
    return exit_status(lambda: print_written(arguments.output_dir, write(arguments)))


if __name__ == "__main__":
    sys.exit(main())
