"""A study: the methods of a comparison, with their common settings, read from a YAML file."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

import yaml

from verl_ext.settings import Settings, unknown_name

BUDGETS = ("generated_tokens", "questions")
OPERATIONS = "operations"  # a budget that a study may have
VALIDATE = "trainer.val_only=true"


class Method(Settings):
    """One way to train a system, or to leave it untrained.

    Attributes:
        name: of its folder.
        label: of its row and curve.
        overrides: of `python -m verl.trainer.main_ppo`; `{seed}` stands for the seed, `{here}` for the folder where the
            comparison is started (runs have folders of their own). With `trainer.val_only=true` among them the system
            is measured as it is.
        start_of: no run of its own: its scores are that method's validation at step 0.
    """

    name: str
    label: str
    overrides: list[str] = []
    start_of: str | None = None

    @property
    def trains(self) -> bool:
        """False: the system is measured without training."""
        return self.start_of is None and VALIDATE not in self.overrides


class Quick(Settings):
    """The small form of a study (`--quick`): fewer seeds and methods, smaller budgets, further overrides."""

    seeds: list[int]
    methods: list[str]
    budget: dict[str, int]
    overrides: list[str] = []


class Study(Settings):
    """Methods to compare. They differ only in the overrides that `methods` gives.

    Attributes:
        name: of its folder.
        title: of the report.
        headline: the score, one of `scores`, by which the best method is chosen.
        scores: quantities of validation (`val/system/<score>`) in the tables.
        seeds: each is a run of every method. All methods see the same questions for the same seed.
        budget: generated_tokens and questions, and perhaps operations (`mas.budget`); every run goes on until it has
            used all of them, and is measured at each.
        methods: in the order of the tables.
        overrides: common to all methods, which may override them.
        curves: which of `scores` are plotted, a row of panels each; none: the headline alone.
        frontier: two of `scores` to plot against each other, a cost and what it buys; none: no plot.
        quick: the small form.
    """

    name: str
    title: str
    headline: str
    scores: list[str]
    seeds: list[int]
    budget: dict[str, int]
    overrides: list[str]
    methods: list[Method]
    curves: list[str] = []
    frontier: list[str] = []
    quick: Quick | None = None

    @property
    def plotted(self) -> list[str]:
        """Scores that have curves, top to bottom."""
        return self.curves or [self.headline]

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
        here = str(Path.cwd())
        return [text.replace("{seed}", str(seed)).replace("{here}", here) for text in given] + [
            f"mas.budget.{name}={value}" for name, value in self.budget.items()
        ]


def read_study(name: str, quick: bool = False) -> Study:
    """The study in a YAML file, or one of those that come with the package, by name.

    Raises:
        ValueError: there is no such study, or its file is wrong; names the error and what is allowed.
    """
    path = Path(name) if name.endswith((".yaml", ".yml")) else _shipped() / f"{name}.yaml"
    if not path.is_file():
        shipped = sorted(file.stem for file in _shipped().glob("*.yaml"))
        raise ValueError(unknown_name("study", name, shipped) + ", or give a YAML file")
    try:
        given = yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise ValueError(f"{path} is no YAML: {error}") from error
    study = Study.read({"name": path.stem, **given} if isinstance(given, dict) else given, str(path))
    _check(study, path)
    if not quick:
        return study
    if study.quick is None:
        raise ValueError(f"{path} has no section `quick`")
    if unknown := set(study.quick.methods) - {method.name for method in study.methods}:
        raise ValueError(f"{path}: quick: methods has {', '.join(sorted(unknown))}, which the study does not")
    small = study.quick
    methods = [
        m if m.start_of else m.model_copy(update={"overrides": [*m.overrides, *small.overrides]})
        for m in study.methods
        if m.name in small.methods
    ]
    about = {"name": f"{study.name}_quick", "title": f"{study.title} (quick)", "methods": methods}
    study = study.model_copy(update={**about, "seeds": small.seeds, "budget": small.budget})
    _check(study, path)
    return study


def _shipped() -> Path:
    return Path(str(resources.files("verl_ext.configs"))) / "compare"


def _check(study: Study, path: Path) -> None:
    for what in ("name", "label"):  # of folders; of rows and curves
        given = [getattr(method, what) for method in study.methods]
        if len(set(given)) < len(given) or not given:
            raise ValueError(f"{path}: methods must have {what}s of their own; given: {', '.join(given) or 'none'}")
    if len(set(study.seeds)) < len(study.seeds) or not study.seeds:
        raise ValueError(f"{path}: seeds={study.seeds} must be distinct, at least one")
    if set(study.budget) - {OPERATIONS} != set(BUDGETS) or min(study.budget.values()) < 1:
        raise ValueError(
            f"{path}: budget={study.budget} must give {' and '.join(BUDGETS)}, at least 1 each, and may {OPERATIONS}"
        )
    if study.headline not in study.scores:
        raise ValueError(f"{path}: {unknown_name('headline', study.headline, study.scores)}")
    for name, plotted in (("curves", study.curves), ("frontier", study.frontier)):
        if not set(plotted) <= set(study.scores) or len(set(plotted)) < len(plotted):
            raise ValueError(f"{path}: {name}={plotted} must be of scores={study.scores}, each once")
    if len(study.frontier) not in (0, 2):
        raise ValueError(f"{path}: frontier={study.frontier} must be two of the scores: a cost, and what it buys")
    trained = [method.name for method in study.methods if method.trains]
    for method in study.methods:
        if method.start_of is not None and (method.start_of not in trained or method.overrides):
            raise ValueError(
                f"{path}: method {method.name} is the start of {method.start_of!r}: that must be a method that is "
                "trained, and overrides of its own make no sense"
            )
