"""Served models of a pool (`mas.workflow.models`): mono and mixed pools, as the paper's Mimas and Titan."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from typing import Any

from verl_ext.mas.endpoint import EndpointLLM
from verl_ext.settings import check_keys
from verl_ext.tools.chat import ChatEndpoint

# Of `ChatEndpoint`'s arguments, those that a recipe may set.
KEYS = [name for name in inspect.signature(ChatEndpoint).parameters if name not in ("template", "seeded", "setting")]


def served_models(given: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """For each model by name: what distinguishes an agent that it answers for (`Agent.changed`).

    Raises:
        ValueError: an unknown key, a name that cannot follow a pattern's, a cost below 0.
    """
    found: dict[str, dict[str, Any]] = {}
    for name, section in given.items():
        path = f"mas.workflow.models.{name}"
        if not name or set(name) & set("/#*."):
            raise ValueError(f"{path}: a name must not be empty nor contain /, #, * or a dot. Remedy: another name")
        check_keys(section, [*KEYS, "cost"], path)
        settings = dict(section)
        cost = settings.pop("cost", 1.0)
        if not isinstance(cost, (int, float)) or not 0 <= cost < math.inf:
            raise ValueError(f"{path}.cost={cost!r} must be at least 0, and finite: the price of a token")
        found[name] = {"cost": float(cost)}
        if settings.get("url") is not None:
            chat = ChatEndpoint(**settings, setting=(f"{path}.url", f"{path}.model"))
            found[name] |= {"llm": EndpointLLM(chat), "trained": False}
    return found
