"""The mistakes of mistakes.py, and the system that they are made in: the one of docs/own_system.md."""

from __future__ import annotations

from dataclasses import dataclass

ATLAS = {"Norland": "Iven", "Osk": "Pell", "Tamar": "Rudo", "Velia": "Sarn"}
ROWS = [
    {
        "data_source": "capitals",
        "prompt": [{"role": "user", "content": f"capital of {country}"}],
        "reward_model": {"style": "rule", "ground_truth": capital},
        "extra_info": {"index": index, "country": country},
    }
    for index, (country, capital) in enumerate(list(ATLAS.items()) * 4)
]

SYSTEM = """
from verl_ext.mas import Agent, Task, Unparsable, Workflow

ATLAS = {"Norland": "Iven", "Osk": "Pell", "Tamar": "Rudo", "Velia": "Sarn"}


def atlas():
    async def look_up(country: str) -> str:
        return ATLAS.get(country, "not in the atlas")

    return look_up


def ask(question: str, entry: str, draft: str = "") -> list[dict]:
    return [{"role": "user", "content": f"{entry} {draft} answer: {question}"}]


def first_word(text: str, /, **inputs) -> str:
    return text.split()[0] if text.split() else ""


def short(text, value, parsable, /, **inputs):
    return -0.01 * len(text), {}


def prepare(**_):
    pass


class Capitals(Workflow):
    headline = "accuracy"

    def __init__(self):
        self.agents = {"reader": Agent(ask, first_word, short), "checker": Agent(ask, first_word)}

    async def run(self, task: Task, ctx) -> str:
        entry = await ctx.tool("atlas", country=task.extra["country"])
        answer = await ctx.call("reader", question=task.question, entry=entry)
        return await ctx.call("checker", question=task.question, entry=entry, draft=answer)

    def reward(self, task: Task, result: str) -> tuple[float, dict[str, float]]:
        right = float(result == task.ground_truth)
        return right + 0.01 * len(result), {"accuracy": right}
"""

RECIPE = """
# @package _global_
defaults:
  - /base/multi_agent@_global_
  - /base/tiny@_global_
  - _self_
data:
  train_files: capitals.parquet
  val_files: capitals.parquet
  train_batch_size: 8
mas:
  workflow: {_target_: capitals.Capitals}
  agents: {reader: {max_tokens: 8}, checker: {max_tokens: 8}}
  tools:
    search: null
    atlas: {_target_: capitals.atlas}
  limits: {tool_timeout: 5}
  prepare: {_target_: capitals.prepare}
trainer: {experiment_name: capitals}
"""


@dataclass(frozen=True)
class Mistake:
    """A mistake.

    Attributes:
        made: what the newcomer did, in words.
        told: what the line that tells it matches.
        edits: texts of the system or its recipe, and what the newcomer wrote instead.
        overrides: of the command line.
        trains: it is told only once Ray and the engine run.
        recipe: a recipe is given at all.
        columns: of the data.
    """

    name: str
    made: str
    told: str
    edits: tuple[tuple[str, str], ...] = ()
    overrides: tuple[str, ...] = ()
    trains: bool = False
    recipe: bool = True
    columns: tuple[str, ...] | list[str] = ("data_source", "prompt", "reward_model", "extra_info")

    def __post_init__(self) -> None:
        object.__setattr__(self, "columns", list(self.columns))


REMOTE = "actor_rollout_ref.rollout.agent.num_workers=1"


def line(function: str) -> str:
    """Matches a traceback's line about a function of the system."""
    return rf'capitals\.py", line \d+, in {function}$'


def coded(name: str, made: str, told: str, old: str, new: str) -> Mistake:
    """A mistake in the code that only a run shows."""
    return Mistake(name, made, told, ((old, new),), trains=True)


CALL, TOOL = 'answer = await ctx.call("reader"', 'return ATLAS.get(country, "not in the atlas")'
RETURN = 'return right + 0.01 * len(result), {"accuracy": right}'
MISTAKES = [
    coded(
        "run_raises",
        "`run` raises",
        line("run"),
        'entry = await ctx.tool("atlas", country=task.extra["country"])',
        'entry = task.extra["town"]',
    ),
    Mistake(
        "run_raises_remotely",
        "`run` raises in a Ray actor",
        line("run"),
        (('entry = await ctx.tool("atlas", country=task.extra["country"])', 'entry = task.extra["town"]'),),
        (REMOTE,),
        trains=True,
    ),
    coded("no_await", "`await` left out", line("run"), CALL, CALL.replace("await ", "")),
    coded(
        "prompt_text",
        "a prompt returned as text",
        "ask.*capitals.py.*must return",
        "def ask(question",
        "def ask(question, **rest): return question\ndef asked(question",
    ),
    coded(
        "parser_uncopyable",
        "a parser returns what cannot be copied",
        "first_word.*cannot be copied",
        'return text.split()[0] if text.split() else ""',
        "return (word for word in text.split())",
    ),
    coded(
        "parser_raises",
        "a parser raises",
        line("first_word"),
        'return text.split()[0] if text.split() else ""',
        "return text.split()[99]",
    ),
    coded("penalty_raises", "a penalty raises", line("short"), "return -0.01 * len(text), {}", "return text / 2, {}"),
    coded("reward_none", "`reward` returns None", "reward.*capitals.py.*None", RETURN, "pass"),
    coded("reward_nan", "`reward` returns NaN", "reward nan is not finite", RETURN, 'return float("nan"), {}'),
    coded("reward_raises", "`reward` raises", line("reward"), RETURN, 'return task.ground_truth["target"], {}'),
    coded("tool_raises", "a tool raises", line("look_up"), TOOL, "return ATLAS[country.lower()]"),
    coded(
        "tool_waits",
        "a tool waits for ever",
        "no answer in time|[Nn]othing has happened for",
        TOOL,
        "import asyncio; await asyncio.sleep(1000)",
    ),
    coded(
        "tool_blocks",
        "a tool blocks (`time.sleep`)",
        "no answer in time|[Nn]othing has happened for",
        TOOL,
        "import time; time.sleep(1000)",
    ),
    coded("unknown_agent", "an agent that there is not", "unknown agent 'raeder'", CALL, CALL.replace("rea", "rae")),
    coded(
        "random_prompt",
        "a workflow that is not deterministic",
        "deterministic",
        'f"{entry} {draft} answer',
        "f\"{__import__('time').time_ns()} {entry} {draft} answer",
    ),
    Mistake(
        "tool_function",
        "a tool that is no factory",
        "atlas.*factory",
        (("def atlas():\n", "def atlas(country):\n"),),
    ),
    Mistake("group_of_one", "a group of 1", "group", overrides=("actor_rollout_ref.rollout.n=1",)),
    Mistake(
        "batch_0", "a batch of 0", r"data.train_batch_size=0 must be at least 1", overrides=("data.train_batch_size=0",)
    ),
    Mistake(
        "negative_lr",
        "a negative learning rate",
        r"optim.lr=-1.*at least 0",
        overrides=("actor_rollout_ref.actor.optim.lr=-1e-6",),
    ),
    Mistake(
        "no_model",
        "the model's folder is not there",
        "model.path=./models/mine: .*does not exist",
        overrides=("actor_rollout_ref.model.path=./models/mine",),
    ),
    Mistake(
        "hub_name",
        "the model's name on the hub misspelt",
        "model.path=Qwen/Qwen2.5-1.5B-Instrukt: ",
        overrides=("actor_rollout_ref.model.path=Qwen/Qwen2.5-1.5B-Instrukt",),
    ),
    Mistake(
        "no_critic",
        "`gae` without a critic's model",
        "critic.model.path=.*is verl's default",
        overrides=("algorithm.adv_estimator=gae",),
    ),
    Mistake("no_recipe", "no recipe at all", "no recipe is given", recipe=False),
    Mistake("misspelt_key", "a misspelt `mas` key", "did you mean 'max_calls'", overrides=("mas.limits.max_cals=3",)),
    Mistake(
        "misspelt_in_file", "a misspelt key in the recipe's file", "did you mean 'limits'", (("  limits:", "  limts:"),)
    ),
    Mistake(
        "no_folder",
        "an output folder that cannot be",
        "trainer.default_local_dir=capitals.py/runs cannot be written",
        overrides=("trainer.default_local_dir=capitals.py/runs",),
    ),
    Mistake(
        "no_column",
        "a column is missing",
        "lacks the column.*reward_model",
        columns=("data_source", "prompt", "extra_info"),
    ),
    Mistake(
        "prepare_raises",
        "`mas.prepare` raises",
        line("prepare"),
        (("def prepare(**_):\n    pass", "def prepare(**_):\n    open('nowhere.csv')"),),
    ),
    Mistake(
        "class_raises",
        "the workflow's constructor raises",
        line("__init__"),
        (("def __init__(self):\n", "def __init__(self):\n        ATLAS['Nowhere']\n"),),
    ),
    Mistake(
        "module_raises",
        "the module does not compile",
        r'capitals\.py", line \d+',
        (("def prepare(**_):\n    pass", "def prepare()\n    pass"),),
    ),
]
