"""Write the conversations from which JoyAgents-R1's agents learn their roles before RL: a file per agent.

    python -m verl_ext.recipe.joyagents.data.sft_conversations --output_dir data/joyagents_sft
    python -m verl_ext.recipe.joyagents.data.sft_conversations --output_dir data/joyagents_sft \\
        --gsm8k FOLDER --toolbench FOLDER
    python -m verl_ext.recipe.joyagents.data.sft_conversations --output_dir data/joyagents_sft \\
        --coig COIG-CQIA --thoughts_url http://127.0.0.1:8100/v1

The last one asks a model for the thoughts, which are templates otherwise.

One row:
    {"agent": "math_agent", "messages": [{"role": "system", "content": …}, {"role": "user", "content": "What is …?"},
                                         {"role": "assistant", "content": "<think>7 + 5 = 12</think>12"}]}

verl's SFTTrainer takes the loss on every message of the assistant (python -m verl_ext.sft). rl_questions.py says where
the questions come from. If there are fewer questions than the paper has, or ToolBench does not give a call's arguments
(agent_chats.py), there are fewer conversations; a table at the end says how many, and why.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from verl_ext.recipe.joyagents.data import rl_questions, thoughts
from verl_ext.recipe.joyagents.data.agent_chats import ChatGenerator, Messages
from verl_ext.recipe.joyagents.grammar import read_step
from verl_ext.recipe.joyagents.react import CALLS, HISTORIES, OUTPUT, OUTPUTS, REMEMBERED
from verl_ext.recipe.joyagents.specialists import APIS, SEARCHED
from verl_ext.recipe.joyagents.workflow import FOUND
from verl_ext.reports import markdown
from verl_ext.storage.jsonl import write_rows
from verl_ext.storage.parquet import write_parquet
from verl_ext.tools.catalogue.load import load_catalogue
from verl_ext.tools.catalogue.types import ToolSpec

# Section 4.2: agent -> kind of question -> conversations, where there are so many.
SIZES = {
    "master": {"math": 2500, "qa": 2500, "shop": 2500, "function": 2500, "cooperation": 3000},
    "question_agent": {"qa": 1000},
    "shop_agent": {"shop": 2000},
    "function_agent": {"function": 1500},
    "math_agent": {"math": 7500},
    # For the fine-tuned baseline of Table 1; the paper does not say its data.
    "single_agent": {"math": 2500, "qa": 1000, "shop": 2000, "function": 1500, "cooperation": 3000},
}
HELD_OUT = 0.02  # share of each agent's conversations
MORE: dict[str, dict[str, Any]] = {
    "--function_chats": {
        "type": int,
        "default": SIZES["function_agent"]["function"],
        "help": "at most, of the function agent; 3500 is the other reading of Section 4.2",
    },
    "--no_thoughts": {"action": "store_true", "help": "leave all thoughts out (M1 of Table 2)"},
    "--history": {"choices": HISTORIES, "default": OUTPUTS, "help": "calls: only last outputs have thoughts (Table 8)"},
    "--apis": {"choices": APIS, "default": SEARCHED, "help": "listed: function agents know their APIs (Table 9)"},
    "--found": {"choices": FOUND, "default": FOUND[0], "help": "functions: in place of their agent (Table 8)"},
    "--remember": {"choices": REMEMBERED, "default": OUTPUT, "help": "answer: what memories show (Tables 9 and 10)"},
    "--thoughts_url": {"help": "base URL of a server whose model writes the thoughts, instead of templates"},
    "--thoughts_model": {"help": "its name on the server; not needed if it serves one"},
}
GENERATED_RESULTS = (
    "What the function agent's calls return is generated: the documented form of the API's response, not data; "
    "ToolBench's queries have neither results nor answers."
)


def write(arguments: argparse.Namespace) -> dict[str, int]:
    """Write the conversations; returns rows per file.

    Raises:
        ValueError: something cannot be read, or there is too little of it.
    """
    real, prepared = rl_questions.real_questions(arguments)
    output, specialists = arguments.output_dir, arguments.specialists
    tools: list[ToolSpec] = []
    if prepared:
        documents = output / "tools.jsonl"
        write_rows(documents, prepared.files[documents.name])
        tools = list(load_catalogue([{"kind": "toolbench", "path": str(documents)}]).values())
    options = {name: getattr(arguments, name) for name in ("apis", "found", "remember")}
    chats = ChatGenerator(arguments.seed, real["train"], tools, specialists, **options)
    agents = ("master", *specialists, "single_agent")
    sizes = {agent: rl_questions.sizes_for(SIZES[agent], specialists, "open" in real["train"]) for agent in agents}
    if "function_agent" in sizes:
        sizes["function_agent"] = {"function": arguments.function_chats}
    written, held_out, table = {}, [], []
    for agent, conversations in chats.sets(sizes):
        table.append(_made(agent, sizes[agent], conversations, chats.real))
        conversations = with_thoughts(conversations, arguments, output / "thoughts.jsonl")
        rows = [{"agent": agent, "messages": messages} for messages in conversations]
        held = int(len(rows) * HELD_OUT) if agent != "single_agent" else 0
        held_out += rows[:held]
        write_parquet(rows[held:], output / f"{agent}.parquet", chats_schema())
        written[f"{agent}.parquet"] = len(rows) - held
    write_parquet(held_out, output / "val.parquet", chats_schema())
    print("\n".join(markdown(["agent", "paper's size", "made", "end with an answer", "why fewer"], table)))
    print(f"made: {HELD_OUT:.0%} of them in val.parquet. {GENERATED_RESULTS}")
    return written | {"val.parquet": len(held_out)}


def _made(
    agent: str, sizes: Mapping[str, int], conversations: Sequence[Messages], real: Mapping[str, Sequence[object]]
) -> list[str]:
    """A row of the closing table: the paper's size for an agent, the number made, and why it is smaller."""
    there = {kind: min(size, len(real.get(kind, range(size)))) for kind, size in sizes.items()}
    few = [f"{there[kind]} {kind} questions of {size}" for kind, size in sizes.items() if there[kind] < size]
    unclear = sum(there.values()) - len(conversations)
    few += [f"{unclear} of them without a call whose arguments are clear"] if unclear else []
    answered = sum(read_step(messages[-1]["content"]).kind == "answer" for messages in conversations)
    return [agent, str(sum(sizes.values())), str(len(conversations)), str(answered), "; ".join(few)]


def with_thoughts(conversations: list[Messages], arguments: argparse.Namespace, cache: Path) -> list[Messages]:
    """The conversations without thoughts, with those of a model, or with the templates' as they are."""
    if arguments.no_thoughts:
        return [thoughts.without(messages) for messages in conversations]
    if arguments.thoughts_url:
        conversations = thoughts.written(conversations, arguments.thoughts_url, arguments.thoughts_model, cache)
    if arguments.history == CALLS:
        return [[*thoughts.without(messages[:-1]), messages[-1]] for messages in conversations]
    return conversations


def chats_schema() -> object:
    """Arrow schema of the files."""
    import pyarrow as pa

    message = pa.struct([("role", pa.string()), ("content", pa.string())])
    return pa.schema([("agent", pa.string()), ("messages", pa.list_(message))])


def main(argv: Sequence[str] | None = None) -> int:
    """Command line. Returns the exit status."""
    return rl_questions.run_script(__doc__, write, argv, MORE)


if __name__ == "__main__":
    sys.exit(main())
