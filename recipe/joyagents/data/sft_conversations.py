"""Write the conversations from which JoyAgents-R1's agents learn their roles before RL: a file per agent.

    python -m verl_ext.recipe.joyagents.data.sft_conversations --output_dir data/joyagents_sft
    python -m verl_ext.recipe.joyagents.data.sft_conversations --output_dir data/joyagents_sft \\
        --gsm8k FOLDER --toolbench FOLDER

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

from verl_ext.recipe.joyagents.data import rl_questions
from verl_ext.recipe.joyagents.data.agent_chats import ChatGenerator, Messages
from verl_ext.recipe.joyagents.grammar import read_step
from verl_ext.reports import markdown
from verl_ext.storage.jsonl import write_rows
from verl_ext.storage.parquet import write_parquet
from verl_ext.tools.catalogue.load import load_catalogue

# Section 4.2: agent -> kind of question -> conversations, where there are so many.
SIZES = {
    "master": {"math": 2500, "qa": 2500, "shop": 2500, "function": 2500, "cooperation": 3000},
    "question_agent": {"qa": 1000},
    "shop_agent": {"shop": 2000},
    "function_agent": {"function": 1500},
    "math_agent": {"math": 7500},
}
HELD_OUT = 0.02  # share of each agent's conversations
GENERATED_RESULTS = (
    "What the function agent's calls return is generated: the documented form of the API's response, not data; "
    "ToolBench's queries have neither results nor answers."
)


def write(arguments: argparse.Namespace) -> dict[str, int]:
    """Write the conversations; returns rows per file.

    Raises:
        ValueError: something cannot be read, or there is too little of it.
    """
    calls, prepared = rl_questions.functions(
        arguments.toolbench, rl_questions.SIZES["test"]["function"], arguments.seed
    )
    output: Path = arguments.output_dir
    documents = output / "tools.jsonl"
    write_rows(documents, prepared.files[documents.name])
    tools = load_catalogue([{"kind": "toolbench", "path": str(documents)}])
    math = rl_questions.gsm8k(arguments.gsm8k, "train")
    chats = ChatGenerator(arguments.seed, math, calls["train"], list(tools.values()))
    written, held_out, table = {}, [], []
    for agent, conversations in chats.sets(SIZES):
        table.append(_made(agent, conversations, chats.real))
        rows = [{"agent": agent, "messages": messages} for messages in conversations]
        held = int(len(rows) * HELD_OUT)
        held_out += rows[:held]
        write_parquet(rows[held:], output / f"{agent}.parquet", chats_schema())
        written[f"{agent}.parquet"] = len(rows) - held
    write_parquet(held_out, output / "val.parquet", chats_schema())
    print("\n".join(markdown(["agent", "paper's size", "made", "end with an answer", "why fewer"], table)))
    print(f"made: {HELD_OUT:.0%} of them in val.parquet. {GENERATED_RESULTS}")
    return written | {"val.parquet": len(held_out)}


def _made(agent: str, conversations: Sequence[Messages], real: Mapping[str, Sequence[object]]) -> list[str]:
    """A row of the closing table: the paper's size for an agent, the number made, and why it is smaller."""
    there = {kind: min(size, len(real.get(kind, range(size)))) for kind, size in SIZES[agent].items()}
    few = [f"{there[kind]} {kind} questions of {size}" for kind, size in SIZES[agent].items() if there[kind] < size]
    unclear = sum(there.values()) - len(conversations)
    few += [f"{unclear} of them without a call whose arguments are clear"] if unclear else []
    answered = sum(read_step(messages[-1]["content"]).kind == "answer" for messages in conversations)
    return [agent, str(sum(SIZES[agent].values())), str(len(conversations)), str(answered), "; ".join(few)]


def chats_schema() -> object:
    """Arrow schema of the files."""
    import pyarrow as pa

    message = pa.struct([("role", pa.string()), ("content", pa.string())])
    return pa.schema([("agent", pa.string()), ("messages", pa.list_(message))])


def main(argv: Sequence[str] | None = None) -> int:
    """Command line. Returns the exit status."""
    return rl_questions.run_script(__doc__, write, argv)


if __name__ == "__main__":
    sys.exit(main())
