"""Packaged environments: workflow, data, reward and recipe in one installable package, found by entry point.

    [project]
    name = "capitals-environment"
    version = "1.0.0"
    dependencies = ["verl_ext>=0.1,<0.2"]           # the versions that it works with

    [project.entry-points."verl_ext.environments"]
    capitals = "capitals_environment"               # a package with configs/recipe/NAME.yaml

After `pip install`, `+recipe=NAME` works as with a recipe of verl_ext. An environment is imported when one of its
recipes is asked for; until then only its metadata and the names of its recipes are read. See docs/environments.md.
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import importlib.util
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from verl_ext import __version__

GROUP = "verl_ext.environments"
OURS = "verl_ext"


@dataclass(frozen=True)
class Environment:
    """An installed environment.

    Attributes:
        name: of its entry point. package, version: of its distribution. module: the package that the entry point names.
        folder: its configs, for Hydra's search path; None if it cannot be found.
        problem: why it cannot be used; empty if it can, as far as is known without importing it.
    """

    name: str
    package: str
    version: str
    module: str
    folder: Path | None = None
    problem: str = ""
    recipes: dict[str, Path] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"environment {self.name!r} ({self.package} {self.version})"

    def broken(self) -> str:
        """`problem`, or why it cannot be imported; empty if nothing is wrong. Imports it."""
        if self.problem:
            return self.problem
        try:
            importlib.import_module(self.module)
        except Exception as error:
            from verl_ext.tracebacks import users_traceback

            return (
                f"{self}: its package {self.module!r} cannot be imported: {type(error).__name__}: {error}. Remedy: "
                f"mend it, or pip install what it lacks (without --no-deps)\n{users_traceback(error)}"
            ).rstrip()
        return ""


def own_folder() -> Path:
    """The folder configs/recipe of verl_ext, in a clone and in an installed package."""
    spec = importlib.util.find_spec("verl_ext.configs")
    assert spec is not None and spec.submodule_search_locations
    return Path(next(iter(spec.submodule_search_locations)), "recipe")


def own_recipes() -> dict[str, Path]:
    """Name -> file of every recipe of verl_ext."""
    return {path.stem: path for path in sorted(own_folder().glob("*.yaml"))}


@functools.cache
def find_environments() -> tuple[Environment, ...]:
    """All installed environments by name, those with a `problem` included. Imports none of them."""
    taken = dict.fromkeys(own_recipes(), OURS)
    found: dict[tuple[str, str, str], Environment] = {}
    for point in sorted(importlib.metadata.entry_points(group=GROUP), key=lambda point: (point.name, point.value)):
        environment = _environment(point)
        key = environment.name, environment.package, environment.module
        if key not in found:  # otherwise it is on the path twice, and the first one counts
            found[key] = _without_clash(environment, taken)
            if not found[key].problem:
                taken |= dict.fromkeys(environment.recipes, str(environment))
    return tuple(found.values())


def refusal(recipes: Iterable[str]) -> str:
    """Why one of these recipes cannot be used, if an environment has it; else empty. Imports the environments."""
    for name in set(recipes) - own_recipes().keys():
        having = [one for one in find_environments() if name in one.recipes]
        for one in [one for one in having if not one.problem] or having:
            if problem := one.broken():
                return problem
    return ""


def environments_of(recipes: Iterable[str]) -> list[Environment]:
    """The environments that have these recipes; verl_ext's own have none."""
    wanted = set(recipes)
    return [one for one in find_environments() if not one.problem and wanted & one.recipes.keys()]


def search_paths() -> list[tuple[str, str]]:
    """(provider, path) for Hydra of each environment that can be used, as far as is known without importing it."""
    return [(str(one), f"file://{one.folder}") for one in find_environments() if not one.problem]


def _environment(point: importlib.metadata.EntryPoint) -> Environment:
    dist, module = point.dist, point.value.partition(":")[0].strip()
    package, version = (dist.name, dist.version) if dist is not None else ("unknown package", "?")
    made = Environment(point.name, package, version, module)
    try:
        spec = importlib.util.find_spec(module)
    except Exception:  # a package above it fails, or it is no name of a module
        spec = None
    if spec is None or not spec.submodule_search_locations:
        given = f"its entry point names {point.value!r}, which is no package that can be found"
        return replace(made, problem=f"{made}: {given}. Remedy: reinstall {package}, or pip uninstall {package}")
    folder = Path(next(iter(spec.submodule_search_locations)), "configs")
    recipes = {path.stem: path for path in sorted((folder / "recipe").glob("*.yaml"))}
    problem = _wrong_version(made, (dist.requires if dist is not None else None) or [])
    if not recipes:
        problem = problem or (
            f"{made}: {folder / 'recipe'} has no recipe (NAME.yaml). Remedy: put one there, and name it among the "
            "package's data (package-data of setuptools)"
        )
    return replace(made, folder=folder, recipes=recipes, problem=problem)


def _wrong_version(environment: Environment, requires: Iterable[str]) -> str:
    """Why the environment does not fit this version of verl_ext; empty if it does. pip --no-deps does not check it."""
    from packaging.requirements import InvalidRequirement, Requirement
    from packaging.utils import canonicalize_name

    try:
        read = [Requirement(line) for line in requires]
    except InvalidRequirement as error:
        return f"{environment}: what it requires cannot be read ({error}). Remedy: reinstall {environment.package}"
    ours = [one for one in read if canonicalize_name(one.name) == canonicalize_name(OURS) and one.specifier]
    ours = [one for one in ours if one.marker is None or one.marker.evaluate({"extra": ""})]
    if not ours:
        return (
            f"{environment}: it does not say which versions of verl_ext it works with; installed is {__version__}. "
            f'Remedy: dependencies = ["verl_ext=={__version__}"] in its pyproject.toml, or a range'
        )
    for one in ours:
        if not one.specifier.contains(__version__, prereleases=True):
            return (
                f"{environment}: it was made for another version of verl_ext: installed is {__version__}, allowed is "
                f"{one.specifier}. Remedy: pip install '{one}', or another version of {environment.package}"
            )
    return ""


def _without_clash(environment: Environment, taken: dict[str, str]) -> Environment:
    """The environment, with a problem if a recipe's name is taken already."""
    double = sorted(environment.recipes.keys() & taken.keys())
    if environment.problem or not double:
        return environment
    problem = (
        f"{environment}: its recipe {double[0]!r} has the name of a recipe of {taken[double[0]]}. Remedy: another name "
        "for the file, e.g. with the environment's name before it"
    )
    return replace(environment, problem=problem)
