"""The Smurfs and their baselines with HotpotQA's tools over a corpus, as they are."""

from __future__ import annotations

import json

from tests.helpers import forest_of, run, walk
from tests.recipe.test_smurfs import SAID, Team
from tests.recipe.test_smurfs_baselines import BOTH, prompts_of
from verl_ext.mas import Task
from verl_ext.recipe.smurfs import Smurfs
from verl_ext.tools.catalogue import Toolbox, ToolSearch, load_catalogue
from verl_ext.tools.catalogue.formats.encyclopedia import Encyclopedia
from verl_ext.tools.catalogue.search.documents import passages
from verl_ext.tools.retrieval import Passage, build_retriever

PAGES = ["search", "retrieve", "lookup"]
HOTPOT = Task("Who founded the label of Winner?", {"target": ["Yang Hyun-suk"]})
CORPUS = [
    Passage("0", "Winner (band)", "Winner is a boy group. It was formed by YG Entertainment."),
    Passage("1", "YG Entertainment", "YG Entertainment is a label. It was founded by Yang Hyun-suk in 1996."),
]


def over_a_corpus(system, said, chosen=(), **options):
    """A system with HotpotQA's tools as they are, over two passages."""

    async def scene():
        catalogue = load_catalogue([{"kind": "encyclopedia"}])
        search = ToolSearch(catalogue, build_retriever(passages(catalogue.values())))
        call_tool = Toolbox(catalogue, Encyclopedia(build_retriever(CORPUS)))
        llm = Team(SAID | said, chosen)
        forest = forest_of(
            system(catalogue=PAGES, **options), llm, tools={"tool_search": search, "tool_call": call_tool}
        )
        forest.sampling, forest.task = {"temperature": 1.0, "max_tokens": 500}, HOTPOT
        trajectory = await walk(forest)
        await search.close()
        await call_tool.close()
        return trajectory, llm

    return run(scene())


def page(name, **arguments):
    return f"Action: {name}\nAction Input: {json.dumps(arguments)}\nObservation:"


@BOTH
def test_hotpotqa_with_its_tools(system):
    said = [
        page("search", query="Winner"),
        page("retrieve", entity="Winner"),
        page("retrieve", entity="winner (band)"),
        page("lookup", keyword="founded", entity="YG Entertainment"),
        "FINAL ANSWER: Yang Hyun-suk",
    ]
    trajectory, llm = over_a_corpus(system, {"agent": said})
    assert trajectory.ok and trajectory.reward == 1.0
    assert [call.ok for call in trajectory.result.calls] == [True, False, True, True]
    last = prompts_of(llm)[-1]
    assert "error: Could not find [Winner]. Similar: ['Winner (band)']." in last
    assert '["(Result 1 / 1) It was founded by Yang Hyun-suk in 1996."]' in last


def test_a_page_that_is_not_found_pops_the_tool_of_the_smurfs():
    said = {"planner": '{"Tasks": ["one"]}', "final": "FINAL ANSWER: Yang Hyun-suk"}
    said["arguments"] = ['{"entity": "Winner"}', '{"query": "Winner"}']
    trajectory, llm = over_a_corpus(Smurfs, said, ["retrieve", "search"])
    assert trajectory.ok and trajectory.reward == 1.0 and llm.offered == [PAGES, ["search", "lookup"]]
