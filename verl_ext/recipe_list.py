"""`verl_ext recipes`: every recipe with one line of what it is and what it needs.

    verl_ext recipes                # the list
    verl_ext recipes mhgpo_tiny     # one recipe: its description and commands, its documentation
    verl_ext recipes --markdown     # the table of docs/recipes.md

A recipe describes itself in the comment at the head of its file (configs/recipe/NAME.yaml):

    # @package _global_
    # MHGPO trains a three-agent search system in a small generated world
    # needs: a CPU
    # page: docs/mhgpo.md
    #
    # Anything more: commands, remarks.

Recipes of packaged environments (docs/environments.md) are in the list with their package and its version. An
environment that cannot be used is named on stderr, and the exit status is 1.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from verl_ext.arguments import Parser, did_you_mean
from verl_ext.environments import Environment, find_environments, own_recipes


class Recipe(NamedTuple):
    """The head of a recipe's file: one line each of what it is, what it needs, its page; and the remaining lines."""

    title: str
    needs: str
    page: str
    remarks: str


def find_recipes() -> dict[str, Path]:
    """Name -> file of every recipe of verl_ext, then those of the environments that can be used."""
    added = {name: path for one in find_environments() if not one.problem for name, path in one.recipes.items()}
    return own_recipes() | added


def read_head(text: str) -> Recipe:
    """The head of a recipe's file.

    Raises:
        ValueError: the title, `needs:` or `page:` is missing or not where it should be.
    """
    comments = itertools.takewhile(lambda line: line.startswith("#"), text.splitlines())
    lines = [line.removeprefix("#").removeprefix(" ") for line in comments]
    if len(lines) < 4 or not (lines[2].startswith("needs: ") and lines[3].startswith("page: ")):
        raise ValueError("a recipe begins with '# @package _global_', '# <title>', '# needs: …' and '# page: …'")
    remarks = "\n".join(lines[4:]).strip("\n")
    return Recipe(lines[1], lines[2].removeprefix("needs: "), lines[3].removeprefix("page: "), remarks)


def read_recipes() -> dict[str, Recipe]:
    """Name -> head of every recipe of verl_ext; those that need only a CPU come first."""
    heads = {name: read_head(path.read_text(encoding="utf-8")) for name, path in own_recipes().items()}
    return dict(sorted(heads.items(), key=lambda item: (item[1].needs != "a CPU", item[0])))


def read_environments() -> tuple[dict[str, tuple[Recipe, Environment]], list[str]]:
    """(name -> head and environment of every recipe of packaged environments, what is wrong with the others).

    Imports the environments, to find out.
    """
    found, problems = {}, []
    for one in find_environments():
        if problem := one.broken():
            problems.append(problem)
            continue
        for name, path in one.recipes.items():
            try:
                found[name] = read_head(path.read_text(encoding="utf-8")), one
            except ValueError as error:
                problems.append(f"{one}: {path}: {error}")
    return found, problems


def listing(added: Mapping[str, tuple[Recipe, Environment]] | None = None) -> str:
    """Every recipe in two lines: its name and title, and what it needs; those of environments have a third line."""
    lines = []
    for name, recipe in read_recipes().items():
        lines += [f"{name:<27} {recipe.title}", f"{'':<27} needs {recipe.needs}"]
    for name, (recipe, environment) in (added or {}).items():
        lines += [f"{name:<27} {recipe.title}", f"{'':<27} needs {recipe.needs}"]
        lines += [f"{'':<27} from {environment.package} {environment.version}"]
    return "\n".join([*lines, "", "`verl_ext recipes NAME` shows a recipe; `verl_ext train +recipe=NAME` trains it."])


def description(name: str, added: Mapping[str, tuple[Recipe, Environment]] | None = None) -> str:
    """One recipe: its head, the commands to check and train it, its page."""
    recipe, environment = (added or {}).get(name) or (read_recipes()[name], None)
    head = [f"{name}: {recipe.title}", f"needs {recipe.needs}", *([""] + [recipe.remarks] if recipe.remarks else [])]
    commands = [
        f"  check   verl_ext check +recipe={name}",
        f"  train   python -m verl.trainer.main_ppo +recipe={name}",
        f"  read    {recipe.page}",
        *([f"  from    {environment.package} {environment.version}"] if environment else []),
    ]
    return "\n".join([*head, "", *commands])


def table() -> str:
    """The table of docs/recipes.md (Markdown)."""
    rows = [
        f"| `{name}` | {recipe.title} | {recipe.needs} | [{page.with_suffix('')}]({page}) |"
        for name, recipe in read_recipes().items()
        for page in [Path(recipe.page).relative_to("docs")]
    ]
    return "\n".join(["| recipe | what it is | needs | page |", "|---|---|---|---|", *rows])


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; exit status 2 if there is no such recipe."""
    parser = Parser(prog="verl_ext recipes", description=__doc__)
    parser.add_argument("name", nargs="?", help="a recipe to describe")
    parser.add_argument("--markdown", action="store_true", help="print the table of docs/recipes.md")
    given = parser.parse_args(arguments)
    if given.markdown:
        print(table())
        return 0
    added, problems = read_environments()
    known = [*own_recipes(), *added]
    if given.name and given.name not in known:
        hint = did_you_mean(given.name, known) or f"; known: {', '.join(known)}"
        print(*problems, f"verl_ext recipes: unknown recipe {given.name!r}{hint}", sep="\n", file=sys.stderr)
        return 2
    print(description(given.name, added) if given.name else listing(added), flush=True)
    if not given.name and problems:
        print("\nThese environments cannot be used:", *problems, sep="\n", file=sys.stderr)
    return int(not given.name and bool(problems))


if __name__ == "__main__":
    sys.exit(main())
