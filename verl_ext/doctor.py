"""Say in words what was checked of a run's steps, or recompute what trained of one question.

    verl_ext doctor runs/mhgpo_tiny
    verl_ext doctor runs/mhgpo_tiny --step 10 --question 3

The second form reads the rows of a logged question (`mas.trajectory_log`), recomputes their advantages by the
algorithm, and, where the weights that sampled them are in a checkpoint, their log-probabilities.
"""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from verl_ext.arguments import Parser
from verl_ext.observe.doctor_report import report
from verl_ext.observe.runlog import NAME, read_log
from verl_ext.observe.trajectory_files import FOLDER, ROWS, logged_rows

Logged = dict[str, Any]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    parser = Parser(prog="verl_ext doctor", description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path, help="folder of a run (trainer.default_local_dir)")
    parser.add_argument("--step", type=int, help="recompute the logged rows of this training step")
    parser.add_argument(
        "--question", type=int, help="only those of this question, by its number in the log of the step"
    )
    parser.add_argument("--model", help="weights that sampled the step, if they are not in the run's checkpoints")
    given = parser.parse_args(argv)
    if given.step is None and (given.question is not None or given.model is not None):
        parser.error("--question and --model are about the rows of a step: give --step, too")
    try:
        text = words_of(given.run) if given.step is None else replay(given.run, given.step, given.question, given.model)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    print(text)
    return 0


def words_of(run: Path) -> str:
    """The page of a run.

    Raises:
        ValueError: there is no log of training steps.
    """
    entries = [entry for entry in read_log(run / NAME) if entry["step"] > 0] if (run / NAME).exists() else []
    if not entries:
        raise ValueError(f"{run} has no {NAME} with training steps. Remedy: name the folder of a run")
    return report(str(run), entries)


def replay(run: Path, step: int, question: int | None, model: str | None) -> str:
    """The logged rows of a step with what they weigh, recomputed.

    Raises:
        ValueError: the step or the question is not in the log.
    """
    logged = read_rows(run, step)
    rows = [row for row in logged["rows"] if question in (None, row["question"])]
    if not rows:
        numbers = sorted({row["question"] for row in logged["rows"]})
        raise ValueError(f"--question {question} is not in the log of step {step}; logged are {numbers}")
    advantages, note = recomputed_advantages(logged, rows)
    log_probs, source = recomputed_log_probs(run, logged, rows, model)
    lines = [f"step {step}: {len(rows)} rows of {len({row['question'] for row in rows})} questions", note, source, ""]
    for number, row in enumerate(rows):
        one, other = (values[number] if values else None for values in (advantages, log_probs))
        lines += _row_lines(row, one, other)
    return "\n".join(lines)


def read_rows(run: Path, step: int) -> Logged:
    """The logged rows of a step.

    Raises:
        ValueError: there are none.
    """
    path = run / FOLDER / ROWS.format(step=step)
    if not path.exists():
        found = sorted(logged_rows(run / FOLDER))
        raise ValueError(
            f"step {step} of {run} was not logged; logged are {found or 'none'}. Remedy: one of these, or a run with "
            "mas.trajectory_log.every=1"
        )
    return json.loads(gzip.decompress(path.read_bytes()))


def recomputed_advantages(logged: Logged, rows: list[Logged]) -> tuple[list[list[float]] | None, str]:
    """The advantages of these rows by the run's algorithm, and what was compared; None if it is not one of ours.

    All rows of a question are logged, so a group within the question is whole. One across questions is not.
    """
    import torch

    from verl_ext.algorithms import ALGORITHMS, make_algorithm
    from verl_ext.trainer.batch import token_rows_of

    about, tags = logged["run"], [row["tag"] for row in rows]
    if about["estimator"] not in ALGORITHMS:
        return None, f"advantages: not recomputed, {about['estimator']} is verl's"
    if across := sum(tag["group"].startswith("*batch") for tag in tags):
        return None, f"advantages: not recomputed, {across} rows are compared with rows of other questions"
    width = max(len(row["responses"]) for row in rows)
    mask = torch.tensor([row["response_mask"] + [0] * (width - len(row["responses"])) for row in rows])
    rewards = torch.zeros(len(rows), width)
    for number, row in enumerate(rows):
        on = [place for place, trains in enumerate(row["response_mask"]) if trains]
        rewards[number, on[-1] if on else -1] = row["tag"]["reward"]
    config = {"norm_adv_by_std_in_grpo": about["by_std"]}
    algorithm = make_algorithm(about["estimator"], about["options"] or {})
    found = algorithm.advantages(token_rows_of(rewards, mask, tags), config)
    values = [own[: len(row["responses"])].tolist() for own, row in zip(found, rows, strict=True)]
    worst = max(
        abs(a - b) for own, row in zip(values, rows, strict=True) for a, b in zip(own, row["advantages"], strict=True)
    )
    return values, f"advantages: recomputed by {about['estimator']}; largest difference from the run {worst:.1e}"


def recomputed_log_probs(
    run: Path, logged: Logged, rows: list[Logged], model: str | None
) -> tuple[list[list[float]] | None, str]:
    """The log-probabilities of the response tokens under the weights that sampled them, and what was compared.

    Raises:
        ValueError: `model` is given and cannot be loaded.
    """
    from safetensors import SafetensorError

    step, about = logged["step"], logged["run"]
    name = model or (about["model"] if step == 1 else str(run / f"global_step_{step - 1}"))
    if model is None and step > 1 and not Path(name).is_dir():
        return (
            None,
            f"log-probabilities: not recomputed, there is no {name} (trainer.save_freq); or give --model",
        )
    if others := sum(set(row["tag"]["versions"]) != {step - 1} for row in rows):
        return None, f"log-probabilities: not recomputed, {others} rows are not of the weights of step {step - 1}"
    if any(row["tag"]["decides"] for row in rows):
        return None, "log-probabilities: not recomputed, there are decisions among given texts"
    values: list[list[float]] | None
    try:
        if step == 1 and model is None and (policies := about.get("policies")):
            given = {policy: (section.get("model") or {}).get("path") or name for policy, section in policies.items()}
            name = "the policies' models"
            values = _of_policies(given, rows, about["temperature"])
        else:
            values = log_probs_of(name, rows, about["temperature"])
    except (OSError, ValueError, SafetensorError) as error:  # the model that the run began with may not be here
        if model is not None:
            raise ValueError(f"--model {model} cannot be loaded: {error}") from error
        return None, f"log-probabilities: not recomputed, {name} cannot be loaded ({error}); or give --model"
    if values is None:
        return None, f"log-probabilities: not recomputed, {name} holds adapters"
    differences = (
        abs(a - b)
        for own, row in zip(values, rows, strict=True)
        for a, b, on in zip(own, row["rollout_log_probs"], row["response_mask"], strict=True)
        if on
    )
    if (worst := max(differences, default=None)) is None:
        return values, f"log-probabilities: recomputed with {name}; no token of these rows trains"
    return values, f"log-probabilities: recomputed with {name}; largest difference from the rollout {worst:.1e}"


def log_probs_of(name: str, rows: list[Logged], temperature: float) -> list[list[float]] | None:
    """Log-probabilities of the response tokens of rows under a model in float32; None for a checkpoint of adapters."""
    import torch

    from verl_ext.evaluate.checkpoint import find_model

    found = find_model(name)
    if found.policies:
        return _of_policies({policy: model.source for policy, model in found.policies.items()}, rows, temperature)
    if found.adapters:
        return None
    model = _loaded(name)
    values = []
    with torch.no_grad():
        for row in rows:
            ids = torch.tensor([row["prompts"] + row["responses"]])
            start = len(row["prompts"]) - 1
            logits = model(ids).logits[0, start:-1].float() / temperature
            targets = torch.tensor(row["responses"])
            values.append(logits.log_softmax(-1).gather(1, targets[:, None])[:, 0].tolist())
    return values


def _of_policies(sources: dict[str, str], rows: list[Logged], temperature: float) -> list[list[float]] | None:
    """The same where each row has the model of its policy; None if one of these is a checkpoint of adapters."""
    found = [log_probs_of(sources[row["tag"]["policy"]], [row], temperature) for row in rows]
    known = [values[0] for values in found if values]
    return known if len(known) == len(rows) else None


@lru_cache(4)  # rows of several policies ask for them in turn
def _loaded(name: str) -> Any:
    """The model that `name` names, as `evaluate.model` does, in float32."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from verl_ext.evaluate.checkpoint import find_model, full_weights

    found = find_model(name)
    if found.shards:
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(found.path), dtype=torch.float32)
        model.load_state_dict(full_weights(found), strict=False)
        model.tie_weights()
    else:
        model = AutoModelForCausalLM.from_pretrained(found.path, dtype=torch.float32)
    return model.eval()


def _row_lines(row: Logged, advantage: list[float] | None, log_probs: list[float] | None) -> list[str]:
    tag, on = row["tag"], [place for place, trains in enumerate(row["response_mask"]) if trains]

    def mean(values: list[float] | None) -> str:
        return "-" if values is None or not on else f"{sum(values[place] for place in on) / len(on):+.4f}"

    adapter = "".join(f", adapter {name}" for name in tag.get("sampled_by", []))
    adapter += f", policy {tag['policy']}" if "policy" in tag else ""
    versions = "-".join(str(version) for version in dict.fromkeys(tag["versions"]))
    return [
        f"question {row['question']}, trajectory {tag['order'][2]}, {tag['agent']} {tag['turn']}: {tag['ended']}",
        f"  group {tag['group'].split('/', 1)[-1]}, R {tag['reward']:+.4f}, advantage {mean(row['advantages'])} "
        f"(recomputed {mean(advantage)}), weight {row['weight']:.4f}",
        f"  {len(on)} of {len(row['response_mask'])} tokens train, sampled by the weights of step {versions}{adapter}",
        f"  mean log-probability: rollout {mean(row['rollout_log_probs'])}, trainer {mean(row['old_log_probs'])}, "
        f"recomputed {mean(log_probs)}",
    ]


if __name__ == "__main__":
    sys.exit(main())
