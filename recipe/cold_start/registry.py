"""The worlds of train.py: words for the tokenizer, demonstrations, and systems to evaluate on held-out questions."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from verl_ext.mas import Task, Workflow
from verl_ext.mas.forest import Tools
from verl_ext.recipe.deepagent import DeepAgent
from verl_ext.recipe.deepagent.cold_start import demonstrations as tool_demos
from verl_ext.recipe.joyagents import JoyAgents
from verl_ext.recipe.joyagents.cold_start import demonstrations as shop_demos
from verl_ext.recipe.mhgpo import SearchQA, SingleQA
from verl_ext.recipe.mhgpo.cold_start import demonstrations as tiny_demos
from verl_ext.recipe.puppeteer import Puppeteer
from verl_ext.recipe.puppeteer.cold_start import demonstrations as pool_demos
from verl_ext.recipe.smurfs import Smurfs
from verl_ext.recipe.smurfs.cold_start import demonstrations as smurf_demos
from verl_ext.recipe.solver_verifier import SolveAndVerify
from verl_ext.recipe.solver_verifier.cold_start import demonstrations as arithmetic_demos
from verl_ext.worlds import arithmetic, biographies, prices_and_sums, shop, tool_chains


@dataclass(frozen=True)
class Examination:
    """A system and held-out questions for it."""

    workflow: Workflow
    tasks: list[Task]
    tools: Tools


@dataclass(frozen=True)
class ColdStart:
    """One world.

    Attributes:
        demonstrations: module with `Teacher`, `scaled` (factor -> shares of wrong demonstrations), and with `words` and
            `marks` where there are any.
        examinations: number of questions -> examinations by name.
        streams: outputs go on after each tool's answer, and begin with a mark.
    """

    demonstrations: ModuleType
    examinations: Callable[[int], dict[str, Examination]]
    streams: bool = False

    def words(self) -> list[str]:
        """Each becomes one token together with the space before it."""
        return getattr(self.demonstrations, "words", list)()

    def marks(self) -> list[str]:
        """Each becomes one token wherever it occurs."""
        return getattr(self.demonstrations, "marks", list)()


def _tasks(rows: Sequence[dict[str, Any]]) -> list[Task]:
    tasks = []
    for i, row in enumerate(rows):
        question, truth = row["prompt"][-1]["content"], row["reward_model"]["ground_truth"]
        tasks.append(Task(question, truth, row["data_source"], i, row["extra_info"]))
    return tasks


def _search_examinations(questions: int) -> dict[str, Examination]:
    found = {}
    for name, dial in zip(("easy", "hard"), tiny_demos.DIALS, strict=True):
        _, asked, corpus = biographies.data_set(val_size=questions, dial=dial)
        retriever = tiny_demos.retriever_of(corpus)

        async def search(queries: list[str], retriever: Any = retriever) -> list[dict[str, str]]:
            return await asyncio.to_thread(tiny_demos.search, retriever, queries)

        tasks = _tasks([biographies.row(question, "val", i) for i, question in enumerate(asked)])
        found[name] = Examination(SearchQA("tiny"), tasks, {"search": search})
        found[f"{name}, single agent"] = Examination(SingleQA("tiny"), tasks, {"search": search})
    return found


def _arithmetic_examinations(questions: int) -> dict[str, Examination]:
    chains = arithmetic.draw_chains(questions, "val", 0, steps=4, largest=29)
    tasks = _tasks([arithmetic.row(chain, "val", i) for i, chain in enumerate(chains)])
    workflows = {"solver and verifier": SolveAndVerify(), "solver alone": SolveAndVerify(max_solutions=1)}
    return {name: Examination(workflow, tasks, {}) for name, workflow in workflows.items()}


def _tool_examinations(questions: int) -> dict[str, Examination]:
    world = tool_chains.World(0)
    tools = tool_chains.search_and_call(world.tools, world.facts, tool_demos.TOP_K)
    tasks = _tasks(tool_chains.data_set(1, questions, 0, (1, 2, 3))["val.parquet"])
    return {
        "with folding": Examination(DeepAgent("tiny"), tasks, tools),
        "without": Examination(DeepAgent("tiny", max_folds=0), tasks, tools),
    }


def _shop_examinations(questions: int) -> dict[str, Examination]:
    tasks = _tasks(shop.data_set(120, questions, 0)["val.parquet"])
    return {"master and specialists": Examination(JoyAgents("tiny"), tasks, shop.tools_of(shop.World(0)))}


async def _calculator(program: str) -> str:
    """Replaces the recipe's sandbox: the pool's programs are sums, and nothing else is run here."""
    terms = program.removeprefix("print(").removesuffix(")").split("+")
    return str(sum(map(int, terms))) if all(term.strip().isdigit() for term in terms) else "SyntaxError"


def _pool_examinations(questions: int) -> dict[str, Examination]:
    tasks = _tasks(prices_and_sums.data_set(1, questions, 0)["val.parquet"])
    search = prices_and_sums.Prices(prices_and_sums.prices(0, "val"))
    tools: dict[str, Callable[..., Any]] = {"run_python": _calculator, "web_search": search}
    return {
        orchestration: Examination(Puppeteer("tiny", pool_demos.POOL, orchestration=orchestration), tasks, tools)
        for orchestration in ("learned", "oracle")
    }


def _smurf_examinations(questions: int) -> dict[str, Examination]:
    exam = _tool_examinations(questions)["without"]
    return {"with a plan": Examination(Smurfs("tiny", tools="search"), exam.tasks, exam.tools)}


COLD_STARTS = {
    "search": ColdStart(tiny_demos, _search_examinations),
    "arithmetic": ColdStart(arithmetic_demos, _arithmetic_examinations),
    "tools": ColdStart(tool_demos, _tool_examinations, streams=True),
    "shop": ColdStart(shop_demos, _shop_examinations),
    "pool": ColdStart(pool_demos, _pool_examinations),
    "smurfs": ColdStart(smurf_demos, _smurf_examinations),
}
