"""The console script `verl_ext`: one command for training, evaluation and everything around them.

`COMMANDS` is the table of contents. To add a command, add a line there: its name, the module that runs it, one line of
help and an example. A command runs `python -m <module>`, which works as well: the module alone decides about its
arguments, output and exit status. Nothing heavy is imported before a command is chosen.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from verl_ext.arguments import did_you_mean
from verl_ext.environments import refusal
from verl_ext.recipe_list import find_recipes


class Command(NamedTuple):
    """A subcommand: the module that runs it, one line of help, and an example of its arguments."""

    module: str
    help: str
    example: str


COMMANDS = {
    "train": Command("verl.trainer.main_ppo", "train a system with reinforcement learning", "+recipe=mhgpo_tiny"),
    "evaluate": Command(
        "verl_ext.evaluate",
        "score a checkpoint or a server on a recipe's validation questions",
        "+recipe=mhgpo_tiny evaluate.model=runs/mhgpo_tiny/global_step_40",
    ),
    "check": Command(
        "verl_ext.check", "say what a run would do and what is missing, without starting it", "+recipe=mhgpo"
    ),
    "plan": Command(
        "verl_ext.plan",
        "say how long a step would take on 8, 64 and 512 GPUs, and what limits it",
        "+recipe=mhgpo --prompt_tokens 1500 --output_tokens 60",
    ),
    "view": Command("verl_ext.observe.viewer", "write what the agents did as one HTML page", "runs/mhgpo_tiny --open"),
    "doctor": Command(
        "verl_ext.doctor", "say in words what was checked of a run's steps, or recompute a row", "runs/mhgpo_tiny"
    ),
    "compare": Command("verl_ext.compare", "run several methods at equal budgets and report them", "search arithmetic"),
    "models": Command(
        "verl_ext.models", "fetch a small real model (135M parameters)", "smollm2-135m --output_dir models/smollm2"
    ),
    "recipes": Command("verl_ext.recipe_list", "list the recipes and what each needs", "mhgpo_tiny"),
}

TRAIN_HELP = """usage: verl_ext train +recipe=NAME [KEY=VALUE ...] [--config-dir FOLDER] [--cfg job]

Trains a system. It runs `python -m verl.trainer.main_ppo` with the same arguments.

  +recipe=NAME         the configuration to train; `verl_ext recipes` lists the names
  KEY=VALUE            overrides any value of the configuration (Hydra's syntax, as in verl)
  --config-dir FOLDER  a folder with recipes of your own: FOLDER/recipe/NAME.yaml
  --cfg job            prints the whole configuration and trains nothing

examples:
  verl_ext train +recipe=mhgpo_tiny
  verl_ext train +recipe=mhgpo_tiny mas.sampling.strategy=rr trainer.default_local_dir=runs/rr
  verl_ext train --config-dir examples/own_system +recipe=own_system"""


def overview() -> str:
    """The text of `verl_ext --help`."""
    lines = ["usage: verl_ext COMMAND [ARGUMENT ...]", ""]
    lines += ["Reinforcement learning of multi-agent LLM systems on verl.", ""]
    for name, command in COMMANDS.items():
        lines += [f"  {name:<9} {command.help}", f"            verl_ext {name} {command.example}"]
    return "\n".join([*lines, "", "`verl_ext COMMAND --help` explains a command."])


def misspelt_recipe(arguments: Sequence[str]) -> str | None:
    """An error message if the arguments ask for a recipe that does not exist, else None.

    Recipes of the package count, and those in the folder that `--config-dir` names. Hydra names an unknown recipe, too,
    but only after verl has been imported, and without the closest name.
    """
    known, own = set(find_recipes()), None
    for position, argument in enumerate(arguments):
        flag, _, value = argument.partition("=")
        if flag in ("--config-dir", "-cd"):
            own = Path(value or next(iter(arguments[position + 1 :]), ""), "recipe")
            known |= {path.stem for path in own.glob("*.yaml")}
    for argument in arguments:
        key, _, name = argument.partition("=")
        if key in ("recipe", "+recipe") and name and not name.startswith("[") and name not in known:
            if problem := refusal([name]):
                return problem
            looked = (
                f"; also looked for {own / name}.yaml: --config-dir is the folder that contains recipe/" if own else ""
            )
            return f"unknown recipe {name!r}{did_you_mean(name, known)} (`verl_ext recipes` lists all of them){looked}"
    return None


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command in place of this process; return an exit status only if none runs (2: wrong arguments)."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if not given or given[0] in ("-h", "--help", "help"):
        print(overview())
        return 0 if given else 2
    name, rest = given[0], given[1:]
    if name not in COMMANDS:
        allowed = ", ".join(COMMANDS)
        print(f"verl_ext: unknown command {name!r}{did_you_mean(name, COMMANDS)} (allowed: {allowed})", file=sys.stderr)
        return 2
    if name == "train" and (not rest or {"-h", "--help"} & set(rest)):
        print(TRAIN_HELP)
        return 0 if rest else 2
    problem = misspelt_recipe(rest)
    if problem:
        print(f"verl_ext {name}: {problem}", file=sys.stderr)
        return 2
    # The same process: signals reach the run itself, and its exit status is the command's.
    os.execv(sys.executable, [sys.executable, "-m", COMMANDS[name].module, *rest])
