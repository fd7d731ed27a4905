"""Generated worlds: functions of their arguments, validation apart from training, right answers, tools that work."""

import asyncio
import json
import random

import numpy as np
import pyarrow.parquet as pq
import pytest

from verl_ext.memory import HashingSimilarity
from verl_ext.recipe.joyagents import shop as shop_apis
from verl_ext.recipe.joyagents.accuracy import THRESHOLD
from verl_ext.tools.catalogue import tool_call, tool_search
from verl_ext.tools.catalogue.formats.functions import load
from verl_ext.worlds import arithmetic, biographies, prices_and_sums, shop, tool_chains
from verl_ext.worlds.__main__ import WORLDS, main
from verl_ext.worlds.arithmetic import Chain, draw_chains
from verl_ext.worlds.biography_questions import KINDS, Dial, ask
from verl_ext.worlds.names import ADJECTIVES, FIRST, LAST, NOUNS, SPLITS, name_pairs
from verl_ext.worlds.prices_and_sums import Prices, Question

HARD = Dial(hops=(2, 3), distractors=2, gap=0.5)


def content(module, folder):
    return {name: (folder / name).read_bytes() for name in module.FILES}


def rows_of(folder, split):
    return pq.read_table(folder / f"{split}.parquet").to_pylist()


@pytest.mark.parametrize("name", list(WORLDS))
def test_files_are_a_function_of_the_arguments_and_have_verls_schema(name, tmp_path, capsys):
    module = WORLDS[name]
    one, again, other = (module.ensure(tmp_path / str(i), 60, 20, seed) for i, seed in enumerate((3, 3, 4)))
    assert content(module, one) == content(module, again) and content(module, one) != content(module, other)
    assert main([name, *f"--output_dir {tmp_path}/c --train_size 60 --val_size 20 --seed 3".split()]) == 0
    assert content(module, tmp_path / "c") == content(module, one) and f"{name} in " in capsys.readouterr().out
    texts = {}
    for split, size in (("train", 60), ("val", 20)):
        rows = rows_of(one, split)
        assert [row["extra_info"]["index"] for row in rows] == list(range(size)), split
        assert {row["extra_info"]["split"] for row in rows} == {split}
        assert len({row["extra_info"]["id"] for row in rows}) == size
        assert all(row["prompt"] == [{"role": "user", "content": row["extra_info"]["question"]}] for row in rows)
        texts[split] = {row["extra_info"]["question"] for row in rows if row["data_source"] != "qa"}
    assert not texts["train"] & texts["val"]


@pytest.mark.parametrize("damage", ["none", "no stamp", "cut stamp", "binary stamp", "no corpus", "other arguments"])
def test_what_is_there_is_kept_and_what_is_damaged_is_made_again(tmp_path, damage):
    before, stamp = content(biographies, biographies.ensure(tmp_path, 32, 8)), tmp_path / biographies.STAMP
    (tmp_path / "notes.txt").write_text("mine")
    times = [(tmp_path / name).stat().st_mtime_ns for name in biographies.FILES]
    if damage == "no corpus":
        (tmp_path / "corpus.jsonl").unlink()
    elif "stamp" in damage:
        (tmp_path / "val.parquet").write_bytes(b"of another run")
        whole = stamp.read_bytes()
        stamp.unlink() if damage == "no stamp" else stamp.write_bytes({"cut stamp": whole[:10]}.get(damage, b"\xff"))
    biographies.ensure(tmp_path, 32, 8, seed=int(damage == "other arguments"))
    assert (content(biographies, tmp_path) == before) == (damage != "other arguments")
    now = [(tmp_path / name).stat().st_mtime_ns for name in biographies.FILES]
    assert (now == times) if damage == "none" else not set(now) & set(times)
    assert {path.name for path in tmp_path.iterdir()} == {*biographies.FILES, biographies.STAMP, "notes.txt"}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda to: biographies.ensure(to, 32, 5000), "val_size=5000.*1 to 616"),
        (lambda to: biographies.ensure(to, 0, 8), "train_size=0"),
        (lambda to: biographies.make_world(0, "val", 500), "names for 1 to"),
        (lambda to: biographies.ensure(to, hops=[1]), r"hops=\[1\]: give 2, 3 or both"),
        (lambda to: biographies.ensure(to, hops=[3]), "hops=3 asks for relatives"),
        (lambda to: biographies.ensure(to, distractors=4), "0 to 3 relatives"),
        (lambda to: biographies.ensure(to, gap=1.5), "gap=1.5"),
        (lambda to: name_pairs(["A"], ["B"], "test"), "train, val"),
        (lambda to: draw_chains(9, "val", 0, 3, 9), "18 to 99"),
        (lambda to: draw_chains(200, "val", 0, 1, 18), "val_size=200"),
        (lambda to: arithmetic.ensure(to, 8, 8, steps=3, least_steps=5), "least_steps=5: 0, or from 1 to steps=3"),
        (lambda to: arithmetic.ensure(to, 8, 8, least_steps=-2), "least_steps=-2: 0, or"),
        (lambda to: prices_and_sums.ensure(to, 8, 0), "val_size=0: at least 1"),
        (lambda to: prices_and_sums.questions(1000, "val", 0), "val_size=1000: only .* choose at most"),
        (lambda to: shop.ensure(to, train_size=4), "each from 5 to 200"),
        (lambda to: tool_chains.ensure(to, hops=[9]), "hops from 1 to 8"),
        (lambda to: tool_chains.ensure(to, 0), "train_size=0: at least 1"),
        (lambda to: tool_chains.facts(f"{to}/no.jsonl"), "Remedy: python -m verl_ext.worlds tool_chains --output_dir "),
        (lambda to: prices_and_sums.web_search(f"{to}/no.jsonl"), "Remedy: python -m verl_ext.worlds prices_and_sums"),
    ],
)
def test_wrong_arguments_are_refused(make, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        make(tmp_path)


def test_names_of_validation_are_reserved_whatever_the_world():
    for heads, tails in ((ADJECTIVES, NOUNS), (FIRST, LAST)):
        train, val = (set(name_pairs(heads, tails, split)) for split in SPLITS)
        assert not train & val and len(train | val) == len(heads) * len(tails)
        assert len(val) == pytest.approx(0.2 * len(train | val), rel=0.05)
    for kind, known in tool_chains.names_of("train").items():
        assert not set(known) & set(tool_chains.names_of("val")[kind])


def test_arithmetic():
    chain = Chain(7, (5, -3, 8))
    assert chain.text == "7 + 5 - 3 + 8" and chain.totals == [12, 9, 17]
    train, val = draw_chains(600, "train", 0, 3, 30), draw_chains(150, "val", 1, 3, 30)
    assert all(0 <= total <= 30 for chain in train + val for total in chain.totals)
    assert len({chain.text for chain in train}) == 600 and not {c.text for c in train} & {c.text for c in val}
    row = arithmetic.row(chain, "val", 5)
    assert row["reward_model"]["ground_truth"]["target"] == ["17"] and row["extra_info"]["steps"] == 3
    mixed = draw_chains(60, "train", 0, 2, 20, least_steps=1)
    assert {len(chain.terms) for chain in mixed} == {1, 2}


def test_a_word_problem_says_what_its_sum_says():
    for chain in draw_chains(100, "train", 0, 3, 30):
        start, *told, asked = chain.story.replace("?", ".").removesuffix(".").split(". ")
        assert f" has {chain.start} " in start and asked.startswith("How many ") and chain.story == chain.story
        for sentence, term in zip(told, chain.terms, strict=True):
            more = any(f" {verb} " in sentence for verb in ("buys", "finds")) or sentence.startswith("A friend gives")
            fewer = any(f" {verb} " in sentence for verb in ("loses", "sells")) or sentence.endswith("to a friend")
            assert f" {abs(term)} " in sentence and (more, fewer) == (term > 0, term < 0)
    row = arithmetic.row(chain, "val", 5, story=True)
    assert row["extra_info"]["question"] == chain.story


@pytest.mark.parametrize("dial", [Dial(), HARD], ids=["easy", "hard"])
def test_biographies_are_answered_by_their_passages(dial):
    train, val, corpus = biographies.data_set(dial=dial)
    by_pid = {passage["pid"]: passage for passage in corpus}
    assert len(by_pid) == len(corpus) == len({passage["title"] for passage in corpus})
    for question in train + val:
        work, biography = by_pid[question.work.pid], by_pid[question.gold_pid]
        first = question.work.people[question.role]
        assert work["title"] == question.work.title == question.gold_titles[0]
        assert f"{KINDS[question.work.kind][question.role]} by {first.name}" in work["text"]
        assert biography["title"] == question.gold_titles[-1]
        assert biography["text"] == f"{question.person.name}, born in {question.answer}."
        assert len(question.gold_titles) == (3 if question.relation else 2)
    assert len({question.text for question in train}) == len(train) == 2048
    assert len({question.gold_pid for question in val}) == len(val) == 128, "spread over the people"
    assert {bool(q.relation) for q in val} == {hop == 3 for hop in dial.hops}
    assert abs(sum(q.gap for q in val) / len(val) - dial.gap) <= (0.15 if dial.gap else 0)
    works, people, relatives = ([p for p in corpus if p["pid"].count("-") == n] for n in (1, 2, 3))
    assert len(works) == dial.train_works + dial.val_works and len(relatives) == dial.distractors * len(people)


def test_no_entity_of_validation_biographies_occurs_in_training():
    train, val = (biographies.make_world(0, split, HARD.works(split), HARD.distractors) for split in SPLITS)
    titles = [{work.title for work in world} for world in (train, val)]
    people = [{person.name for work in world for *_, person in work.biographies()} for world in (train, val)]
    assert not titles[0] & titles[1] and not people[0] & people[1]
    words = [set(" ".join(titles[side] | people[side]).split()) for side in (0, 1)]
    assert words[1] <= words[0], "but each of their words does"


def test_wording_of_biography_questions():
    work = biographies.make_world(0, "train", 1, 3)[0]
    role, title = next(iter(work.people)), work.title
    verb = KINDS["film"][role]
    for (relation, form, gap), text in {
        ("", 0, False): f"Where was the {role} of the film {title} born?",
        ("", 3, False): f"About {title}: where was its {role} born?",
        ("", 1, True): f"In which town was whoever {verb} {title} born?",
        ("teacher", 2, True): f"What is the birthplace of the one who taught whoever {verb} the film {title}?",
        ("spouse", 3, False): f"About {title}: where was the spouse of its {role} born?",
    }.items():
        assert ask(work, role, relation, form, gap).text == text
    assert ask(work, role, "teacher", 2, True).gold_pid == f"train-0-{role}-teacher"


@pytest.mark.parametrize(
    ("question", "text", "answer", "path"),
    [
        (Question("sum", (34, 58)), "34 + 58", "92", ("run_python",)),
        (Question("price", (9,), "Amber Harbor"), "price of Amber Harbor", "9", ("web_search",)),
        (Question("more", (12, 47)), "more of 12 and 47", "47", ("reasoning",)),
        (Question("total", (34, 9), "A B"), "34 + price of A B", "43", ("web_search", "run_python")),
    ],
)
def test_prices_and_sums(question, text, answer, path):
    assert (question.text, question.answer, question.path) == (text, answer, path)


def test_prices_and_sums_on_disk(tmp_path):
    folder = prices_and_sums.ensure(tmp_path, 40, 80)
    lines = map(json.loads, (folder / "prices.jsonl").read_text().splitlines())
    known = {line["name"]: line["price"] for line in lines}
    assert [row["extra_info"]["kind"] for row in rows_of(folder, "val")[:4]] == list(prices_and_sums.KINDS)
    for row in rows_of(folder, "val"):
        asked, (answer,) = row["prompt"][0]["content"], row["reward_model"]["ground_truth"]["target"]
        numbers = [int(word) for word in asked.split() if word.isdigit()]
        numbers += [known[asked.partition("price of ")[2]]] if "price" in asked else []
        assert int(answer) == (max(numbers) if asked.startswith("more") else sum(numbers)) <= 99
    search = prices_and_sums.web_search(str(folder / "prices.jsonl"))
    assert isinstance(search, Prices)
    for query in ("price of Amber Anchor", "Amber Anchor", "price of Amber Anchor?", "", "price of nothing"):
        expected = str(known["Amber Anchor"]) if query == "price of Amber Anchor" else "nothing found"
        assert asyncio.run(search(queries=[query])) == expected


def test_shop_asks_a_fifth_of_each_kind_and_repeats_only_questions_to_the_knowledge_base():
    rows = shop.data_set(120, 100, 3)
    texts = {split: {kind: [] for kind in shop.KINDS} for split in SPLITS}
    for split, found in texts.items():
        for row in rows[f"{split}.parquet"]:
            found[row["data_source"]].append(row["prompt"][0]["content"])
    for split, size in (("train", 24), ("val", 20)):
        assert {kind: len(set(found)) for kind, found in texts[split].items()} == dict.fromkeys(shop.KINDS, size)
        known = set(name_pairs(ADJECTIVES, NOUNS, split))
        for text in texts[split]["shop"] + texts[split]["cooperation"]:
            names = [part.split(":")[1] for part in text.split(" + ") if part.startswith("shop:")]
            assert names and set(names) <= known, text
    assert set(texts["val"]["qa"]) <= set(texts["train"]["qa"])
    for text in texts["val"]["math"]:
        start, *rest = text.removeprefix("total ").replace("+ ", "").replace("- ", "-").split()
        assert Chain(int(start), tuple(map(int, rest))).split == "val"
    titles = [row["title"] for row in rows["knowledge.jsonl"]]
    assert len(titles) == 40 and len({title.split(":")[0].split()[1] for title in titles}) == 5
    answers = HashingSimilarity().encode([f"{c} {b}" for c in shop.COLOURS for b in shop.BIRDS]).astype(float)
    assert (answers @ answers.T - np.eye(100)).max() < THRESHOLD, "a wrong answer would count as a right one"
    assert list(shop.APIS) == [tool.name for tool in load(shop_apis.__name__)] and len(shop.APIS) == 12


def test_tool_chains_lead_to_their_answers_through_tools_that_can_be_found(tmp_path):
    folder = tool_chains.ensure(tmp_path / "world", train_size=40, val_size=30, seed=3, hops=[1, 2, 3, 4])
    sources = [{"kind": "json", "path": str(folder / "tools.jsonl")}]
    search = tool_search(sources=sources, method="bm25", top_k=3, cache_dir=str(folder / "index"))
    call = tool_call(sources=sources, backend=tool_chains.facts(str(folder / "facts.jsonl")))

    async def solve(row):
        path, answer = json.loads(row["reward_model"]["ground_truth"]["path"]), None
        assert row["extra_info"]["hops"] == len(path)
        assert row["extra_info"]["tools"] == [gold["name"] for gold in path]
        kind, _, *relations = row["prompt"][0]["content"].split(":")
        for gold, relation in zip(path, relations, strict=True):
            states = {found["name"]: found["description"] for found in await search(query=f"{relation}:{kind}")}
            assert states[gold["name"]] == f"{relation}:open", "open among its copies"
            assert sorted(state.split(":")[1] for state in states.values()) == sorted(tool_chains.STATES)
            answer = await call(**gold)
            kind = tool_chains.RELATIONS[kind][relation]
        assert answer["result"] == row["reward_model"]["ground_truth"]["target"][0]

    async def scene():
        for row in rows_of(folder, "train")[:8] + rows_of(folder, "val"):
            await solve(row)
        for state in ("closed", "paid"):
            shut = next(tool for tool in tool_chains.World(3).tools if tool.description == f"director:{state}")
            result = await call(name=shut.name, arguments={"film": "Amber Harbor"})
            assert result == {"ok": False, "error": state, "kind": "tool_error"}
        assert (await call(name=shut.name))["kind"] == "bad_arguments"
        await search.close()

    asyncio.run(scene())


def test_tool_chains_have_tools_of_meaningless_names_which_both_splits_share():
    one, other = tool_chains.World(1), tool_chains.World(2)
    assert one.useful != other.useful and len({tool.name for tool in one.tools}) == len(one.tools) == 216
    assert tool_chains.World(1, "val").useful == one.useful
    chain = one.draw(random.Random(0), 3)
    assert len({chain.start, *one.follow(chain)}) == 4 and len(set(chain.relations)) == 3
