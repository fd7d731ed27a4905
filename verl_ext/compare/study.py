"""A study: the methods of a comparison, with their common settings, read from a YAML file."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from verl_ext.settings import check_keys

BUDGETS = ("generated_tokens", "questions")
VALIDATE = "trainer.val_only=true"


@dataclass(frozen=True)
class Method:
    """One way to train, or to leave untrained.

    Attributes:
        name: of its folder.
        label: of its row and curve.
        overrides: of `python -m verl.trainer.main_ppo`; `{seed}` stands for the seed. With `trainer.val_only=true`
            among them the system is measured as it is.
        start_of: instead of a run of its own, the validation of that method before its first step.
    """

    name: str
    label: str
    overrides: tuple[str, ...] = ()
    start_of: str | None = None

    @property
    def trains(self) -> bool:
        """False: it is measured before any training."""
        return self.start_of is None and VALIDATE not in self.overrides


@dataclass(frozen=True)
class Study:
    """Methods to compare. They differ only in the overrides that `methods` gives.

    Attributes:
        name: of its folder.
        title: of the report.
        headline: what the best method is by, of `scores`.
        scores: quantities of validation (`val/system/<score>`) in the tables.
        seeds: each is a run of every method. All methods see the same questions for the same seed.
        budget: generated_tokens and questions; every run goes on until it has used both, and is measured at each.
        overrides: common to all methods, which may override them.
        methods: in the order of the tables.
        curves: which of `scores` are plotted, a row of panels each; none: the headline alone.
        frontier: two of `scores`, what a system costs and what it reaches, to plot against each other; none: no plot.
    """

    name: str
    title: str
    headline: str
    scores: tuple[str, ...]
    seeds: tuple[int, ...]
    budget: dict[str, int]
    overrides: tuple[str, ...]
    methods: tuple[Method, ...]
    curves: tuple[str, ...] = ()
    frontier: tuple[str, ...] = ()

    @property
    def plotted(self) -> tuple[str, ...]:
        """Scores that have curves, top to bottom."""
        return self.curves or (self.headline,)

    @property
    def runs(self) -> list[tuple[Method, int]]:
        """What must be run: all methods for the first seed, then for the next."""
        return [(method, seed) for seed in self.seeds for method in self.methods if method.start_of is None]

    def method(self, name: str) -> Method:
        """The method of that name."""
        return next(method for method in self.methods if method.name == name)

    def command(self, method: Method, seed: int) -> list[str]:
        """Overrides of one run; the last one of a setting counts."""
        given = [*self.overrides, *method.overrides]
        return [text.replace("{seed}", str(seed)) for text in given] + [
            f"mas.budget.{name}={value}" for name, value in self.budget.items()
        ]


@dataclass(frozen=True)
class Quick:
    """The small form of a study (`--quick`): fewer seeds and methods, smaller budgets, further overrides."""

    seeds: tuple[int, ...]
    methods: tuple[str, ...]
    budget: dict[str, int]
    overrides: tuple[str, ...] = field(default=())


def read_study(name: str, quick: bool = False) -> Study:
    """The study in a YAML file, or one of those that come with the package, by name.

    Raises:
        ValueError: there is no such study, or its file is wrong; names the error and what is allowed.
    """
    path = Path(name) if name.endswith((".yaml", ".yml")) else _shipped() / f"{name}.yaml"
    if not path.is_file():
        shipped = ", ".join(sorted(file.stem for file in _shipped().glob("*.yaml")))
        raise ValueError(f"there is no study {name!r}: give a YAML file, or one of {shipped}")
    given = yaml.safe_load(path.read_text(encoding="utf-8"))
    if not isinstance(given, dict):
        raise ValueError(f"{path} must be a mapping of the fields of a study")
    small, methods = given.pop("quick", None), given.pop("methods", None)
    if not isinstance(methods, list):
        raise ValueError(f"{path}: methods={methods!r} must be a list of mappings")
    typed = tuple(_typed(Method, item, f"{path}: methods") for item in methods)
    study = _typed(Study, {"name": path.stem, **given}, str(path), methods=typed)
    _check(study, path)
    if not quick:
        return study
    if small is None:
        raise ValueError(f"{path} has no section `quick`")
    reduced = _typed(Quick, small, f"{path}: quick")
    if unknown := set(reduced.methods) - {method.name for method in study.methods}:
        raise ValueError(f"{path}: quick: methods has {', '.join(sorted(unknown))}, which the study does not")
    study = replace(
        study,
        name=f"{study.name}_quick",
        title=f"{study.title} (quick)",
        seeds=reduced.seeds,
        budget=reduced.budget,
        methods=tuple(_smaller(method, reduced) for method in study.methods if method.name in reduced.methods),
    )
    _check(study, path)
    return study


def _shipped() -> Path:
    return Path(str(resources.files("verl_ext.configs"))) / "compare"


def _smaller(method: Method, quick: Quick) -> Method:
    return method if method.start_of else replace(method, overrides=(*method.overrides, *quick.overrides))


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


# What YAML must have given for a field: the words for it, and the test.
KINDS = {
    **dict.fromkeys(("name", "label", "title", "headline", "start_of"), ("a text", lambda v: isinstance(v, str))),
    **dict.fromkeys(("overrides", "scores", "methods", "curves", "frontier"), ("a list of texts", _is_texts)),
    "seeds": ("a list of whole numbers", lambda v: isinstance(v, list) and all(map(_is_number, v))),
    "budget": ("whole numbers by name", lambda v: isinstance(v, dict) and all(map(_is_number, v.values()))),
}


def _typed(cls: type, given: Any, path: str, **ready: Any) -> Any:
    """`cls` of the fields in YAML and of those that are `ready`."""
    if not isinstance(given, dict):
        raise ValueError(f"{path} must be a mapping, but is {given!r}")
    check_keys(given, [f.name for f in fields(cls)], path)
    for key, value in given.items():
        words, fits = KINDS[key]
        if not fits(value):
            raise ValueError(f"{path}: {key}={value!r} must be {words}")
    try:
        return cls(**{key: tuple(value) if isinstance(value, list) else value for key, value in given.items()}, **ready)
    except TypeError as error:
        raise ValueError(f"{path}: {error}") from error


def _check(study: Study, path: Path) -> None:
    names = [method.name for method in study.methods]
    if len(set(names)) < len(names) or not names:
        raise ValueError(f"{path}: methods must have names of their own; given: {', '.join(names) or 'none'}")
    if len(set(study.seeds)) < len(study.seeds) or not study.seeds:
        raise ValueError(f"{path}: seeds={list(study.seeds)} must be distinct, at least one")
    if set(study.budget) != set(BUDGETS) or min(study.budget.values()) < 1:
        raise ValueError(f"{path}: budget={study.budget} must give {' and '.join(BUDGETS)}, at least 1 each")
    if study.headline not in study.scores:
        raise ValueError(f"{path}: headline={study.headline!r} must be one of scores={list(study.scores)}")
    for name, plotted in (("curves", study.curves), ("frontier", study.frontier)):
        if not set(plotted) <= set(study.scores) or len(set(plotted)) < len(plotted):
            raise ValueError(f"{path}: {name}={list(plotted)} must be of scores={list(study.scores)}, each once")
    if len(study.frontier) not in (0, 2):
        raise ValueError(f"{path}: frontier={list(study.frontier)} must be two of the scores: a cost, and what it buys")
    trained = [method.name for method in study.methods if method.trains]
    for method in study.methods:
        if method.start_of is not None and (method.start_of not in trained or method.overrides):
            raise ValueError(
                f"{path}: method {method.name} is the start of {method.start_of!r}: that must be a method that is "
                "trained, and overrides of its own make no sense"
            )
