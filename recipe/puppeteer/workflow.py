"""Puppeteer: at each step an orchestrator chooses who of a pool acts next, until it ends the work or a budget does.

Source: "Multi-Agent Collaboration via Evolving Orchestration", Section 2.1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from verl_ext.mas import Agent, Task, Workflow
from verl_ext.mas.options import at_least, one_of
from verl_ext.mas.prompts import prompts_of
from verl_ext.observe.decisions import structure
from verl_ext.recipe.puppeteer import orders, prompts, prompts_tiny, quality, scoring
from verl_ext.recipe.puppeteer.explorer import CHAINS, ORCHESTRATOR, TOPOLOGIES, Explorer, edges
from verl_ext.recipe.puppeteer.puppets import POOL, TOOLS, State, pattern_of
from verl_ext.recipe.puppeteer.served import served_models

PROMPTS = {"faithful": prompts, "tiny": prompts_tiny}
LEARNED = "learned"
ORCHESTRATIONS = (LEARNED, "random", "fixed", "oracle")


@dataclass(frozen=True)
class Outcome:
    """What the explorations came to: the answer of their vote, and their states.

    Attributes:
        program: what running the answer showed, if it is software (see quality.py).
    """

    answer: str
    states: tuple[State, ...]
    program: dict[str, float] = field(default_factory=dict)


class Puppeteer(Workflow):
    """An orchestrator and a pool of puppets.

    Args:
        prompts: faithful, for instruction-tuned models; tiny, for the embedded one; or a YAML file (`mas/prompts.py`).
        pool: names of the puppets: reasoning patterns (planning, reasoning, critique, reflect, question, summarize,
            conclude, modify) and tool agents (read_file, run_python, web_search, access_website, search_arxiv; each
            needs the tool of its name under `mas.tools`). `planning-qwen7b` is answered by the model qwen7b of
            `models`, `planning` by the run's own model. `terminate` is always there.
        models: name -> a served model, as `mas.agents.<name>.endpoint` has it (url, model, …), and `cost`, the price of
            its tokens. url null: the run's own model.
        topology: chains, tree or graph (explorer.py).
        depth: steps from the task to an answer, at most; the paper's 4.
        width: parallel explorations: chains, branches of the tree, or puppets of a step; the paper's are up to 3.
        token_budget: generated tokens after which an exploration ends; 0: none.
        train_agents: False: decisions alone are trained, as in the paper. True: what the puppets say, too.
        orchestration: learned, or who acts next without learning: random, fixed (`order`), oracle (`extra_info.path`).
        order: of `fixed`.
        max_result_chars: what a step shows of a tool's result.
        judge: the judge of `mas.judge` rates the answers of open tasks (CommonGen-Hard, SRDD).

    Raises:
        ValueError: an argument out of range.
    """

    headline = "accuracy"
    details = (
        *("tokens", "agents", "steps", "terminated", "answered", "agreement", "tool_failures"),
        *("graph_density", "graph_cycles", "accuracy_per_1000_tokens"),
    )
    no_trained_agents_hint = (
        "Of mas.workflow.orchestration only `learned` learns; the others can be measured: verl_ext evaluate "
        "with the same overrides"
    )

    def __init__(
        self,
        prompts: str = "faithful",
        pool: Sequence[str] = ("planning", "reasoning", "critique", "reflect", "conclude", "run_python"),
        models: Mapping[str, Mapping[str, Any]] | None = None,
        topology: str = CHAINS,
        depth: int = 4,
        width: int = 1,
        token_budget: int = 0,
        train_agents: bool = False,
        orchestration: str = LEARNED,
        order: Sequence[str] = (),
        max_result_chars: int = 2000,
        judge: bool = False,
    ):
        served = served_models(models or {})
        _check_pool(pool, list(served))
        one_of("topology", topology, TOPOLOGIES)
        at_least(1, depth=depth, width=width, max_result_chars=max_result_chars)
        at_least(0, token_budget=token_budget)
        _check_order(pool, depth, orchestration, order)
        self.prompts = prompts_of(prompts, PROMPTS)
        self.needs_judge = judge
        # Chains of one question differ by the noise of their sampling alone.
        self.needs_sampling = topology == CHAINS and width > 1
        rule = {
            LEARNED: None,
            "random": orders.at_random,
            "fixed": orders.fixed(list(order)),
            "oracle": orders.oracle,
        }[orchestration]
        several = topology != CHAINS and orchestration in (LEARNED, "random")
        self.explorer = Explorer(
            tuple(pool), depth, width, topology, token_budget, max_result_chars, order=rule, several=several
        )
        self.agents = {}
        if rule is None:
            self.agents[ORCHESTRATOR] = Agent(self.prompts.orchestrator, choices=lambda state, names, left: names)
        for name in pool:
            prompt, whole = partial(self.prompts.puppet, name, **self.prompts.parts(name)), pattern_of(name) in TOOLS
            agent = Agent(prompt, trained=train_agents, whole=whole)
            self.agents[name] = agent.changed(**served.get(name.partition("-")[2], {}))
        self.needs = sorted({pattern_of(name) for name in pool} & set(TOOLS))
        self.left_out = [name for name in (ORCHESTRATOR, *POOL) if name not in self.agents]

    async def run(self, task: Task, ctx: Any) -> Outcome:
        """Explore, vote, and run the answer if it is software."""
        states = await self.explorer.explore(ctx, task, whole=scoring.is_open(task.data_source))
        answer = scoring.majority(task.data_source, [answer for state in states for answer in state.answers])
        return Outcome(answer, tuple(states), await quality.run_program(ctx, task, answer))

    async def reward(self, task: Task, result: Outcome) -> tuple[float, dict[str, float]]:
        """r, and what the paper measures: accuracy, generated tokens and puppets' calls of the task, its graph."""
        right = scoring.score(task.data_source, result.answer, task.ground_truth)
        terms = {**result.program, **await quality.judged_terms(self.judge, task, result.answer)}
        reward = quality.combined(right, terms)
        if task.data_source.startswith("commongen"):
            terms["coverage"] = right
        right = reward if scoring.is_open(task.data_source) else right  # what the paper's tables give
        states = result.states
        keys = [scoring.key_of(task.data_source, answer) for state in states for answer in state.answers]
        tokens = sum(state.tokens for state in states)
        return reward, {
            "accuracy": right,
            "tokens": float(tokens),
            "agents": float(sum(state.calls for state in states)),
            "steps": sum(state.length for state in states) / len(states),
            "terminated": sum(state.ended for state in states) / len(states),
            "answered": float(bool(result.answer)),
            "agreement": max((keys.count(key) for key in keys if key), default=0) / len(keys),
            "tool_failures": float(sum(step.failed for state in states for step in state.steps)),
            "accuracy_per_1000_tokens": 1000.0 * right / max(tokens, 1),
            **_structure(states),
            **terms,
        }


def _structure(states: Sequence[State]) -> dict[str, float]:
    """Density and cycles of the episode's graph (Figure 6); its nodes are puppets, `terminate` is none."""
    import networkx  # a run without it pays nothing

    names, pairs = edges(states)
    if not names:
        return {"graph_density": 0.0, "graph_cycles": 0.0}
    graph = networkx.DiGraph()
    graph.add_nodes_from(sorted(names))
    graph.add_edges_from(sorted(pairs))
    found = structure(graph)
    return {"graph_density": found["density"], "graph_cycles": found["cycles"]}


def _check_pool(pool: Sequence[str], models: Sequence[str]) -> None:
    names = [*POOL, *(f"{pattern}-{model}" for pattern in POOL for model in models)]
    if not pool or len(set(pool)) < len(pool) or any(name not in names for name in pool):
        more = f", each also as NAME-{'|'.join(models)} (mas.workflow.models)" if models else ""
        raise ValueError(f"mas.workflow.pool={list(pool)} must be different ones of {', '.join(POOL)}{more}")


def _check_order(pool: Sequence[str], depth: int, orchestration: str, order: Sequence[str]) -> None:
    one_of("orchestration", orchestration, ORCHESTRATIONS)
    if orchestration != "fixed" and order:
        raise ValueError(
            f"mas.workflow.order={list(order)} is for orchestration=fixed, given {orchestration}. Remedy: order=[]"
        )
    if orchestration == "fixed" and not (0 < len(order) <= depth and all(name in pool for name in order)):
        raise ValueError(
            f"mas.workflow.order={list(order)} must be from 1 to {depth} (mas.workflow.depth) agents of the pool: "
            f"{', '.join(pool)}"
        )
