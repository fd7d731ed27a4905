"""The search system's output contract, hostile text included, and its penalties."""

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers import FakeLLM, forest_of, run, walk
from verl_ext.mas import Task, Unparsable
from verl_ext.recipe.mhgpo import SearchQA, prompts
from verl_ext.recipe.mhgpo.parsers import answer, chosen_documents, queries
from verl_ext.recipe.mhgpo.penalties import Penalties

DOCS = [{"title": f"t{i}", "text": f"x{i}"} for i in range(5)]


def chosen(text, docs=DOCS):
    """(ids, None) or (ids of the fallback, reason)."""
    try:
        return [docs.index(doc) for doc in chosen_documents(text, docs)], None
    except Unparsable as problem:
        return [docs.index(doc) for doc in problem.fallback], str(problem)


# --- rewriter -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text,expected",
    [
        ("### a ; b ###", ["a", "b"]), ("Sure! ###a;b;c###\n", ["a", "b", "c"]),
        ("### one\nquery ###", ["one\nquery"]), ("### b ; a ; b ;; ###", ["b", "a", "b"]),
        ("### a ### and ### b ###", ["a"]), ("### größe ; 東京 ###", ["größe", "東京"]),
        ("### <who is Ada?>; <Bob> ###", ["who is Ada?", "Bob"]),
    ],
)  # fmt: skip
def test_queries(text, expected):
    assert queries(text, question="q") == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "### <query1>; <query2>; ... ###",
        "a ; b",
        "### a ; b",
        "a ###",
        "######",
        "### ; ###",
        "#" * 10**6,
        "## a ##",
    ],
)
def test_output_without_queries_falls_back_to_the_question(text):
    with pytest.raises(Unparsable, match="expected `### query") as caught:
        queries(text, question="who?", docs="other inputs are ignored")
    assert caught.value.has_fallback and caught.value.fallback == ["who?"]


# --- reranker -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text,ids",
    [
        ("2 , 0", [2, 0]), ("4 1 3", [4, 1, 3]), ("  0\n", [0]), ("Document 2, Document 0", [2, 0]),
        ("DOCUMENT2 ;document 1.", [2, 1]), ("02", [2]),
    ],
)  # fmt: skip
def test_lists_of_ids(text, ids):
    assert chosen(text) == (ids, None)


@pytest.mark.parametrize(
    "text,fallback",
    [
        ("2, 2", [2]), ("1, 7, 3", [1, 3]), ("7", [0]), ("", [0]), ("the best is 3", [0]), ("-1", [0]), ("1.5", [0]),
        ("２", [0]), ("٣, 1", [0]), ("9" * 5000, [0]), ("3, " + "9" * 10**6, [3]),
    ],
)  # fmt: skip
def test_anything_else_is_unparsable_with_the_valid_ids_as_fallback(text, fallback):
    assert chosen(text) == (fallback, "expected distinct ids from 0 to 4")


@pytest.mark.parametrize(
    "text",
    [
        "1" + " " * 200_000 + "x",
        "1 , " * 100_000 + "x",
        "document " * 50_000,
        "1 document " * 50_000 + "x",
        "1" * 10**6 + "x",
        " " * 200_000 + "." * 1000,
    ],
    ids=lambda text: f"{text[:12]!r}",
)
def test_hostile_lists_take_linear_time(text):
    """Quadratic matching of 200,000 blanks takes longer than the time limit of a test."""
    ids, reason = chosen(text)
    assert reason is not None and ids in ([0], [1])


@pytest.mark.parametrize("text", ["###" + "a;" * 300_000, "### " * 2 + "x" * 10**6, "# " * 300_000 + "###"])
def test_hostile_queries_take_linear_time(text):
    with pytest.raises(Unparsable):
        queries(text, question="q")


@given(st.text(max_size=200), st.integers(1, 5))
def test_any_text_gives_documents_or_a_fallback_of_documents(text, n):
    ids, reason = chosen(text, DOCS[:n])
    assert ids and len(set(ids)) == len(ids) and max(ids) < n
    if reason is None:
        assert all(character.isascii() for character in text.strip() if not character.isspace())


@given(st.permutations(range(5)), st.integers(1, 5), st.sampled_from([",", " , ", ";", " ", "\n", ", Document "]))
def test_every_well_formed_list_is_read_as_written(order, n, separator):
    assert chosen(separator.join(map(str, order[:n]))) == (list(order[:n]), None)


# --- answerer -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text,expected",
    [
        (" Paris. ", "Paris"), ("U.S..", "U.S."), ("", ""), (" . ", ""), ("a. b", "a. b"),
        ("The answer is: Terry Richardson.", "Terry Richardson"),  # SmolLM2-135M's, as the next one
        ("The answer to this question is: The series is", "The series is"),
        ("Answer: yes", "yes"), ("The Final Answer", "The Final Answer"), ("The answer is", "The answer is"),
    ],
)  # fmt: skip
def test_answers(text, expected):
    assert answer(text, question="q", docs=DOCS) == expected


# --- penalties ------------------------------------------------------------------------------------------------------


def test_penalties_by_hand():
    fine = Penalties()
    assert fine.rewriter("", ["q"] * 4, True) == (0.0, {"queries": 4.0})
    assert fine.rewriter("", ["q"] * 5, True) == (-0.5, {"queries": 5.0})
    assert fine.rewriter("", ["q"], False) == (0.0, {"queries": 1.0})
    assert fine.reranker("", DOCS[:3], True) == (0.0, {"chosen": 3.0})
    assert fine.reranker("", DOCS[:1], False) == (-0.5, {"chosen": 1.0})
    assert fine.answerer("", "w " * 16, True) == (0.0, {"words": 16.0})
    assert fine.answerer("", "w " * 17, True) == (-1.0, {"words": 17.0})
    assert fine.answerer("", "", True) == (0.0, {"words": 0.0})


def test_penalties_with_other_coefficients():
    harsh = Penalties(
        max_queries=2, too_many_queries=-2.0, per_query=-0.125, max_answer_words=1, unparsable_queries=-0.25
    )
    assert [harsh.rewriter("", ["q"] * n, True)[0] for n in (1, 2, 3)] == [-0.125, -0.25, -2.0]
    assert harsh.rewriter("", ["q"], False)[0] == -0.375
    assert harsh.answerer("", "two words", True)[0] == -1.0


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"bad_choice": 0.5}, "penalties.bad_choice=0.5 must be at most 0"),
        ({"long_answer": math.nan}, "penalties.long_answer=nan must be finite"),
        ({"long_answer": -math.inf}, "penalties.long_answer=-inf must be finite"),
        ({"per_query": "-1"}, "penalties.per_query='-1' must be of type float"),
        ({"max_queries": -1}, "penalties.max_queries=-1 must be at least 0"),
        ({"max_querys": 3}, "unknown key mas.workflow.penalties.max_querys; did you mean"),
    ],
)
def test_penalties_that_are_none_are_refused_before_a_run(given, problem):
    with pytest.raises(ValueError, match=problem):
        SearchQA(penalties=given)


def test_the_workflow_refuses_unknown_prompts_and_wires_its_agents():
    with pytest.raises(ValueError, match="prompts='long' is unknown; allowed: faithful, tiny"):
        SearchQA(prompts="long")
    agents = SearchQA("tiny", {"bad_choice": -0.75}).agents
    assert list(agents) == ["rewriter", "reranker", "answerer"]
    assert agents["reranker"].penalty("x", DOCS[:1], False, question="q", docs=DOCS)[0] == -0.75


def test_queries_are_counted_as_written_and_searched_once():
    """Six equal queries are more than four, though one search serves them all."""
    searched: list[list[str]] = []

    async def search(queries):
        searched.append(queries)
        return DOCS

    said = {"rewriter": "### a ; a ; a ; b ; a ; a ###", "reranker": "0", "answerer": "Paris"}
    forest = forest_of(SearchQA(), FakeLLM(lambda request: said[request.agent]), tools={"search": search})
    forest.task = Task("where?", {"target": ["Paris"]})
    first = run(walk(forest)).calls[0]
    assert searched == [["a", "b"]]
    assert (first.reward_specific, first.metrics) == (-0.5, {"queries": 6.0})


def test_the_faithful_prompts_tell_no_agent_what_its_penalty_counts():
    """Appendix B names neither a number of queries nor a length of answers: an agent finds them by its reward."""
    for text in (prompts.REWRITER, prompts.RERANKER, prompts.ANSWERER):
        assert not re.search(r"\b(four|4|few|short\w*|brief\w*|unknown)\b", text, re.I), text
    assert "### <query1>; <query2>; <query3>; ... ###" in prompts.REWRITER
    system, user = prompts.reranker("Who {x}?", DOCS)
    assert "Who {x}?" in system["content"] and user["content"].count("Document ") == len(DOCS)
    assert f"Document 1: {{title: {DOCS[1]['title']}, snippet: {DOCS[1]['text']}}}\n" in user["content"]
    alone = prompts.single("Who?", [])
    assert "document" not in alone[0]["content"] and alone[-1]["content"].endswith("Who?")
