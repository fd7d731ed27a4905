"""Describes what a configuration would run, and what is wrong or missing. Needs no accelerators."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hydra.errors import HydraException
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from verl_ext.mas import Workflow
from verl_ext.rewards.judged import JUDGED
from verl_ext.tracebacks import explained
from verl_ext.trainer import modes
from verl_ext.trainer.build import build_workflow
from verl_ext.trainer.config import MasConfig, optimiser_steps, read_mas_config, strategy_from
from verl_ext.trainer.policies.settings import PolicySection, given_at, policy_config, policy_configs, read_policies
from verl_ext.trainer.preflight import machine
from verl_ext.trainer.preflight.data import parquet_rows
from verl_ext.trainer.sections import ONCE_PER_NODE, JudgeSection


@dataclass
class Report:
    """The plan of a run: facts (name, text), and the reasons why it would not start.

    problems: why the configuration is wrong, on any machine. lacking: packages, GPUs and CPUs that this machine lacks.
    missing: what else a start would need here (data, models, servers), and memory. notes: what it will not do.
    """

    config: DictConfig
    facts: list[tuple[str, str]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    lacking: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, name: str, text: str) -> None:
        """Add a fact."""
        self.facts.append((name, text))

    def attempt(self, check: Callable[..., Any], *arguments: Any) -> Any:
        """Run a check and return its result; its `ValueError` becomes a problem."""
        try:
            return check(*arguments)
        except (ValueError, AssertionError, NotImplementedError, HydraException, OmegaConfBaseException) as error:
            if (text := explained(error)) not in self.problems:
                self.problems.append(text)
            return None

    def __str__(self) -> str:
        width = max((len(name) for name, _ in self.facts), default=0)
        lines = [f"{name:<{width}}  {text}" for name, text in self.facts]
        found = {"Note:": self.notes, "Wrong:": self.problems}
        found |= {"This machine lacks:": self.lacking, "Missing here:": self.missing}
        for title, items in found.items():
            lines += ["", title, *(f"  - {item}".replace("\n", "\n    ") for item in items)] if items else []
        return "\n".join(lines)


def add_plan(report: Report) -> None:
    """System, algorithm, machines, steps and calls. The configuration must have passed `check_multi_agent`."""
    config, mas = report.config, read_mas_config(report.config)
    workflow = build_workflow(mas)
    agents = workflow.trained_agents
    rollout, model = config.actor_rollout_ref.rollout, config.actor_rollout_ref.model
    report.add("system", f"{mas.workflow['_target_'].rpartition('.')[2]}: {', '.join(agents)}")
    heads = {name: section.head for name, section in mas.agents.items() if section.head and name in agents}
    if heads:
        report.add("heads", ", ".join(f"{name}: {head.encoder}, lr {head.lr:g}" for name, head in heads.items()))
    if model.lora.adapters:
        report.add("policy", f"{mas.policy}: rank {model.lora_rank}, alpha {model.lora_alpha}, frozen base")
    for name, policy in mas.policies.items():
        report.add(f"policy {name}", _policy(policy, policy_config(config, name)))
    sampling = f"{mas.sampling.strategy}, {mas.sampling.group_size} samples a fork, top_p {rollout.top_p}"
    report.add("algorithm", f"{config.algorithm.adv_estimator}; sampling by {sampling}")
    report.add("judge", _judge(mas.judge, workflow))
    if shared := [name for name, section in mas.tools.items() if section.get(ONCE_PER_NODE)]:
        report.add(
            "once per node", f"{', '.join(shared)}: built in one process a node, which its rollout workers share"
        )
    _add_machines(report)
    _add_steps(report, mas)
    calls = strategy_from(mas.sampling, agents).expected_calls(len(agents))
    if calls is not None:
        each = f"{calls:g} a question, {calls * config.data.train_batch_size:,.0f} a step"
        report.add("agent calls", f"{each} (if each agent is called once; forks included)")


def _policy(section: PolicySection, config: DictConfig) -> str:
    """The agents of a policy, its model, and how it trains."""
    actor, model = config.actor_rollout_ref.actor, config.actor_rollout_ref.model
    how = "frozen" if section.frozen else f"lr {actor.optim.lr:g}"
    how += f", LoRA of rank {model.lora_rank}{' for each agent' * bool(model.lora.adapters)}" * (model.lora_rank > 0)
    how += f", every {section.every} steps" if section.every > 1 else ""
    how += f", from step {section.from_step}" if section.from_step > 1 else ""
    return f"{', '.join(section.agents)}: {model.path}, {how}"


def _judge(given: JudgeSection, workflow: Workflow) -> str:
    """Which model judges, what it is asked, where its verdicts are kept; or by which rule the reward goes."""
    success, price = (vars(workflow).get(name) for name in ("success", "call_price"))
    scored = f"success={success}" if success else f"the reward of {type(workflow).__name__}"
    if not workflow.needs_judge:
        why = f"none is asked (mas.judge names {given.url or given.checkpoint})" if given.given else "none is set"
        charge = f", less {price:g} for each call that was not needed" if success == "path" and price else ""
        return f"{why}: {scored} goes by rules{charge}"
    model = given.model or "the only model there"
    which = f"checkpoint {given.checkpoint}, on the CPU" if given.checkpoint else f"{model} at {given.url}"
    asked = f" ({JUDGED[success]})" if success in JUDGED else ""
    state = "kept nowhere" if given.cache is None else f"kept in {given.cache}, "
    if given.cache is not None:
        state += "which is there already" if Path(given.cache).expanduser().is_file() else "new"
    return f"{which} scores {scored}{asked}; verdicts {state}; judge_tokens counts what they cost"


def notes(config: DictConfig) -> list[str]:
    """What this run will not do, and a user may miss at its end: verl's defaults neither validate nor save.

    On GPUs also that rows are padded: the CPU's engine packs its rows in any case.
    """
    trainer, found = config.trainer, list[str]()
    if trainer.get("val_only", False):
        return found
    sections, configs, key = read_policies(config), policy_configs(config), "model.use_remove_padding"
    trained = [name for name in configs if name not in sections or not sections[name].frozen]
    padded = [name for name in trained if not configs[name].actor_rollout_ref.model.use_remove_padding]
    total = trainer.total_training_steps
    found += [
        f"policy {name} trains in none of the {total} steps: mas.policies.{name}.from_step={sections[name].from_step}"
        for name in trained
        if name in sections and total and not sections[name].updates(total)
    ]
    if trainer.device != "cpu" and padded:
        where = " and ".join(dict.fromkeys(f"{given_at(name, sections.get(name), key)}=false" for name in padded))
        whose = f" of {', '.join(padded)}" if sections else ""
        found.append(
            f"rows{whose} are not packed: each is padded to the longest of its "
            f"micro-batch, so that training takes several times the memory that is estimated ({where}; true goes with "
            "attn_implementation=packed_sdpa, too)"
        )
    if trainer.test_freq <= 0:
        found.append(f"nothing is validated while it trains (trainer.test_freq={trainer.test_freq}; e.g. 5)")
    if trainer.save_freq <= 0:
        found.append(f"no weights are saved, not even the last (trainer.save_freq={trainer.save_freq}; e.g. 20)")
    return found


def _add_steps(report: Report, mas: MasConfig) -> None:
    config, trainer, questions = report.config, report.config.trainer, report.config.data.train_batch_size
    rows, limit = parquet_rows(config.data.train_files), config.data.get("train_max_samples", -1)
    length, total = "steps of an epoch: known once data.train_files are there", trainer.total_training_steps
    if rows is not None:
        per_epoch = (min(rows, limit) if limit > 0 else rows) // questions
        length, total = f"{per_epoch} an epoch", total or per_epoch * trainer.total_epochs
    end = f"{total} in all" if total else _counted(trainer.total_epochs, "epoch")
    if budget := [f"{most:,} {name}" for name, most in vars(mas.budget).items() if most is not None]:
        end += f", or until {' and '.join(budget)} are used"
    often = f"validation every {trainer.test_freq}" if trainer.test_freq > 0 else "no validation"
    often += f", checkpoint every {trainer.save_freq}" if trainer.save_freq > 0 else ", no checkpoint"
    report.notes += notes(config)
    report.add("steps", f"{questions} questions and {_optimiser_steps(config)} each; {length}; {end}; {often}")


def _optimiser_steps(config: DictConfig) -> str:
    """Of a training step, in words; of each policy where they differ."""
    sections, counts = read_policies(config), dict[str, int]()
    for name, own in policy_configs(config).items():
        if name not in sections or not sections[name].frozen:
            actor = own.actor_rollout_ref.actor
            counts[name] = optimiser_steps(own, actor) * actor.ppo_epochs * modes.parts_of_step(own)
    if len(set(counts.values())) <= 1:
        return _counted(max(counts.values(), default=0), "optimiser step")
    return ", ".join(f"{_counted(count, 'optimiser step')} of {name}" for name, count in counts.items())


def _add_machines(report: Report) -> None:
    config, trainer, rollout = report.config, report.config.trainer, report.config.actor_rollout_ref.rollout
    pool, policies = modes.rollout_ranks(config), modes.engines(config)
    for ranks, engine in policies.values():
        if ranks % engine:
            named = f"{ranks} ranks (trainer.nnodes × n_gpus_per_node) cannot be shared out to engines of {engine}"
            report.problems.append(f"{named} ({modes.ENGINE}): it must divide")
            return
    report.attempt(machine.check_logical_cpus, config)
    report.lacking += machine.lacking(config)
    kind = "CPU rank" if trainer.device == "cpu" else "GPU"
    where = f"{_counted(trainer.nnodes, 'machine')} with {_counted(trainer.n_gpus_per_node, kind)}"
    where += " each" * (trainer.nnodes > 1) + f", {_counted(pool, kind)} for the rollouts" * (pool > 0)
    engines = ", ".join(
        f"{_counted(ranks // engine, f'{rollout.name} engine')} of {_counted(engine, kind)}{name and f' for {name}'}"
        for name, (ranks, engine) in policies.items()
    )
    counted = "" if config.ray_kwargs.ray_init.num_cpus else " (Ray counts the machines' cores)"
    cpus = f"Ray needs {sum(machine.logical_cpus(config).values())} logical CPUs{counted}"
    report.add("runs on", f"{where}; {engines}; {cpus}")
    report.facts += modes.facts(config)


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
