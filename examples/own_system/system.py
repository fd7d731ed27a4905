"""A multi-agent system of one's own in 30 lines: an answerer drafts, a checker reads the same passages and decides."""

from verl_ext.mas import Agent, Task, Workflow
from verl_ext.rewards.qa import qa_scores


def draft(question: str, docs: list[dict], before: str = "") -> list[dict]:
    passages = " ".join(f"{i} {doc['title']}: {doc['text']}" for i, doc in enumerate(docs))
    return [{"role": "user", "content": f"{passages} {before} answer: {question}"}]


def check(question: str, docs: list[dict], answer: str) -> list[dict]:
    return draft(question, docs, before=answer)


class DraftAndCheck(Workflow):
    agents = {"drafter": Agent(draft), "checker": Agent(check)}
    headline = "f1"
    needs = ("search",)

    async def run(self, task: Task, ctx) -> str:
        docs = await ctx.tool("search", queries=[task.question])
        answer = await ctx.call("drafter", question=task.question, docs=docs)
        for _ in range(2):  # a loop: each turn of the checker is a group of its own
            previous, answer = answer, await ctx.call("checker", question=task.question, docs=docs, answer=answer)
            if answer == previous:
                break
        return answer

    def reward(self, task: Task, result: str) -> tuple[float, dict[str, float]]:
        scores = qa_scores(result, task.ground_truth["target"])
        return scores["f1"], scores
