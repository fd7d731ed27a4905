"""What a step does, per sampling strategy from a configuration, or measured from the folder of a run."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from verl_ext.observe.runlog import NAME, read_log
from verl_ext.observe.trajectory_files import FOLDER, read_records
from verl_ext.plan.formulas import Load, Sizes
from verl_ext.plan.hardware import Device
from verl_ext.sampling import Strategy
from verl_ext.trainer.preflight.gpu_memory import BYTES, Model, read_model

SETTINGS = "settings.json"
# Agent -> (its calls, mean tokens of their prompts, of their outputs).
Calls = Mapping[str, tuple[float, ...]]
# Strategies that fork once per agent, and keep only the samples of the forked calls; the others fork once and keep all.
NODE_WISE = ("is", "nmc")
MEASURED = ("gen", "ref", "update_actor", "update_weights", "step")


@dataclass(frozen=True)
class Point:
    """One measured run: its load and medians of its steps in seconds (`cpu`: CPU seconds), on one device.

    slots: sequences that its engine decodes at a time. shared: its trainer computes common prompts once. passes: see
    `formulas.training`.
    """

    name: str
    load: Load
    sizes: Sizes
    device: Device
    seconds: dict[str, float]
    slots: int = 128
    shared: bool = True
    passes: float = 3.0
    cpu: bool = False


def sizes_of(model: Model, dtype: str = "bfloat16") -> Sizes:
    """From the sizes that the memory estimate uses; dtype: of the engine."""
    text, size = model.config, BYTES.get(dtype, 2)
    width = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    return Sizes(
        body=sum(inner * outer for inner, outer in model.linear),
        head=text.vocab_size * text.hidden_size,
        layers=text.num_hidden_layers,
        width=text.num_attention_heads * width,
        weight_bytes=model.parameters * size,
        kv_bytes=model.kv_bytes * size / 2,
    )


def distinct(name: str, calls: float, questions: float, agents: int, group: int) -> float:
    """Calls less G − 1 of each fork, which have its prompt in common; one fork per question, or one per agent."""
    forks = questions * (agents if name in NODE_WISE else 1)
    return max(calls - forks * (group - 1), questions)


def expected_load(
    name: str,
    strategy: Strategy,
    questions: int,
    prompt: float,
    output: float,
    longest: float,
    length: int | None = None,
    **tools: float,
) -> Load:
    """The load of a strategy in a chain of its agents: calls as `verl_ext check` counts them.

    Args:
        length: agents of the chain, where some of them do not train.

    Raises:
        ValueError: the strategy does not say how many calls it makes.
    """
    agents, group = len(strategy.agents), strategy.group_size
    chain = length or agents
    each = strategy.expected_calls(chain)
    if each is None:
        raise ValueError(f"mas.sampling.strategy={name} has no expected_calls. Remedy: add it (docs/new_strategy.md)")
    calls, kept = each * questions, (agents * group if name in NODE_WISE else each * agents / chain) * questions
    counts = (distinct(name, number, questions, agents, group) for number in (calls, kept))
    return Load(questions, calls, next(counts), kept, next(counts), prompt, output, longest, **tools)


def read_point(folder: str | Path, device: Device, slots: int = 128) -> Point:
    """A run on one device, from metrics.jsonl, settings.json and, for the longest chain, its trajectory log.

    Medians without the first step, which warms up; CPU seconds if the run has them (tests/bench/cpu_seconds.py).

    Raises:
        ValueError: a file, a second step or a metric is missing, or the model is not here; says which.
    """
    folder = Path(folder)
    steps, middle = _steps(folder)
    settings = _settings(folder)
    kind = "_cpu" if "timing_s/step_cpu" in steps[-1] else ""
    seconds = {name: middle(f"timing_s/{name}{kind}") for name in MEASURED if f"timing_s/{name}" in steps[-1]}
    seconds["rest"] = max(2 * seconds["step"] - sum(seconds.values()), 0.0)
    calls, rows, questions = (middle(key) for key in ("sampling/agent_calls", "update/rows", "sampling/questions"))
    agents = sum(bool(re.fullmatch(r"agents/[^/]+/calls", key)) for key in steps[-1])
    fork = questions, agents, settings["mas.sampling.group_size"]
    prompts, trained = (distinct(settings["mas.sampling.strategy"], number, *fork) for number in (calls, rows))
    prompt, output = (middle(f"sampling/{name}_tokens") / calls for name in ("prompt", "generated"))
    longest = _longest(folder) or middle("num_turns/max") * middle("response_length/max")
    # Of several policies there is no one model; then whoever reads the run wants its tokens alone (`check_one_model`).
    own = [f"mas.policies.{name}.model.path" for name in _policies(settings)]
    path = settings.get(own[0] if len(own) == 1 else "") or settings["actor_rollout_ref.model.path"]
    try:
        model = read_model(str(path))
    except LookupError as error:
        raise ValueError(f"{folder}: the size of its model is not known: {error}") from error
    sizes = sizes_of(model, str(settings.get("actor_rollout_ref.rollout.dtype")))
    shared = settings.get("actor_rollout_ref.rollout.name") == "hf"
    load = Load(questions, calls, prompts, rows, trained, prompt, output, longest)
    return Point(folder.name, load, sizes, device, seconds, slots, shared, cpu=bool(kind))


def check_one_model(folder: Path) -> None:
    """Check that one model answered all calls of a run.

    Raises:
        ValueError: the run has several policies.
    """
    if len(names := _policies(_settings(folder))) > 1:
        raise ValueError(
            f"{folder} is a run of several policies (mas.policies: {', '.join(names)}), and --fit needs runs in which "
            "one model answers all calls: it compares the time of a step with that model's size. Remedy: a run of each "
            "model without mas.policies; what is fitted to these also plans several policies (--coefficient)"
        )


def _policies(settings: Mapping[str, Any]) -> list[str]:
    """The names in `mas.policies`, from the settings of a run."""
    found = (key.split(".")[2] for key, value in settings.items() if key.startswith("mas.policies.") and value)
    return list(dict.fromkeys(found))


def _settings(folder: Path) -> dict[str, Any]:
    return json.loads(_existing(folder / SETTINGS, lambda path: Path(path).read_text(encoding="utf-8")))


def _steps(folder: Path) -> tuple[list[dict[str, Any]], Callable[[str], float]]:
    """(metrics of the steps of a run, the median of a metric without the first step)."""
    steps = [entry["metrics"] for entry in _existing(folder / NAME, read_log) if "timing_s/step" in entry["metrics"]]
    if len(steps) < 2:
        raise ValueError(f"{folder / NAME}: {len(steps)} steps of training; 2 are needed, as the first only warms up")

    def middle(key: str) -> float:
        values = [step[key] for step in steps[1:] if step.get(key) is not None]
        if not values:
            raise ValueError(f"{folder / NAME} has no {key}. Remedy: a run of this version of verl_ext")
        return median(values)

    return steps, middle


def read_calls(folder: Path, agents: Sequence[str]) -> Calls:
    """The calls of each agent of a run, from metrics.jsonl: medians without the first step.

    Raises:
        ValueError: a file, a second step or an agent is missing; says which.
    """
    middle = _steps(folder)[1]
    columns = ("calls", "prompt_tokens", "output_tokens")
    return {agent: tuple(middle(f"agents/{agent}/{column}") for column in columns) for agent in agents}


def write_points(path: str | Path, points: Sequence[Point]) -> None:
    """As JSON, one point a line, to fit again without the runs."""
    Path(path).write_text("".join(json.dumps(asdict(point)) + "\n" for point in points), encoding="utf-8")


def read_points(path: str | Path) -> list[Point]:
    """Points that `write_points` wrote, or that were written by hand from published figures.

    Raises:
        ValueError: a line has other fields than a `Point`.
    """
    points = []
    for number, line in enumerate(_existing(path, lambda file: Path(file).read_text("utf-8").splitlines()), 1):
        try:
            row = json.loads(line)
            parts = {"load": Load(**row["load"]), "sizes": Sizes(**row["sizes"]), "device": Device(**row["device"])}
            if not row["seconds"].get("step", 0) > 0:
                raise ValueError("seconds has no step above 0")
            points.append(Point(**row | parts))
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(
                f"{path}, line {number}: {error}. Remedy: the fields of verl_ext.plan.workload.Point"
            ) from error
    return points


def _longest(folder: Path) -> float:
    """Median over logged steps of the most tokens that any logged trajectory generated; 0: no log."""
    if not (folder / FOLDER).is_dir():
        return 0.0
    tokens = Counter[tuple[int, int, int]]()  # by step, question and trajectory; a long record is in several parts
    for record in read_records(folder):
        for call in record["calls"] if record["phase"] == "train" else ():
            for number in call["trajectories"]:
                tokens[record["step"], record["question"]["number"], number] += call["generated_tokens"]
    most: dict[int, int] = {}
    for (step, *_), count in tokens.items():
        most[step] = max(most.get(step, 0), count)
    return float(median(most.values())) if most else 0.0


def _existing(path: str | Path, read: Any) -> Any:
    if not Path(path).is_file():
        raise ValueError(
            f"{path} is not there. Remedy: the folder of a run (trainer.default_local_dir), or a file of points"
        )
    return read(path)
