"""What a configuration would run: the facts, and what is wrong or missing, found without accelerators."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hydra.errors import HydraException
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from verl_ext.trainer.config import SHARED, optimiser_steps, read_mas_config, strategy_from
from verl_ext.trainer.preflight import checks
from verl_ext.trainer.preflight.gpu_memory import GIB, Model, estimate, read_model
from verl_ext.trainer.workflow import build_workflow


@dataclass
class Report:
    """What was found: facts (name, text), and why it would not run.

    problems: why the configuration is wrong, on any machine. lacking: packages, GPUs and CPUs that this machine lacks.
    missing: what else a start would need here (data, models, servers), and memory.
    """

    config: DictConfig
    facts: list[tuple[str, str]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    lacking: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)

    def attempt(self, check: Callable[..., Any], *arguments: Any) -> Any:
        """The check's result; what it refuses becomes a problem."""
        try:
            return check(*arguments)
        except (ValueError, AssertionError, NotImplementedError, HydraException, OmegaConfBaseException) as error:
            self.problems.append(str(error))
            return None

    def __str__(self) -> str:
        width = max((len(name) for name, _ in self.facts), default=0)
        lines = [f"{name:<{width}}  {text}" for name, text in self.facts]
        found = {"Wrong:": self.problems, "This machine lacks:": self.lacking, "Missing here:": self.missing}
        for title, items in found.items():
            lines += ["", title, *(f"  - {item}".replace("\n", "\n    ") for item in items)] if items else []
        return "\n".join(lines)


def add_plan(report: Report) -> None:
    """System, algorithm, machines, steps and calls. The configuration must have passed `check_multi_agent`."""
    config, mas = report.config, read_mas_config(report.config)
    agents = build_workflow(mas).trained_agents
    strategy = strategy_from(mas.sampling, agents)
    rollout, trainer = config.actor_rollout_ref.rollout, config.trainer
    name = mas.workflow["_target_"].rpartition(".")[2]
    report.facts.append(("system", f"{name}: {', '.join(agents)}"))
    heads = {agent: section.head for agent, section in mas.agents.items() if section.head and agent in agents}
    if heads:
        report.facts.append(("heads", ", ".join(f"{agent}: {h.encoder}, lr {h.lr:g}" for agent, h in heads.items())))
    if mas.policy != SHARED:
        model = config.actor_rollout_ref.model
        report.facts.append(("policy", f"{mas.policy}: rank {model.lora_rank}, alpha {model.lora_alpha}, frozen base"))
    sampling = f"{mas.sampling.strategy}, {strategy.group_size} samples a fork, top_p {rollout.top_p}"
    report.facts.append(("algorithm", f"{config.algorithm.adv_estimator} on {sampling}"))
    _add_machines(report)
    steps = optimiser_steps(config, config.actor_rollout_ref.actor) * config.actor_rollout_ref.actor.ppo_epochs
    rows = parquet_rows(config.data.train_files)
    if rows is not None and config.data.get("train_max_samples", -1) > 0:
        rows = min(rows, config.data.train_max_samples)
    per_epoch = None if rows is None else rows // config.data.train_batch_size
    length = "steps of an epoch: known once data.train_files are there" if rows is None else f"{per_epoch} an epoch"
    total = trainer.total_training_steps or (None if rows is None else per_epoch * trainer.total_epochs)
    budget = [f"{limit:,} {name}" for name, limit in vars(mas.budget).items() if limit is not None]
    end = f"{total} in all" if total else f"{trainer.total_epochs} epoch(s)"
    end += f", or until {' and '.join(budget)} are used" if budget else ""
    each = f"{config.data.train_batch_size} questions and {steps} optimiser step(s) each; {length}; {end}"
    often = f"validation every {trainer.test_freq}, checkpoint every {trainer.save_freq}"
    report.facts.append(("steps", f"{each}; {often}"))
    calls = strategy.expected_calls(len(agents))
    if calls is not None:
        each = f"{calls:g} a question, {calls * config.data.train_batch_size:,.0f} a step"
        report.facts.append(("agent calls", f"{each} (if each agent is called once; forks included)"))


def _add_machines(report: Report) -> None:
    config, trainer = report.config, report.config.trainer
    rollout = config.actor_rollout_ref.rollout
    ranks = trainer.nnodes * trainer.n_gpus_per_node
    engine = rollout.tensor_model_parallel_size * rollout.data_parallel_size * rollout.pipeline_model_parallel_size
    kind = "CPU rank(s)" if trainer.device == "cpu" else "GPU(s)"
    if ranks % engine:
        report.problems.append(
            f"{ranks} ranks (trainer.nnodes × n_gpus_per_node) cannot be shared out to rollout engines of {engine} "
            "(rollout.tensor_model_parallel_size × data_parallel_size × pipeline_model_parallel_size): it must divide"
        )
        return
    report.attempt(checks.check_logical_cpus, config)
    report.lacking += checks.lacking(config)
    where = f"{trainer.nnodes} machine(s) of {trainer.n_gpus_per_node} {kind}"
    engines = f"{ranks // engine} {rollout.name} engine(s) of {engine}"
    cpus = sum(checks.logical_cpus(config).values())
    counted = "" if config.ray_kwargs.ray_init.num_cpus else " (Ray counts the machines' cores)"
    report.facts.append(("runs on", f"{where}; {engines}; Ray needs {cpus} logical CPUs{counted}"))


def add_model(report: Report, gpu_memory: float) -> None:
    """Token limits, the model's size, and what it needs of a GPU of `gpu_memory` GiB."""
    path = str(report.config.actor_rollout_ref.model.path)
    try:
        model = read_model(path)
    except LookupError as error:
        _add_tokens(report, None)
        report.facts.append(("memory", f"not estimated: {error}"))
        return
    _add_tokens(report, model)
    report.facts.append(("model", f"{path}: {model.parameters / 1e9:.3f} G parameters, by {model.source}"))
    heads, tensor = model.config.num_attention_heads, report.config.actor_rollout_ref.rollout.tensor_model_parallel_size
    if heads % tensor:
        report.problems.append(f"rollout.tensor_model_parallel_size={tensor} does not divide {path}'s {heads} heads")
    if report.config.trainer.device != "cpu":
        _add_memory(report, model, gpu_memory)


def _add_memory(report: Report, model: Model, gpu_memory: float) -> None:
    from verl.trainer.ppo.utils import need_critic

    config = report.config
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = estimate(config, model, need_critic(config))
    parts = ", ".join(f"{name} {size / GIB:.1f}" for name, size in found.parts.items())
    report.facts.append(("memory, training", f"about {found.training / GIB:.0f} GiB a GPU: {parts}"))
    report.facts.append(("memory, new weights", f"about {found.sync / GIB:.0f} GiB while the engine gets them"))
    tokens = found.kv_tokens(gpu_memory * GIB)
    report.facts.append(
        (
            "memory, sampling",
            f"about {found.resident / GIB:.0f} GiB stay; the engine takes {found.share:.0%} of the card: weights "
            f"{found.engine / GIB:.1f} GiB, cache for {max(tokens, 0):,} tokens",
        )
    )
    needed = found.needed() / GIB
    if needed > gpu_memory:
        report.missing.append(f"memory: about {needed:.0f} GiB on each GPU, {gpu_memory:g} given (an estimate)")
    length = config.actor_rollout_ref.rollout.max_model_len or model.positions
    if config.actor_rollout_ref.rollout.name == "vllm" and tokens < length:
        report.missing.append(
            f"memory: with {gpu_memory:g} GiB vLLM's cache holds about {max(tokens, 0):,} tokens and vLLM would not "
            f"start for sequences of {length:,}. Remedy: actor_rollout_ref.rollout.max_model_len={_longest(config)}"
        )


def _longest(config: DictConfig) -> int:
    """Tokens of the longest row that the limits allow."""
    outputs = [agent.max_tokens or 0 for agent in read_mas_config(config).agents.values()]
    return config.data.max_prompt_length + max([config.data.max_response_length, *outputs])


def _add_tokens(report: Report, model: Model | None) -> None:
    config, parts = report.config, report.config.actor_rollout_ref
    longest, dynamic = _longest(config), parts.actor.use_dynamic_bsz
    sequences = {"actor_rollout_ref.rollout.max_model_len": parts.rollout.max_model_len}
    if model is not None:
        sequences["the model's max_position_embeddings"] = model.positions
    batches = {}
    if dynamic:
        batches["actor_rollout_ref.actor.ppo_max_token_len_per_gpu"] = parts.actor.ppo_max_token_len_per_gpu
        batches["actor_rollout_ref.ref.log_prob_max_token_len_per_gpu"] = parts.ref.log_prob_max_token_len_per_gpu
        batches["actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu"] = (
            parts.rollout.log_prob_max_token_len_per_gpu
        )
    if config.algorithm.adv_estimator == "gae" and config.critic.use_dynamic_bsz:
        batches["critic.ppo_max_token_len_per_gpu"] = config.critic.ppo_max_token_len_per_gpu
    ranks = parts.actor.fsdp_config.ulysses_sequence_parallel_size
    limits = sequences | {name: limit * ranks for name, limit in batches.items()}
    short = [f"{name}={limit}" for name, limit in limits.items() if limit is not None and limit < longest]
    sizes = f"{config.data.max_prompt_length} of prompt, {longest - config.data.max_prompt_length} of output"
    report.facts.append(("tokens", f"at most {longest} a row ({sizes}); micro-batches of {_micro(parts.actor)}"))
    if short:
        report.problems.append(
            f"{', '.join(short)}: less than a row may have, {longest} (data.max_prompt_length + the longest output); "
            "the run would stop at the first such row. Raise it, or lower those"
        )


def _micro(actor: DictConfig) -> str:
    if actor.use_dynamic_bsz:
        return f"{actor.ppo_max_token_len_per_gpu} tokens"
    return f"{actor.ppo_micro_batch_size_per_gpu} rows"


def listed(value: Any) -> list[str]:
    """One path, a list of them, or none."""
    return [] if value is None else [value] if isinstance(value, str) else list(value)


def parquet_rows(files: Any) -> int | None:
    """Rows of local parquet files; None if one is absent, remote, or of another kind."""
    import pyarrow.parquet as pq

    try:
        return sum(pq.ParquetFile(Path(path).expanduser()).metadata.num_rows for path in listed(files))
    except (OSError, ValueError):
        return None
