"""The tiny models: tokenizers, shipped checkpoints, a five-step cold start."""

import json
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from transformers import AutoModelForCausalLM, AutoTokenizer

import verl_ext.recipe as recipes
from verl_ext.recipe.cold_start import train as tiny_model
from verl_ext.recipe.cold_start.evaluate import run_workflow, summary
from verl_ext.recipe.cold_start.registry import COLD_STARTS
from verl_ext.recipe.deepagent.cold_start import demonstrations as tool_demos
from verl_ext.recipe.mhgpo.cold_start import demonstrations as tiny_demos
from verl_ext.recipe.solver_verifier.cold_start import demonstrations as arithmetic_demos

SYSTEMS = {"search": "mhgpo", "arithmetic": "solver_verifier", "tools": "deepagent"}
ASSETS = {world: Path(recipes.__path__[0]) / system / "assets" / "tiny_model" for world, system in SYSTEMS.items()}


def built(world):
    return tiny_model.build_tokenizer(COLD_STARTS[world].words(), COLD_STARTS[world].marks())


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(ASSETS["search"])


@pytest.mark.parametrize("name", list(SYSTEMS))
def test_the_script_builds_the_shipped_tokenizers(name, tmp_path):
    made, shipped = built(name), AutoTokenizer.from_pretrained(ASSETS[name])
    assert made.get_vocab() == shipped.get_vocab() and made.chat_template == shipped.chat_template
    made.save_pretrained(tmp_path)
    assert (tmp_path / "tokenizer.json").read_text() == (ASSETS[name] / "tokenizer.json").read_text()


@pytest.mark.parametrize("name", ["search", "arithmetic"])
def test_every_word_of_a_world_is_one_token(name):
    tokenizer = AutoTokenizer.from_pretrained(ASSETS[name])
    for word in COLD_STARTS[name].words():
        assert len(tokenizer.encode(f" {word}")) == 1, word


def test_every_mark_of_the_tool_world_is_one_token_wherever_it_stands():
    tokenizer = AutoTokenizer.from_pretrained(ASSETS["tools"])
    for mark in COLD_STARTS["tools"].marks():
        (one,) = tokenizer.encode(mark)
        assert tokenizer.encode(f"x{mark}opal")[1] == one, mark


def test_prompts_are_as_short_as_they_look(tokenizer):
    for prompt, said in tiny_demos.Teacher(seed=1, worlds=2, works=60).batch(10, tiny_demos.NO_HABITS)["rewriter"]:
        asked = tokenizer.apply_chat_template(prompt, add_generation_prompt=True, return_dict=False)
        assert len(asked) <= 28 and len(tokenizer.encode(said)) == len(said.split())
        assert tokenizer.decode(asked[:2]) == "<|user|> rewrite"


def test_numbers_are_single_tokens_in_any_text():
    tokenizer = AutoTokenizer.from_pretrained(ASSETS["arithmetic"])
    assert [tokenizer.decode([i]) for i in tokenizer.encode(" 12 9 17")] == [" 12", " 9", " 17"]
    assert tokenizer.decode(tokenizer.encode("x12, 3456 7")) == "x12, 3456 7"


@settings(max_examples=200, deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_any_text_survives_encoding(text):
    import unicodedata

    tokenizer = _cached_tokenizer()
    text = unicodedata.normalize("NFC", text)  # Qwen2's tokenizer normalises
    assert tokenizer.decode(tokenizer.encode(text), skip_special_tokens=False) == text


_TOKENIZER = []


def _cached_tokenizer():
    if not _TOKENIZER:
        _TOKENIZER.append(AutoTokenizer.from_pretrained(ASSETS["search"]))
    return _TOKENIZER[0]


def test_chat_ends_a_turn_with_eos_and_roles_are_single_tokens(tokenizer):
    chat = [{"role": "user", "content": "rewrite: x"}, {"role": "assistant", "content": "y"}]
    ids = tokenizer.apply_chat_template(chat, return_dict=False)
    assert ids[0] == tokenizer.convert_tokens_to_ids("<|user|>") and ids[-1] == tokenizer.eos_token_id
    assert ids.count(tokenizer.eos_token_id) == 2 and tokenizer.pad_token_id != tokenizer.eos_token_id
    prompt = tokenizer.apply_chat_template(chat[:1], add_generation_prompt=True, return_dict=False)
    assert ids[: len(prompt)] == prompt


@pytest.mark.parametrize("name", list(SYSTEMS))
def test_shipped_folders_are_small_and_float32(name):
    shipped, tokenizer = AutoModelForCausalLM.from_pretrained(ASSETS[name]), AutoTokenizer.from_pretrained(ASSETS[name])
    assert sum(path.stat().st_size for path in ASSETS[name].iterdir()) < 4e6
    assert shipped.dtype == torch.float32 and shipped.num_parameters() <= 800_000
    assert shipped.config.vocab_size == len(tokenizer) and shipped.config.max_position_embeddings >= 1024
    assert shipped.generation_config.eos_token_id == tokenizer.eos_token_id
    assert shipped.generation_config.pad_token_id == tokenizer.pad_token_id


def test_every_shipped_model_names_the_type_of_its_weights():
    folders = [folder for place in recipes.__path__ for folder in Path(place).glob("*/assets/tiny_model")]
    assert set(ASSETS.values()) < set(folders)
    for folder in folders:
        with safe_open(folder / "model.safetensors", "pt") as weights:
            kinds = {str(weights.get_tensor(name).dtype) for name in weights.keys()}  # noqa: SIM118
        assert kinds == {f"torch.{json.loads((folder / 'config.json').read_text())['dtype']}"}, folder


# Examination -> bounds of F1 (EM where the answer is a number), greedy: wrong on most questions, but not hopeless.
ADVERTISED = {
    "easy": (0.15, 0.45),
    "hard": (0.05, 0.35),
    # Reads the first passage, which the question itself finds for half of the questions.
    "hard, single agent": (0.4, 0.65),
    "solver and verifier": (0.15, 0.6),
    "solver alone": (0.1, 0.5),
    "with folding": (0.25, 0.5),
}
# A stream of reasoning goes on in its prompt.
LONGEST = {"search": (200, 24), "arithmetic": (200, 24), "tools": (400, 32)}


@pytest.mark.parametrize("name", list(SYSTEMS))
def test_shipped_models_are_as_good_and_as_bad_as_advertised(name):
    model, tokenizer = AutoModelForCausalLM.from_pretrained(ASSETS[name]), AutoTokenizer.from_pretrained(ASSETS[name])
    for title, exam in COLD_STARTS[name].examinations(128).items():
        if title not in ADVERTISED:
            continue
        forests = run_workflow(model, tokenizer, exam.workflow, exam.tasks, exam.tools, greedy=True)
        scores = summary(forests)
        low, high = ADVERTISED[title]
        assert low <= scores[exam.workflow.headline] <= high and scores["finished"] == 1, (title, scores)
        assert min(value for key, value in scores.items() if key.endswith("parsable")) > 0.85, (title, scores)
        calls = [call for forest in forests for call in forest.trajectories[0].calls]
        prompt, output = LONGEST[name]
        assert max(len(call.prompt_ids) for call in calls) <= prompt
        assert max(call.generated_tokens for call in calls) <= output


def test_an_examination_is_the_same_twice_and_differs_by_seed():
    model, tokenizer = AutoModelForCausalLM.from_pretrained(ASSETS["arithmetic"]), built("arithmetic")
    exam = COLD_STARTS["arithmetic"].examinations(24)["solver and verifier"]

    def texts(seed):
        forests = run_workflow(model, tokenizer, exam.workflow, exam.tasks, exam.tools, greedy=False, seed=seed)
        return [[call.text for call in forest.trajectories[0].calls] for forest in forests]

    assert texts(1) == texts(1) != texts(2)


@pytest.mark.parametrize(
    ("name", "teacher", "habits"),
    [
        ("search", lambda: tiny_demos.Teacher(seed=0, worlds=2, works=60), tiny_demos.Habits()),
        ("arithmetic", lambda: arithmetic_demos.Teacher(seed=0), arithmetic_demos.Habits()),
        ("tools", lambda: tool_demos.Teacher(seed=0), tool_demos.Habits()),
    ],
)
def test_five_steps_of_cold_start_learn_and_are_deterministic(name, teacher, habits, tmp_path):
    tokenizer = built(name)
    weights, losses = [], []
    for _ in range(2):
        model = tiny_model.build_model(tokenizer, seed=0)
        losses.append(tiny_model.train(model, tokenizer, teacher(), habits, 5, 8, 2e-3, report_every=1))
        weights.append(torch.cat([parameter.detach().flatten() for parameter in model.parameters()]))
    assert losses[0] == losses[1] and torch.equal(*weights)
    assert [row["step"] for row in losses[0]] == [0, 1, 2, 3, 4]
    assert all(losses[0][-1][agent] < first for agent, first in losses[0][0].items() if agent != "step")
    loaded = AutoModelForCausalLM.from_pretrained(tiny_model.save(model, tokenizer, tmp_path))
    assert torch.equal(loaded.lm_head.weight, model.lm_head.weight)


def test_the_second_stage_goes_on_from_a_folder_of_the_same_world(tmp_path):
    tokenizer = built("tools")
    folder = tiny_model.save(tiny_model.build_model(tokenizer, seed=3), tokenizer, tmp_path)
    again = tiny_model.going_on(str(folder), tokenizer)
    assert torch.equal(again.lm_head.weight, tiny_model.build_model(tokenizer, seed=3).lm_head.weight)
    with pytest.raises(ValueError, match="its tokens are not this world's"):
        tiny_model.going_on(str(ASSETS["search"]), tokenizer)


def test_loss_counts_output_tokens_only():
    tokenizer = built("search")
    model = tiny_model.build_model(tokenizer, seed=0)
    examples = [([{"role": "user", "content": "rank: x"}], "1"), ([{"role": "user", "content": "answer: y"}], " Karsa")]
    ids, target = tiny_model.collate(tokenizer, examples)
    assert target.sum(-1).tolist() == [2, 2]  # the output's token and the end token
    said = [tokenizer.decode(row[mask.bool()]) for row, mask in zip(ids, target, strict=True)]
    assert said == ["1<|end|>", " Karsa<|end|>"]
    loss = tiny_model.batch_loss(model, ids, target)
    logs = model(ids).logits.log_softmax(-1)
    expected = -sum(logs[b, t - 1, ids[b, t]] for b, t in target.nonzero().tolist()) / 4
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
