"""The tiny shop world and its demonstrations: what they show is what the system's tools would say."""

from __future__ import annotations

import asyncio
import json
import random
import re

import numpy as np
import pytest
from transformers import AutoTokenizer

from tests.recipe.shop_player import play
from verl_ext.memory import HashingSimilarity
from verl_ext.recipe.cold_start import train as tiny_model
from verl_ext.recipe.joyagents import grammar, prompts_tiny, shop
from verl_ext.recipe.joyagents.accuracy import THRESHOLD
from verl_ext.recipe.joyagents.cold_start import demonstrations as shop_demos
from verl_ext.recipe.joyagents.cold_start import improvised as shop_improvised
from verl_ext.tools.catalogue.formats.functions import load
from verl_ext.worlds import arithmetic as tiny_arithmetic
from verl_ext.worlds import shop as tiny_shop
from verl_ext.worlds.names import ADJECTIVES, NOUNS, name_pairs
from verl_ext.worlds.shop import APIS, KINDS, SPECIALIST, data_set, ensure


@pytest.fixture(scope="module")
def rows():
    return data_set(120, 100, 3)


def asked(rows, split, kind=""):
    return [row["prompt"][0]["content"] for row in rows[f"{split}.parquet"] if kind in ("", row["data_source"])]


def test_a_fifth_of_each_kind(rows):
    for split, size in (("train", 24), ("val", 20)):
        assert {kind: len(asked(rows, split, kind)) for kind in KINDS} == dict.fromkeys(KINDS, size)
        assert [row["extra_info"]["index"] for row in rows[f"{split}.parquet"]] == list(range(5 * size))


def test_customers_ask_the_same_things_again_and_nothing_else_comes_twice(rows):
    train, val = set(asked(rows, "train")), asked(rows, "val")
    assert len(train) == 120 and len(set(val)) == 100
    assert {text for text in val if text in train} == set(asked(rows, "val", "qa"))
    known = {split: set(name_pairs(ADJECTIVES, NOUNS, split)) for split in ("train", "val")}
    for split in known:
        for text in asked(rows, split, "shop") + asked(rows, split, "cooperation"):
            shops = [part.split(":")[1] for part in text.split(" + ") if part.startswith("shop:")]
            assert shops and set(shops) <= known[split], text
    for text in asked(rows, "val", "math"):
        start, *rest = text.removeprefix("total ").replace("+ ", "").replace("- ", "-").split()
        assert tiny_arithmetic.Chain(int(start), tuple(map(int, rest))).split == "val"


def test_worlds_are_functions_of_the_seed(rows):
    assert data_set(120, 100, 3) == rows and data_set(120, 100, 4)["facts.jsonl"] != rows["facts.jsonl"]


def test_entries_of_the_knowledge_base_are_near_duplicates_with_answers_that_are_not(rows):
    titles = [row["title"] for row in rows["knowledge.jsonl"]]
    assert len(titles) == 40 and len({title.split(":")[0].split()[1] for title in titles}) == 5
    texts = [f"{colour} {bird}" for colour in tiny_shop.COLOURS for bird in tiny_shop.BIRDS]
    vectors = HashingSimilarity().encode(texts).astype(float)
    assert (vectors @ vectors.T - np.eye(100)).max() < THRESHOLD, "a wrong answer would count as a right one"


def test_the_apis_are_those_of_the_recipe():
    assert list(APIS) == [tool.name for tool in load(shop.__name__)] and len(APIS) == 12
    assert set(shop_demos.TAKEN_FOR) == {api.other for api in APIS.values()}
    assert all(tiny_shop.API_OF[word] != taken for word, taken in shop_demos.TAKEN_FOR.items())


def test_files_are_made_once_and_wrong_sizes_refused(tmp_path):
    folder = ensure(tmp_path / "world", train_size=10, val_size=10)
    before = (folder / "train.parquet").stat().st_mtime_ns
    assert ensure(folder, train_size=10, val_size=10) == folder
    assert (folder / "train.parquet").stat().st_mtime_ns == before
    for wrong in ({"train_size": 4}, {"val_size": 201}):
        with pytest.raises(ValueError, match="each from 5 to 200"):
            ensure(tmp_path, **wrong)


# -- demonstrations ---------------------------------------------------------------------------------------------------


class Asked:
    """What the player sees of a request."""

    def __init__(self, agent, messages):
        self.agent, self.prompt = agent, json.dumps(messages)


@pytest.mark.parametrize("agent", shop_demos.AGENTS)
def test_right_demonstrations_do_what_an_agent_ought_to_do_from_its_prompt_alone(agent):
    """Each output is the player's, who knows the world's rules and sees nothing but the chat so far."""
    teacher = shop_demos.Teacher(5)
    for _ in range(150):
        messages = teacher.chat(agent, shop_demos.NO_HABITS)
        query = query_of(messages)
        if foreign(agent, query) or "of: none" in query:
            continue
        for place, message in enumerate(messages):
            if message["role"] != "assistant":
                continue
            right = play(Asked(agent, messages[:place]))
            said = message["content"].partition("</think>")[2] if agent == "summary" else message["content"]
            assert said.strip() == right.strip(), (messages[:place], right)


def query_of(messages):
    return re.split(" same: | like: ", messages[0]["content"].partition(": ")[2])[0]


def foreign(agent, query):
    """Whether a specialist is asked what it is not for."""
    own = {"question_agent": "ask:", "shop_agent": "shop:", "math_agent": "total "}.get(agent, "")
    return not query.startswith(own) or (agent == "function_agent" and query.startswith(("ask:", "shop:")))


@pytest.mark.parametrize("agent", ["master", *SPECIALIST.values()])
def test_noisy_demonstrations_are_often_wrong_but_read_as_calls_and_answers(agent):
    right, noisy = shop_demos.Teacher(6), shop_demos.Teacher(7)
    outputs, formed, wrong = 0, 0, 0
    for _ in range(300):
        messages = noisy.chat(agent, shop_demos.scaled(1.0))
        assert messages[-1]["role"] == "assistant" and right.chat(agent, shop_demos.NO_HABITS)
        differs = False
        for place, message in enumerate(messages):
            if message["role"] == "assistant":
                step = grammar.read_step(message["content"])
                assert step.kind == ("answer" if place == len(messages) - 1 else "call") and (step.answer or step.name)
                outputs, formed = outputs + 1, formed + step.formed
                differs |= not step.formed or _differs(agent, messages, place)
        wrong += differs
    assert 0.9 < formed / outputs < 0.99 and 0.2 < wrong / 300 < 0.9, (formed / outputs, wrong / 300)


def _differs(agent, messages, place):
    query = query_of(messages)
    return not foreign(agent, query) and play(Asked(agent, messages[:place])) != messages[place]["content"]


def test_searches_in_demonstrations_find_what_the_systems_tools_do(rows):
    world = tiny_shop.World(3)

    async def scene():
        tools = tiny_shop.tools_of(world)
        for query in asked(rows, "val"):
            for catalogue, found in (
                ("agent", shop_improvised.agents_found(query)),
                ("shop", shop_improvised.apis_found(query)),
            ):
                assert prompts_tiny.documents(await tools[f"{catalogue}_search"](query=query)) == found, query
        for query in asked(rows, "val", "qa"):
            passages = await tools["knowledge"](queries=[query])
            made = shop_improvised.Improvised(random.Random(0)).passages(query)
            assert len(passages) == len(made) and passages[0]["title"] == made[0]["title"] == query.removeprefix("ask:")
        for tool in tools.values():
            await tool.close()

    asyncio.run(scene())


def test_slips_are_of_steps_that_cross_a_ten():
    rng, counts = random.Random(1), {"crossing": [0, 0], "plain": [0, 0]}
    for _ in range(2000):
        chain = tiny_arithmetic.draw_chain(rng, "train", 3, 19)
        before = [chain.start, *shop_improvised.worked_out(chain, {"carry": 0.5, "borrow": 0.5}, rng)]
        for step, term in enumerate(chain.terms):
            kind = "crossing" if before[step] // 10 != (before[step] + term) // 10 else "plain"
            counts[kind][0] += before[step + 1] != max(0, before[step] + term)
            counts[kind][1] += 1
    assert counts["plain"][0] == 0 and 0.4 < counts["crossing"][0] / counts["crossing"][1] < 0.6
    chain = tiny_arithmetic.Chain(7, (5, -4))
    assert shop_improvised.worked_out(chain, {"carry": 1.0, "borrow": 0.0}, rng) == [2, 0]


def test_what_is_said_in_the_world_is_few_tokens_and_none_of_them_a_byte():
    tokenizer = tiny_model.build_tokenizer(shop_improvised.words(), shop_improvised.marks())
    whole = {*tokenizer.get_added_vocab(), "Ġ", *"ernon"}  # " founder" is " found", e, r; "none" behind " of: ": n, o …
    teacher, longest = shop_demos.Teacher(8), 0
    for agent in shop_demos.AGENTS:
        for _ in range(100):
            ids = tokenizer.apply_chat_template(teacher.chat(agent, shop_demos.scaled(1.0)), return_dict=False)
            pieces = set(tokenizer.convert_ids_to_tokens(ids)) - whole
            assert not pieces, (agent, pieces, tokenizer.decode(ids))
            longest = max(longest, len(ids))
    assert longest <= 192


def test_a_chat_is_rendered_as_the_chat_template_does():
    tokenizer = tiny_model.build_tokenizer(shop_improvised.words(), shop_improvised.marks())
    messages = shop_demos.Teacher(9).chat("function_agent", shop_demos.NO_HABITS)
    ids, target = tiny_model.collate(tokenizer, [shop_improvised.segments(messages)])
    assert ids[0].tolist() == list(tokenizer.apply_chat_template(messages, return_dict=False))
    trained = tokenizer.decode(ids[0][target[0].bool()])
    said = [message["content"] for message in messages if message["role"] == "assistant"]
    assert trained == "".join(f" {text}{shop_improvised.END}" for text in said)


def test_the_shipped_tokenizer_is_the_one_that_the_script_builds(tmp_path):
    import verl_ext.recipe.joyagents as recipe

    shipped = AutoTokenizer.from_pretrained(f"{recipe.__path__[0]}/assets/tiny_model")
    made = tiny_model.build_tokenizer(shop_improvised.words(), shop_improvised.marks())
    assert made.get_vocab() == shipped.get_vocab() and made.chat_template == shipped.chat_template
