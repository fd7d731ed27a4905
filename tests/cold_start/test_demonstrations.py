"""Demonstrations of search, arithmetic and the pool: right ones are rewarded, wrong ones have their shares."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest

from tests.helpers import FakeLLM, forest_of, run, walk
from verl_ext.mas import Task
from verl_ext.recipe.deepagent.cold_start import demonstrations as tool_demos
from verl_ext.recipe.joyagents.cold_start import demonstrations as shop_demos
from verl_ext.recipe.mhgpo import parsers
from verl_ext.recipe.mhgpo.cold_start import demonstrations as search_demos
from verl_ext.recipe.puppeteer import Puppeteer
from verl_ext.recipe.puppeteer import prompts_tiny as puppet_prompts
from verl_ext.recipe.puppeteer.cold_start import demonstrations as pool_demos
from verl_ext.recipe.puppeteer.puppets import TERMINATE, State, read_result
from verl_ext.recipe.smurfs.cold_start import demonstrations as smurf_demos
from verl_ext.recipe.solver_verifier import parsers as solver_parsers
from verl_ext.recipe.solver_verifier.cold_start import demonstrations as arithmetic_demos
from verl_ext.worlds import biographies, prices_and_sums
from verl_ext.worlds.arithmetic import Chain
from verl_ext.worlds.biography_questions import KINDS, RELATIONS, Dial, ask

ALL = (arithmetic_demos, pool_demos, search_demos, shop_demos, smurf_demos, tool_demos)


@pytest.mark.parametrize("demos", ALL)
def test_shares_scale_and_have_a_range(demos):
    habits = demos.Habits()
    assert demos.scaled(1) == habits
    for name in vars(habits):
        value, factor = getattr(habits, name), name in habits.FACTORS
        shares = [getattr(demos.scaled(scale), name) for scale in (0, 0.5, 99)]
        assert shares == ([value] * 3 if factor else [0, pytest.approx(value / 2), 1])
        with pytest.raises(ValueError, match=f"{name}=2"):
            demos.Habits(**{name: 2})


# -- search --


@pytest.mark.parametrize("dial", search_demos.DIALS, ids=["easy", "hard"])
def test_good_queries_rank_the_right_passage_first_and_habitual_ones_do_not(dial):
    _, val, corpus = biographies.data_set(dial=dial)
    retriever = search_demos.retriever_of(corpus)

    def first(queries):
        found = [search_demos.search(retriever, queries(question)) for question in val]
        assert all(0 < len(docs) <= search_demos.TOP_K for docs in found)
        return sum(d[0]["pid"] == q.gold_pid for d, q in zip(found, val, strict=True)) / len(val)

    assert first(search_demos.good_queries) >= 0.95
    assert first(search_demos.vague_queries) <= 0.6  # one of the people around the film, by chance
    assert first(search_demos.half_queries) <= 0.3 and first(search_demos.habitual_queries) <= 0.4
    own_words = first(lambda question: [question.text])
    assert own_words <= 0.7 if dial.gap else own_words >= 0.9


@pytest.fixture(scope="module")
def searcher():
    return search_demos.Teacher(seed=5, worlds=2, works=60)


def test_right_searches_keep_the_parsers_contract(searcher):
    batch = searcher.batch(40, search_demos.NO_HABITS)
    assert list(batch) == ["rewriter", "reranker", "answerer", "single"]
    docs = [{"title": str(number), "text": ""} for number in range(search_demos.TOP_K)]
    assert all(len(parsers.queries(output, question="")) == 2 for _, output in batch["rewriter"])
    assert all(len(parsers.chosen_documents(output, docs=docs)) == 1 for _, output in batch["reranker"])
    for prompt, output in batch["answerer"] + batch["single"]:
        assert parsers.answer(output) in prompt[0]["content"]


def test_search_habits_are_the_majority_where_they_are_hard(searcher, monkeypatch):
    wrong, second = {True: [], False: []}, {True: [], False: []}
    for _ in range(600):
        question, _ = searcher._draw()
        with monkeypatch.context() as patch:
            patch.setattr(searcher, "_draw", lambda question=question: (question, None))
            _, text = searcher.rewriter(search_demos.Habits())
        right = f"### {' ; '.join(search_demos.good_queries(question))} ###"
        wrong[search_demos.is_hard(question)].append(text != right)
        prompt, text = searcher.reranker(search_demos.Habits())
        asked = prompt[0]["content"].split("rank:")[1]
        second["screenwriter" not in asked and "scripted" not in asked].append(text.startswith("1"))
    for found in (wrong, second):
        assert sum(found[True]) / len(found[True]) > 0.5 > sum(found[False]) / len(found[False])


def test_wrong_queries():
    work = biographies.make_world(0, "train", 1, 3)[0]
    role, verb = next((role, verb) for role, verb in KINDS["film"].items() if role in work.people)
    film, relation = f"film {work.title}", next(iter(RELATIONS))
    assert search_demos.good_queries(ask(work, role, relation, 0, True)) == [f"{relation} {role} {work.title}", film]
    assert search_demos.habitual_queries(ask(work, role, relation, 0, True)) == [f"{role} {work.title}", film]
    assert search_demos.habitual_queries(ask(work, role, "", 0, True)) == [f"{verb} {work.title}", film]
    assert search_demos.habitual_queries(ask(work, role, "", 1, False)) == [f"{work.title} born", film]
    assert Dial() == search_demos.EASY


# -- arithmetic --


def chain_of(text):
    start, *rest = text.replace("+ ", "").replace("- ", "-").split()
    return Chain(int(start), tuple(map(int, rest)))


def test_steps_and_slips():
    chain, rng = Chain(7, (5, -3, 8)), random.Random(0)
    assert arithmetic_demos.first_error(chain, [12, 9, 17]) is None
    assert arithmetic_demos.first_error(chain, [12, 19, 27]) == 1, "not the steps that follow from it"
    kinds = [arithmetic_demos.kind_of_step(chain, chain.totals, step) for step in range(3)]
    assert kinds == ["carry", "borrow", "carry"]
    assert arithmetic_demos._slip(22, -5, "borrow", rng) == 27 and arithmetic_demos._slip(17, 5, "carry", rng) == 12
    assert arithmetic_demos._slip(21, 5, "other", rng) in (25, 27)


def test_right_sums_and_verdicts():
    right = arithmetic_demos.Teacher(1).batch(100, arithmetic_demos.scaled(0))
    for (problem,), output in right["solver"]:
        chain = chain_of(problem["content"].removeprefix("solve: "))
        assert chain.split == "train" and solver_parsers.solution(output).answer == str(chain.totals[-1])
    for (problem,), output in right["verifier"]:
        text, _, totals = problem["content"].removeprefix("check: ").partition(" : ")
        wrong = arithmetic_demos.first_error(chain_of(text), [int(total) for total in totals.split()])
        assert output.strip() == ("ok" if wrong is None else f"wrong {wrong + 1}")


def test_arithmetic_habits_are_the_majority_where_they_are_hard():
    teacher, habits = arithmetic_demos.Teacher(3), arithmetic_demos.Habits()
    wrong = {"borrow": [], "carry": [], "other": []}
    for _ in range(500):
        (message,), output = teacher.solver(habits)
        chain, totals = chain_of(message["content"].removeprefix("solve: ")), list(map(int, output.split()))
        before = [chain.start, *totals]
        for step, term in enumerate(chain.terms):
            wrong[arithmetic_demos.kind_of_step(chain, totals, step)].append(before[step] + term != totals[step])
    shares = {kind: sum(found) / len(found) for kind, found in wrong.items()}
    assert min(shares["borrow"], shares["carry"]) > 0.5 > 0.1 > shares["other"]
    verdicts = Counter(output.strip() == "ok" for _, output in teacher.batch(400, habits)["verifier"])
    assert verdicts[True] > 1.2 * verdicts[False], "half of the solutions are wrong, and many of them pass"
    for named, share in ((None, 0.72), (0, 0.72 * 0.4)):  # a step that a verdict has named is mostly right
        found = [teacher._work_out(Chain(20, (-5,)), habits, named) != [15] for _ in range(1000)]
        assert sum(found) / 1000 == pytest.approx(share, abs=0.06)


# -- pool --


@pytest.mark.parametrize("kind", prices_and_sums.KINDS)
def test_the_right_way_gives_the_right_answer_in_the_system_itself(kind):
    """Demonstrated outputs, played by the workflow: the state is that of the demonstrations, the reward 1."""
    teacher = pool_demos.Teacher(5)
    question = prices_and_sums.draw(random.Random(1), kind, {"Amber Harbor": 7}, "train")
    demonstrated = State(question.text)

    def output(request):
        assert request.prompt == puppet_prompts.puppet(request.agent, demonstrated)[-1]["content"]
        text = teacher._said(request.agent, question, demonstrated)
        demonstrated.steps.append(pool_demos.step_of(request.agent, text, question))
        return text

    async def python(program):
        return str(sum(int(term) for term in program.removeprefix("print(").removesuffix(")").split("+")))

    async def scene():
        system = Puppeteer("tiny", pool_demos.POOL, orchestration="oracle")
        tools = {"run_python": python, "web_search": prices_and_sums.Prices({"Amber Harbor": 7})}
        forest = forest_of(system, FakeLLM(output), tools=tools)
        forest.sampling = {"temperature": 1.0, "max_tokens": 99}
        forest.task = Task(question.text, {"target": [question.answer]}, "tiny_pool", extra={"path": question.path})
        return await walk(forest)

    trajectory = run(scene())
    assert trajectory.ok and trajectory.reward == 1.0
    assert [step.puppet for step in trajectory.result.states[0].steps] == list(question.path)
    assert [replace(step, at=1) for step in trajectory.result.states[0].steps] == demonstrated.steps


def test_without_habits_the_orchestrator_takes_the_shortest_way():
    rng, teacher = random.Random(0), pool_demos.Teacher(1)
    for _ in range(200):
        question = prices_and_sums.draw(rng, rng.choice(prices_and_sums.KINDS), {"A B": 5}, "train")
        state = State(question.text)
        while (name := pool_demos.decision(rng, question, state, pool_demos.NO_HABITS)) != TERMINATE:
            assert name == pool_demos.right_one(question, state)
            state.steps.append(pool_demos.step_of(name, teacher._said(name, question, state), question))
        assert tuple(step.puppet for step in state.steps) == question.path and state.answers[-1] == question.answer


def test_pool_habits_have_their_shares():
    rng, question = random.Random(0), prices_and_sums.Question("sum", (3, 4))
    done = State(question.text, [pool_demos.step_of("run_python", " print( 3 + 4 )", question)])
    # Of the decisions that are not anybody's; and a ninth of those that are.
    for state, name, share in ((State(question.text), "planning", 0.6), (done, TERMINATE, 0.3)):
        found = [pool_demos.decision(rng, question, state, pool_demos.Habits()) for _ in range(4000)]
        assert found.count(name) / 4000 == pytest.approx(0.8 * share + 0.2 / 9, abs=0.02)
    result, answer = read_result(pool_demos.Teacher(0)._said("reasoning", question, State(question.text)))
    assert result == "it may be" and answer.isdigit(), "a guess is marked as an answer"
