"""JoyAgents-R1: a master that hands a user's question to specialists, each with a memory of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from verl_ext.mas import Agent, Task
from verl_ext.mas.options import at_least, one_of
from verl_ext.mas.prompts import prompts_of
from verl_ext.recipe.joyagents import grammar, prompts, prompts_tiny
from verl_ext.recipe.joyagents.prompts import listing
from verl_ext.recipe.joyagents.react import OUTPUT, OUTPUTS, ReActAgent, Work, intention_of
from verl_ext.recipe.joyagents.scoring import DETAILS, Scorer, similarity_of
from verl_ext.recipe.joyagents.specialists import (
    INTENTION,
    RETRIEVALS,
    SEARCHED,
    FunctionAgent,
    MathAgent,
    QuestionAgent,
    understood,
)

PROMPTS = {"faithful": prompts, "tiny": prompts_tiny}
MASTER = "master"
FOUND = ("agents", "functions")
# Names of the specialists: what the paper calls expert, rody, toolbench and math agent.
QUESTION, SHOP, FUNCTIONS, MATH = SPECIALISTS = ("question_agent", "shop_agent", "function_agent", "math_agent")


class JoyAgents(ReActAgent):
    """Master and specialists. A specialist is a workflow that the master runs: forks work inside it, too.

    Args:
        prompts: faithful, for instruction-tuned models; tiny, for the embedded one; or a YAML file (`mas/prompts.py`).
        specialists: those that the master has, of question_agent, shop_agent, function_agent and math_agent (Table 7
            compares two, three and four).
        max_rounds: outputs of the master for a question.
        specialist_rounds: outputs of a specialist each time it is called.
        encoder: similarity of answers to questions: hashing (n-grams), minilm, or the folder of a sentence encoder.
        remember: what a memory keeps of an agent's last output. output: thought and answer (Figures 4 and 7); the math
            agent then gives its steps to the master, too (Table 8). answer: the answer alone (Tables 9 and 10).
        history: what an agent is shown of its earlier outputs: outputs, or calls without thoughts (Tables 8 to 10).
        apis: searched: function agents look for their APIs (Figures 6, 7); listed: those that a search for the
            intention finds are in their prompts (Table 9).
        found: what the master's tool_retrievals says of the function agent: agents: its description; functions: those
            that a search for the intention finds (Table 8).
        exact_numbers: answers from the knowledge base need the right numbers; False: similarity alone, as in the paper.
        check_calls: a function counts only if it was called, or a memory of the same query reports it; False: the
            answer's words alone count, as in the paper.

    Raises:
        ValueError: an argument out of range.
    """

    headline = "accuracy"
    needs_truth = True
    details = ("rounds", "specialists", *DETAILS[1:])

    def __init__(
        self,
        prompts: str = "faithful",
        specialists: Sequence[str] = SPECIALISTS,
        max_rounds: int = 8,
        specialist_rounds: int = 6,
        encoder: str = "hashing",
        remember: str = OUTPUT,
        exact_numbers: bool = True,
        check_calls: bool = True,
        history: str = OUTPUTS,
        apis: str = SEARCHED,
        found: str = FOUND[0],
    ):
        one_of("found", found, FOUND)
        if isinstance(specialists, str) or not isinstance(specialists, Sequence):
            raise ValueError(
                f"mas.workflow.specialists={specialists!r} must be a list, as [{MATH}], of {', '.join(SPECIALISTS)}"
            )
        unknown = [name for name in specialists if name not in SPECIALISTS]
        if unknown or not specialists:
            raise ValueError(f"mas.workflow.specialists={list(specialists)} must be some of {', '.join(SPECIALISTS)}")
        at_least(1, specialist_rounds=specialist_rounds)
        super().__init__(MASTER, prompts_of(prompts, PROMPTS), max_rounds, remember, history)
        shown, self.found = self.prompts, found
        options = (shown, specialist_rounds, remember, history)
        made: dict[str, ReActAgent] = {
            QUESTION: QuestionAgent(QUESTION, *options),
            SHOP: FunctionAgent(SHOP, *options, search="shop_search", call="shop_call", apis=apis),
            FUNCTIONS: FunctionAgent(FUNCTIONS, *options, search="function_search", call="function_call", apis=apis),
            MATH: MathAgent(MATH, *options),
        }
        self.specialists = {name: made[name] for name in specialists}
        self.scorer = Scorer(similarity_of(encoder), exact_numbers, check_calls)
        self.needs = ["agent_search"]
        for specialist in self.specialists.values():
            self.agents |= specialist.agents
            self.needs += specialist.needs
        self.left_out = [agent for other in made.values() for agent in other.agents if agent not in self.agents]
        self.agents.pop("intention", None)  # of the function agents; it comes last
        self.agents["intention"] = Agent(shown.intention, trained=False)

    def shown(self, work: Work) -> dict[str, Any]:
        return {"specialists": list(self.specialists)}

    async def act(self, ctx: Any, work: Work, name: str, arguments: dict[str, Any]) -> str:
        """Run a specialist, look for specialists, or say again what the user wants."""
        if name in self.specialists:
            intention = grammar.neutral(intention_of(arguments)) or work.query
            done = await ctx.run(self.specialists[name], Task(intention), name)
            work.below.append(done)
            return self.specialists[name].handed_over(done) or f"error: {name} gave no answer"
        if name == RETRIEVALS:
            intention = intention_of(arguments) or work.query
            found = await ctx.tool("agent_search", query=intention)
            found = [one for one in found if one["name"] in self.specialists]
            if self.found == "functions" and any(one["name"] == FUNCTIONS for one in found):
                functions = listing(await ctx.tool("function_search", query=intention))
                found = [one | {"description": functions} if one["name"] == FUNCTIONS else one for one in found]
            return self.prompts.documents(found)
        if name == INTENTION:
            return await understood(ctx, work)
        return self.unknown(name)

    async def reward(self, task: Task, result: Work) -> tuple[float, dict[str, float]]:
        """R_A of Eq. 3, and what the paper measures (scoring.py)."""
        reward, metrics = await self.scorer(task, result)
        return reward, metrics | {"specialists": float(len(result.below))}
