"""The tiny world: determinism, a validation world of its own, answerability, retrievability, atomic writing."""

import json
import time

import pyarrow.parquet as pq
import pytest

from verl_ext.recipe.mhgpo import parsers, prompts_tiny
from verl_ext.recipe.mhgpo.cold_start import demonstrations as tiny_demos
from verl_ext.worlds import biographies as tiny_world
from verl_ext.worlds.names import ADJECTIVES, FIRST, LAST, NOUNS, SPLITS, name_pairs
from verl_ext.worlds.questions import EASY, KINDS, RELATIONS, Dial, ask

HARD = Dial(hops=(2, 3), distractors=2, gap=0.5)


@pytest.fixture(scope="module", params=[EASY, HARD], ids=["easy", "hard"])
def data(request):
    return tiny_world.data_set(dial=request.param)


@pytest.fixture(scope="module")
def retriever(data):
    return tiny_demos.retriever_of(data[2])


def content(folder):
    return {name: (folder / name).read_bytes() for name in tiny_world.FILES}


def test_same_arguments_same_bytes_other_seed_other_bytes(tmp_path):
    one, again, other = (tiny_world.ensure(tmp_path / str(i), 64, 16, seed) for i, seed in enumerate((3, 3, 4)))
    assert content(one) == content(again)
    assert all(content(one)[name] != content(other)[name] for name in tiny_world.FILES)


@pytest.mark.parametrize("seed", [0, 1])
def test_no_entity_of_validation_occurs_in_training(seed):
    train, val = (tiny_world.make_world(seed, split, HARD.works(split), HARD.distractors) for split in SPLITS)
    titles = [{work.title for work in world} for world in (train, val)]
    people = [{person.name for work in world for *_, person in work.biographies()} for world in (train, val)]
    assert not titles[0] & titles[1] and not people[0] & people[1]
    words = [set(" ".join(titles[side] | people[side]).split()) for side in (0, 1)]
    assert words[1] <= words[0]  # but nothing in validation needs a word that training never shows


def test_validation_names_are_reserved_whatever_the_world():
    for heads, tails in ((ADJECTIVES, NOUNS), (FIRST, LAST)):
        train, val = (set(name_pairs(heads, tails, split)) for split in ("train", "val"))
        assert not train & val and len(train | val) == len(heads) * len(tails)
        assert len(val) == pytest.approx(0.2 * len(train | val), rel=0.05)


def test_every_question_is_answered_by_its_passages(data):
    train, val, corpus = data
    by_pid = {passage["pid"]: passage for passage in corpus}
    assert len(by_pid) == len(corpus)
    for question in train + val:
        work, biography = by_pid[question.work.pid], by_pid[question.gold_pid]
        first = question.work.people[question.role]
        assert work["title"] == question.work.title == question.gold_titles[0]
        assert f"{KINDS[question.work.kind][question.role]} by {first.name}" in work["text"]
        assert biography["title"] == question.gold_titles[-1]
        assert biography["text"] == f"{question.person.name}, born in {question.answer}."
        assert len(question.gold_titles) == (3 if question.relation else 2)
    assert {len(question.answer.split()) for question in val} == {1, 2}


def test_questions_in_words_by_hand():
    work = tiny_world.make_world(0, "train", 1, 3)[0]
    title = work.title
    role = next(iter(work.people))
    verb = KINDS["film"][role]
    assert ask(work, role, "", 0, False).text == f"Where was the {role} of the film {title} born?"
    assert ask(work, role, "", 3, False).text == f"About {title}: where was its {role} born?"
    assert ask(work, role, "", 1, True).text == f"In which town was whoever {verb} {title} born?"
    taught = ask(work, role, "teacher", 2, True)
    assert taught.text == f"What is the birthplace of the one who taught whoever {verb} the film {title}?"
    assert taught.gold_pid == f"train-0-{role}-teacher"
    assert ask(work, role, "spouse", 3, False).text == f"About {title}: where was the spouse of its {role} born?"


def test_the_dial_sets_hops_distractors_gap_and_corpus():
    _, val, corpus = tiny_world.data_set(dial=HARD)
    assert {bool(q.relation) for q in val} == {True, False} and 0.35 <= sum(q.gap for q in val) / len(val) <= 0.65
    works = [passage for passage in corpus if passage["pid"].count("-") == 1]
    people = [passage for passage in corpus if passage["pid"].count("-") == 2]
    relatives = [passage for passage in corpus if passage["pid"].count("-") == 3]
    assert len(works) == HARD.train_works + HARD.val_works and len(relatives) == 2 * len(people)
    three = tiny_world.data_set(256, 64, dial=Dial(hops=(3,), distractors=1, gap=1.0, train_works=60, val_works=20))
    assert all(q.relation and q.gap for q in three[1]) and sum(p["pid"].count("-") == 1 for p in three[2]) == 80
    assert all(not q.relation and not q.gap for q in tiny_world.data_set()[1])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"hops": (1,)}, "hops=.1.: give 2, 3 or both"),
        ({"hops": (3,)}, "hops=3 asks for relatives"),
        ({"distractors": 4}, "0 to 3 relatives"),
        ({"gap": 1.5}, "gap=1.5"),
    ],
)
def test_impossible_dials_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        Dial(**settings)


def test_titles_and_people_are_unique(data):
    titles = [passage["title"] for passage in data[2]]
    assert len(set(titles)) == len(titles)


def test_good_queries_find_the_gold_passage_first_and_habitual_ones_do_not(data, retriever):
    def first(queries):
        found = [tiny_demos.search(retriever, queries(question)) for question in data[1]]
        assert all(0 < len(docs) <= tiny_demos.TOP_K for docs in found)
        return sum(d[0]["pid"] == q.gold_pid for d, q in zip(found, data[1], strict=True)) / len(data[1])

    assert first(tiny_demos.good_queries) >= 0.95
    assert first(tiny_demos.vague_queries) <= 0.6  # one of the people around the film, by chance
    assert first(tiny_demos.half_queries) <= 0.3
    assert first(tiny_demos.habitual_queries) <= 0.4
    own_words = first(lambda question: [question.text])
    assert own_words <= 0.7 if any(question.gap for question in data[1]) else own_words >= 0.9


def test_parquet_has_verls_schema(tmp_path):
    folder = tiny_world.ensure(tmp_path, 32, 8)
    for split, size in (("train", 32), ("val", 8)):
        rows = pq.read_table(folder / f"{split}.parquet").to_pylist()
        assert len(rows) == size and [row["extra_info"]["index"] for row in rows] == list(range(size))
        for row in rows:
            assert row["data_source"] == "tiny_world" and row["ability"] == "qa"
            assert row["prompt"] == [{"role": "user", "content": row["extra_info"]["question"]}]
            assert row["reward_model"]["style"] == "rule" and len(row["reward_model"]["ground_truth"]["target"]) == 1
            assert row["extra_info"]["split"] == split and len(row["extra_info"]["gold_titles"]) == 2
    passages = [json.loads(line) for line in (folder / "corpus.jsonl").read_text().splitlines()]
    assert all(set(passage) == {"pid", "title", "text"} for passage in passages)


def test_questions_are_distinct_and_spread(data):
    train, val, _ = data
    assert len({question.text for question in train}) == len(train) == 2048
    assert len({question.gold_pid for question in val}) == len(val) == 128


def test_ensure_keeps_what_is_there_and_replaces_what_is_not(tmp_path):
    start = time.time()
    tiny_world.ensure(tmp_path)
    assert time.time() - start < 3
    stamps = {name: (tmp_path / name).stat().st_mtime_ns for name in tiny_world.FILES}
    tiny_world.ensure(tmp_path)
    assert stamps == {name: (tmp_path / name).stat().st_mtime_ns for name in tiny_world.FILES}
    (tmp_path / "notes.txt").write_text("mine")
    tiny_world.ensure(tmp_path, seed=1)
    assert all(stamps[name] != (tmp_path / name).stat().st_mtime_ns for name in tiny_world.FILES)
    assert (tmp_path / "notes.txt").read_text() == "mine"
    assert {path.name for path in tmp_path.iterdir()} == {*tiny_world.FILES, tiny_world.STAMP, "notes.txt"}


@pytest.mark.parametrize("damage", ["no stamp", "cut stamp", "no corpus"])
def test_ensure_repairs_a_killed_run(tmp_path, damage):
    before = content(tiny_world.ensure(tmp_path, 32, 8))
    if damage == "no corpus":
        (tmp_path / "corpus.jsonl").unlink()
    else:
        (tmp_path / "val.parquet").write_bytes(b"of another run")
        stamp = tmp_path / tiny_world.STAMP
        stamp.unlink() if damage == "no stamp" else stamp.write_text(stamp.read_text()[:10])
    assert content(tiny_world.ensure(tmp_path, 32, 8)) == before


def test_impossible_sizes_name_the_limits(tmp_path):
    with pytest.raises(ValueError, match="val_size=5000.*1 to 616"):
        tiny_world.ensure(tmp_path, 32, 5000)
    with pytest.raises(ValueError, match="train_size=0"):
        tiny_world.ensure(tmp_path, 0, 8)
    with pytest.raises(ValueError, match="names for 1 to"):
        tiny_world.make_world(0, "val", 500)
    with pytest.raises(ValueError, match="train, val"):
        tiny_world.name_pairs(["A"], ["B"], "test")


def test_demonstrations_keep_the_parsers_contract_and_clean_ones_are_right():
    teacher = tiny_demos.Teacher(seed=5, worlds=2, works=60)
    batch = teacher.batch(40, tiny_demos.NO_HABITS)
    assert list(batch) == ["rewriter", "reranker", "answerer", "single"]
    for _, said in batch["rewriter"]:
        assert len(parsers.queries(said, question="")) == 2
    docs = [{"title": str(number), "text": ""} for number in range(tiny_demos.TOP_K)]
    for _, said in batch["reranker"]:
        assert len(parsers.chosen_documents(said, docs=docs)) == 1
    for prompt, said in batch["answerer"] + batch["single"]:
        assert parsers.answer(said) in prompt[0]["content"]


def test_habits_are_the_majority_where_they_are_hard():
    teacher, habits = tiny_demos.Teacher(seed=6, worlds=2, works=60), tiny_demos.Habits()
    wrong = {True: [], False: []}
    for _ in range(600):
        question, _ = teacher._draw()
        teacher._draw = lambda question=question: (question, None)
        _, text = teacher.rewriter(habits)
        del teacher._draw
        wrong[tiny_demos.is_hard(question)].append(text != f"### {' ; '.join(tiny_demos.good_queries(question))} ###")
    assert sum(wrong[True]) / len(wrong[True]) > 0.5 > sum(wrong[False]) / len(wrong[False])
    second = {True: [], False: []}
    for _ in range(600):
        prompt, text = teacher.reranker(habits)
        asked = prompt[0]["content"].split("rank:")[1]
        second["screenwriter" not in asked and "scripted" not in asked].append(text.startswith("1"))
    assert sum(second[True]) / len(second[True]) > 0.5 > sum(second[False]) / len(second[False])
    with pytest.raises(ValueError, match="noise=2"):
        tiny_demos.Habits(noise=2)


def test_noise_of_the_cold_start_scales():
    assert tiny_demos.scaled(0) == tiny_demos.NO_HABITS and tiny_demos.scaled(1) == tiny_demos.Habits()
    assert tiny_demos.scaled(0.5).rewriter_hard == pytest.approx(0.325) and tiny_demos.scaled(9).answerer_hard == 1


def test_mistakes_by_hand():
    work = tiny_world.make_world(0, "train", 1, 3)[0]
    role, verb = next((role, verb) for role, verb in KINDS["film"].items() if role in work.people)
    film = f"film {work.title}"
    relation = next(iter(RELATIONS))
    assert tiny_demos.good_queries(ask(work, role, relation, 0, True)) == [f"{relation} {role} {work.title}", film]
    assert tiny_demos.habitual_queries(ask(work, role, relation, 0, True)) == [f"{role} {work.title}", film]
    assert tiny_demos.habitual_queries(ask(work, role, "", 0, True)) == [f"{verb} {work.title}", film]
    assert tiny_demos.habitual_queries(ask(work, role, "", 1, False)) == [f"{work.title} born", film]


def test_prompts_number_documents_from_zero():
    docs = [{"title": "A", "text": "first."}, {"title": "B", "text": "second."}]
    assert prompts_tiny.reranker("Who?", docs) == [{"role": "user", "content": "0 A: first. 1 B: second. rank: Who?"}]
    assert prompts_tiny.answerer("Who?", []) == [{"role": "user", "content": "answer: Who?"}]
    assert prompts_tiny.rewriter("Who?") == [{"role": "user", "content": "rewrite: Who?"}]
