"""Write the data set of a generated world.

    python -m verl_ext.worlds arithmetic --steps 3 --output_dir data/tiny_arithmetic
    python -m verl_ext.worlds biographies --hops 2 3 --distractors 2 --gap 0.5 --output_dir data/hard_world

Recipes do it themselves when they start (`mas.prepare`).
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Sequence
from typing import Any

from verl_ext.arguments import Parser, described, exit_status
from verl_ext.worlds import arithmetic, biographies, prices_and_sums, shop, tool_chains

WORLDS = {
    "arithmetic": arithmetic,
    "biographies": biographies,
    "prices_and_sums": prices_and_sums,
    "shop": shop,
    "tool_chains": tool_chains,
}
HELP = {
    "train_size": "training questions",
    "val_size": "held-out questions",
    "seed": "of everything that is drawn",
    "steps": "additions and subtractions of a chain",
    "least_steps": "fewest of a chain; 0: all have `steps`",
    "largest": "largest total, 18 to 99",
    "stories": "word problems in place of sums",
    "hops": "facts (biographies: 2, 3 or both) or tool calls (tool_chains: 1 to 8, in turn) to an answer",
    "distractors": "relatives of each person, 0 to 3",
    "gap": "share of questions in other words than the passages'",
    "train_works": "works of the training world",
    "val_works": "works of the held-out world",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit status; user errors are printed without a traceback."""
    parser = Parser(prog="python -m verl_ext.worlds", description=__doc__)
    names = parser.add_subparsers(dest="world", metavar="WORLD", required=True)
    for name, module in WORLDS.items():
        example = f"\n    python -m verl_ext.worlds {name} --train_size 120 --val_size 60\n"
        one = names.add_parser(name, **described(f"{module.__doc__}{example}"))
        place = f"data/{module.STAMP.removesuffix('.json')}"
        one.add_argument("--output_dir", default=place, help=f"folder of the files, {place} by default")
        for option, parameter in list(inspect.signature(module.ensure).parameters.items())[1:]:
            default = parameter.default
            reading: dict[str, Any] = {"type": type(default)}
            if isinstance(default, tuple):
                reading = {"nargs": "+", "type": int}
            elif isinstance(default, bool):
                reading = {"action": "store_true"}
            one.add_argument(f"--{option}", default=default, help=f"{HELP[option]} ({default})", **reading)
    given = vars(parser.parse_args(argv))
    world = given.pop("world")
    return exit_status(lambda: print(f"{world} in {WORLDS[world].ensure(**given)}"))


if __name__ == "__main__":
    sys.exit(main())
