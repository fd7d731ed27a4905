"""The models that agents call: one of the run, or one of each policy (`mas.policies`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from omegaconf import DictConfig
from verl.utils.config import omega_conf_to_dataclass

from verl_ext.trainer.config import MasConfig
from verl_ext.trainer.policies.settings import policies_of_agents, policy_configs
from verl_ext.trainer.rollout.llm import ServedLLM, chat_options, client_of_calls, direct_client
from verl_ext.trainer.rollout.waves import Conductor, WaveLLM
from verl_ext.trainer.row import Row


def make_models(config: DictConfig, mas: MasConfig, client: Any, busy: Callable[[], int]) -> dict[str, ServedLLM]:
    """The model of each policy by name; without `mas.policies` the only one, under "".

    Args:
        client: verl's client of the rollout servers; with `mas.policies`, those of the policies by name.
        busy: number of tool calls, recalls and waits for a turn under way.
    """
    clients, conductor = client if mas.policies else {"": client}, Conductor(busy)
    configs = policy_configs(config)
    return {name: _make_model(own, mas, clients[name], name, conductor) for name, own in configs.items()}


def _make_model(config: DictConfig, mas: MasConfig, client: Any, policy: str, conductor: Conductor) -> ServedLLM:
    model = omega_conf_to_dataclass(config.actor_rollout_ref.model)
    tokenizer, options = model.tokenizer, chat_options(config, model.hf_config)
    if config.actor_rollout_ref.rollout.name != "hf":
        return ServedLLM(tokenizer, client_of_calls(client), seeded=mas.sampling.seeded, **options)
    from verl_ext.engine.hf.replica import server_handles

    servers = server_handles(policy)
    if mas.deterministic:
        return WaveLLM(tokenizer, client, servers=servers, busy=conductor.busy, conductor=conductor, **options)
    direct = client_of_calls(direct_client(client, servers))
    return ServedLLM(tokenizer, direct, seeded=mas.sampling.seeded, **options)


class Models(dict[str, ServedLLM]):
    """The model of each agent, where agents have policies of their own.

    Raises:
        ValueError: for an agent that has none.
    """

    def __missing__(self, agent: str) -> ServedLLM:
        raise ValueError(
            f"agent {agent!r} has no policy. Remedy: name it among the workflow's own agents, where those of "
            "sub-workflows must be, too, and in mas.policies.<name>.agents"
        )


def models_of_agents(mas: MasConfig, models: Mapping[str, ServedLLM], agents: list[str]) -> Models:
    """The model of each of these agents; empty without `mas.policies`.

    Agents for which an endpoint or a head answers have the first policy's: an idle row of theirs needs some model.
    """
    if not mas.policies:
        return Models()
    policies = policies_of_agents(mas)
    return Models({agent: models[policies.get(agent, next(iter(mas.policies)))] for agent in agents})


def add_policies(rows: list[Row], mas: MasConfig, models: Mapping[str, ServedLLM]) -> list[Row]:
    """Add to each row the policy of its agent; without `mas.policies` the rows are as they were.

    An idle row may be of an agent whose policy is frozen, or who has none; a policy that trains takes it.

    Args:
        models: by policy.
    """
    if not mas.policies:
        return rows
    policies = policies_of_agents(mas)
    trains = next((name for name, one in mas.policies.items() if not one.frozen), next(iter(mas.policies)))
    end = [models[trains].end_token]
    return [
        replace(row, policy=trains, prompt=end, response=end)
        if row.status == "idle"
        else replace(row, policy=policies[row.agent])
        for row in rows
    ]
