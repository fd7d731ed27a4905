"""Conversations from which the agents of JoyAgents-R1 learn their part before reinforcement learning: a file per agent.

    {"agent": "math_agent", "messages": [{"role": "user", "content": "math: total 7 + 5 - 3"},
                                         {"role": "assistant", "content": "<think> 12 9</think> 9"}]}

verl's SFTTrainer takes the loss on what the assistant says, in every turn of a conversation (python -m verl_ext.sft).

    python recipe/joyagents/data/sft.py tiny --output_dir data/joyagents_sft_tiny    # noisy, of the tiny shop world
    python recipe/joyagents/data/sft.py real --output_dir data/joyagents_sft         # natural language
    python recipe/joyagents/data/sft.py real --output_dir data/joyagents_sft --gsm8k FOLDER --toolbench FOLDER

What `real` takes from where: joyagents.py. Where that has fewer questions than the paper's sizes, or ToolBench does not
tell a call's arguments (joyagents_chats.py), there are fewer conversations; a table at the end says how many, and why.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from verl_ext.data_prep.common import exit_status, say_written, write_parquet
from verl_ext.recipe.joyagents.cold_start import demonstrations as shop_demos
from verl_ext.recipe.joyagents.cold_start.demonstrations import AGENTS
from verl_ext.recipe.joyagents.data import datasets as joyagents
from verl_ext.recipe.joyagents.data.chats import Chats, Messages
from verl_ext.recipe.joyagents.grammar import read_step
from verl_ext.reports import markdown
from verl_ext.tools.catalogue.load import load_catalogue
from verl_ext.worlds.files import stamped_folder

VERSION = 2  # raise it whenever the same arguments would give other files: `ensure_tiny` then regenerates
STAMP = "joyagents_sft.json"
# Conversations of an agent to those of another one. The master has the most kinds of questions; sums are short, and
# take long to learn.
PARTS = {"master": 4, "question_agent": 3, "shop_agent": 3, "function_agent": 5, "math_agent": 6, "summary": 2}
PARTS["intention"] = 1
HELD_OUT = 512
# Section 4.2: agent -> kind of question -> conversations, where there are so many.
REAL = {
    "master": {"math": 2500, "qa": 2500, "shop": 2500, "function": 2500, "cooperation": 3000},
    "question_agent": {"qa": 1000},
    "shop_agent": {"shop": 2000},
    "function_agent": {"function": 1500},
    "math_agent": {"math": 7500},
}
REAL_HELD_OUT = 0.02  # share of each agent's conversations
NOT_REAL = (
    "What the function agent's calls return is generated: the documented form of the API's response, not data; "
    "ToolBench's queries have neither results nor answers."
)


def ensure_tiny(output_dir: str | Path, size: int = 20_000, habits: float = 1.0, seed: int = 0) -> Path:
    """Make sure that `output_dir` holds the tiny agents' demonstrations; make them only when it does not.

    Args:
        size: conversations of all agents together, 64 or more.
        habits: factor on the shares of wrong ones (shop_demos.Habits): 0 none, 1 the shipped model's.

    Raises:
        ValueError: size or habits out of range.
    """
    if size < 64 or habits < 0:
        raise ValueError(f"size={size}, habits={habits}: at least 64 conversations, and habits of 0 or more")
    stamp = {"version": VERSION, "size": size, "habits": habits, "seed": seed}
    names = [*(f"{agent}.parquet" for agent in AGENTS), "val.parquet"]
    return stamped_folder(Path(output_dir), stamp, STAMP, names, lambda: tiny_sets(size, habits, seed))


def tiny_sets(size: int, habits: float, seed: int) -> dict[str, list[dict]]:
    """Rows of each file; `val.parquet` holds conversations of all agents."""
    parts = sum(PARTS.values())
    counts = {agent: max(1, size * PARTS[agent] // parts) for agent in AGENTS}
    shares = shop_demos.scaled(habits)
    teacher, examiner = shop_demos.Teacher(seed), shop_demos.Teacher(seed + 1)
    files = {
        f"{agent}.parquet": [_row(agent, teacher.chat(agent, shares)) for _ in range(count)]
        for agent, count in counts.items()
    }
    drawn = random.Random(f"{seed}/held out").choices(AGENTS, [PARTS[agent] for agent in AGENTS], k=HELD_OUT)
    return files | {"val.parquet": [_row(agent, examiner.chat(agent, shares)) for agent in drawn]}


def write_real(arguments: argparse.Namespace) -> dict[str, int]:
    """Write the conversations in natural language; returns rows per file.

    Raises:
        ValueError: something cannot be read, or there is too little of it.
    """
    calls, prepared = joyagents.functions(arguments.toolbench, joyagents.SIZES["test"]["function"], arguments.seed)
    output: Path = arguments.output_dir
    documents = output / "tools.jsonl"
    joyagents.write_jsonl(prepared.files[documents.name], documents)
    tools = load_catalogue([{"kind": "toolbench", "path": str(documents)}])
    math = joyagents.gsm8k(arguments.gsm8k, "train")
    chats = Chats(arguments.seed, math, calls["train"], list(tools.values()))
    written, held_out, table = {}, [], []
    for agent, conversations in chats.sets(REAL):
        table.append(_made(agent, conversations, chats.given))
        rows = [_row(agent, messages) for messages in conversations]
        held = int(len(rows) * REAL_HELD_OUT)
        held_out += rows[:held]
        write_parquet(rows[held:], output / f"{agent}.parquet", chats_schema())
        written[f"{agent}.parquet"] = len(rows) - held
    write_parquet(held_out, output / "val.parquet", chats_schema())
    print("\n".join(markdown(["agent", "paper's size", "made", "end with an answer", "why fewer"], table)))
    print(f"made: {REAL_HELD_OUT:.0%} of them in val.parquet. {NOT_REAL}")
    return written | {"val.parquet": len(held_out)}


def _made(agent: str, conversations: Sequence[Messages], given: Mapping[str, Sequence[object]]) -> list[str]:
    """A row of the closing table: what the paper has of an agent, what was made, and why it is less."""
    there = {kind: min(size, len(given.get(kind, range(size)))) for kind, size in REAL[agent].items()}
    few = [f"{there[kind]} {kind} questions of {size}" for kind, size in REAL[agent].items() if there[kind] < size]
    unclear = sum(there.values()) - len(conversations)
    few += [f"{unclear} of them without a call whose arguments are clear"] if unclear else []
    answered = sum(read_step(messages[-1]["content"]).kind == "answer" for messages in conversations)
    return [agent, str(sum(REAL[agent].values())), str(len(conversations)), str(answered), "; ".join(few)]


def chats_schema() -> object:
    """Arrow schema of the files."""
    import pyarrow as pa

    message = pa.struct([("role", pa.string()), ("content", pa.string())])
    return pa.schema([("agent", pa.string()), ("messages", pa.list_(message))])


def _row(agent: str, messages: shop_demos.Messages) -> dict:
    return {"agent": agent, "messages": messages}


def main(argv: Sequence[str] | None = None) -> int:
    """Command line. Returns the exit status; user errors are printed without a traceback."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    tiny = commands.add_parser("tiny", help="noisy demonstrations of the tiny shop world")
    tiny.add_argument("--output_dir", required=True, help="where the files go")
    tiny.add_argument("--size", type=int, default=20_000, help="conversations of all agents together")
    tiny.add_argument("--habits", type=float, default=1.0, help="noise: 0 none, 1 that of the shipped model")
    tiny.add_argument("--seed", type=int, default=0, help="of the conversations")
    joyagents.add_options(commands.add_parser("real", help="natural language, at most the paper's sizes"))
    arguments = parser.parse_args(argv)
    if arguments.command == "real":
        return exit_status(lambda: say_written(arguments.output_dir, write_real(arguments)))
    given = {name: value for name, value in vars(arguments).items() if name != "command"}
    return exit_status(lambda: print(f"demonstrations in {ensure_tiny(**given)}"))


if __name__ == "__main__":
    sys.exit(main())
