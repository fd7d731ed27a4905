"""Models in this process: the embedded one, checkpoints of a real run, real questions."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from hydra.errors import InstantiationException
from omegaconf import OmegaConf

from tests.public_data import SHARED, needs_shared
from tests.trainer.test_recipes import composed
from verl_ext.engine.hf import hardware
from verl_ext.evaluate import llms
from verl_ext.evaluate.__main__ import main
from verl_ext.evaluate.checkpoint import Model, find_model
from verl_ext.evaluate.config import EvaluateConfig
from verl_ext.plugin import package_path

TINY = Path(package_path("recipe/mhgpo/assets/tiny_model"))
METRICS = ("em", "f1", "acc")


def evaluate(output, *overrides, recipe="mhgpo_tiny", status=0):
    """Run the command in this process; return its results."""
    assert main([f"+recipe={recipe}", f"evaluate.output={output}", *overrides]) == status
    return json.loads((Path(output) / "results.json").read_text())


def scores(results):
    (source,) = results["data"].values()
    assert source["answered"] == source["questions"]
    return {name: source["metrics"][name]["mean"] for name in METRICS}


@pytest.mark.parametrize(("given", "most"), [("2", 2), ("3,1", 3), ("", None), ("0", None), ("x", None)])
def test_the_environment_says_how_many_threads_an_evaluation_may_use(given, most, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", given)
    assert llms.allowed_threads() == most


def test_an_evaluation_does_not_limit_its_own_threads(tmp_path, monkeypatch):
    """Training sets OMP_NUM_THREADS for its workers; in an evaluation it would leave all cores but one idle."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    evaluate(tmp_path, "evaluate.max_questions=1")
    assert llms.allowed_threads() is None


def test_a_model_of_an_evaluation_takes_no_more_threads_than_allowed(monkeypatch):
    """Large models take all cores otherwise, whatever OMP_NUM_THREADS says."""
    monkeypatch.setattr(hardware, "THREADS_PAY", 0)
    monkeypatch.setattr(hardware.os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    taken = []
    monkeypatch.setattr("verl_ext.engine.hf.server.torch.set_num_threads", taken.append)
    for given in ("1", "3"):
        monkeypatch.setenv("OMP_NUM_THREADS", given)
        llms.LocalLLM(composed("+recipe=mhgpo_tiny"), find_model(str(TINY), str(TINY)), "cpu").client._loop.close()
    assert taken[0] == 1 and 3 in taken


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A folder with the tiny world and the results of the embedded model on it."""
    folder = tmp_path_factory.mktemp("world")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        return folder, evaluate("runs/greedy", "evaluate.max_questions=48")


def test_the_embedded_model_answers_its_world(world):
    folder, results = world
    (source,) = results["data"].values()
    assert source["questions"] == 48 and list(source["metrics"]) == ["reward", *METRICS]
    assert 0 < source["metrics"]["f1"]["mean"] < 1 and source["metrics"]["f1"]["standard_error"] > 0.01
    assert source["recall"]["recall@5"]["mean"] > 0.5 and "recall_chosen" in source["recall"]
    assert source["per_trajectory"]["calls"] == 3 and set(source["agents"]) == {"rewriter", "reranker", "answerer"}


def test_neither_concurrency_nor_a_copy_elsewhere_changes_an_answer(world, monkeypatch):
    folder, results = world
    monkeypatch.chdir(folder)
    shutil.copytree(TINY, folder / "copy")
    more = ["evaluate.max_questions=12", "evaluate.model=copy", "evaluate.concurrency=1"]
    evaluate("runs/alone", *more)
    texts = [
        {
            (record["question"]["index"], call["id"]): call["output"]
            for record in map(json.loads, (folder / name / "trajectories.jsonl").read_text().splitlines())
            for call in record["calls"]
            if record["question"]["index"] < 12
        }
        for name in ("runs/greedy", "runs/alone")
    ]
    assert texts[0] == texts[1] and len(texts[1]) == 36


def test_samples_are_reproducible_and_differ(world, monkeypatch):
    folder, _ = world
    monkeypatch.chdir(folder)
    more = ["evaluate.max_questions=4", "evaluate.samples=4", "evaluate.temperature=1.0"]
    first, second = evaluate("runs/a", *more), evaluate("runs/b", *more, "evaluate.concurrency=2")
    assert first["data"]["tiny_world"]["metrics"] == second["data"]["tiny_world"]["metrics"]
    records = [json.loads(line) for line in (folder / "runs/a/trajectories.jsonl").read_text().splitlines()]
    calls = [call for record in records if record["question"]["index"] == 0 for call in record["calls"]]
    assert len({call["output"] for call in calls if call["agent"] == "rewriter"}) > 1


def test_a_single_agent_with_and_without_passages(world, monkeypatch):
    folder, _ = world
    monkeypatch.chdir(folder)
    few = "evaluate.max_questions=16"
    (found,) = evaluate("runs/single", few, recipe="single_tiny")["data"].values()
    (closed,) = evaluate("runs/closed", few, "mas.workflow.retrieve=false", recipe="single_tiny")["data"].values()
    assert found["per_trajectory"]["calls"] == closed["per_trajectory"]["calls"] == 1
    assert found["recall"]["recall@5"]["mean"] > 0.5 and closed["recall"] == {}
    assert closed["per_trajectory"]["prompt_tokens"] < found["per_trajectory"]["prompt_tokens"] / 2


def test_a_prompt_too_long_is_a_failure_with_a_name(world, monkeypatch):
    folder, _ = world
    monkeypatch.chdir(folder)
    short = ["data.max_prompt_length=40", "evaluate.max_questions=8"]
    (source,) = evaluate("runs/short", *short, status=1)["data"].values()
    assert source["answered"] == 0 and source["failed"] == {"prompt_too_long": 8}
    assert source["agents"]["rewriter"]["statuses"] == {"ok": 8}


STEP_2 = ["global_step_2/actor/", "global_step_2/complete"]


@pytest.mark.parametrize(
    ("name", "made", "words"),
    [
        (".", [], "holds neither a Hugging Face model"),
        (".", ["empty/global_step_3/"], "holds neither"),
        (".", ["config.json"], "holds neither"),
        (".", ["actor/model/"], "model_merger merge --backend megatron"),
        # Of a run's folder, the checkpoints that are complete.
        (".", [*STEP_2, "global_step_10/actor/", "global_step_10/complete"], "there: .*step_2, .*global_step_10"),
        ("global_step_5", STEP_2, "does not exist. Complete checkpoints there: .*global_step_2"),
        ("runs/typo", ["runs/"], "evaluate.model=runs/typo does not exist"),  # no name of the hub
    ],
)
def test_folders_that_are_no_models(tmp_path, monkeypatch, name, made, words):
    monkeypatch.chdir(tmp_path)
    for path in made:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).mkdir() if path.endswith("/") else (tmp_path / path).write_text("{}")
    with pytest.raises(ValueError, match=words):
        find_model(name if "/" in name else str(tmp_path / name))


@pytest.mark.parametrize("through_hydra", [False, True])
def test_a_model_that_cannot_be_loaded_is_named(monkeypatch, through_hydra):
    def absent(*_):
        error = OSError("nobody/nothing is not a valid model identifier")
        if through_hydra:
            raise InstantiationException("Error in call to target") from error
        raise error

    monkeypatch.setattr(llms, "LocalLLM", absent)
    for given, named in (("nobody/nothing", "evaluate.model"), (None, "actor_rollout_ref.model.path")):
        section = EvaluateConfig(model=given, device="cpu")
        with pytest.raises(ValueError, match=f"{named}=nobody/nothing cannot be loaded: .* is not a valid .*\nRemedy"):
            llms.open_llm(OmegaConf.create(), section, Model("nobody/nothing"), True)


def test_names_of_the_hub_pass():
    assert find_model("Qwen/Qwen2.5-7B-Instruct").path == "Qwen/Qwen2.5-7B-Instruct"


def test_weights_that_change_are_other_weights(tmp_path):
    shutil.copytree(TINY, tmp_path / "m")
    before = find_model(str(tmp_path / "m"))
    weights = tmp_path / "m" / "model.safetensors"
    weights.write_bytes(weights.read_bytes())
    assert find_model(str(tmp_path / "m")).fingerprint != before.fingerprint


@needs_shared
def test_real_questions(tmp_path, monkeypatch):
    from verl_ext.data_prep import qa

    monkeypatch.chdir(tmp_path)
    for name in ("hotpotqa", "musique"):
        arguments = [name, "--output_dir", f"data/{name}", "--local_dataset_path", str(SHARED / "qa" / f"{name}.jsonl")]
        assert qa.main([*arguments, "--val_size", "20"]) == 0
    results = evaluate(
        "runs/real",
        "data.val_files=[data/hotpotqa/test.parquet,data/musique/test.parquet]",
        "mas.prepare=null",
        "mas.tools.search.corpus=data/hotpotqa/corpus.jsonl",
        "data.max_prompt_length=3000",
        "evaluate.max_questions=8",
    )
    hotpot, musique = results["data"]["hotpotqa"], results["data"]["musique"]
    assert hotpot["answered"] == musique["answered"] == 8
    # The corpus is HotpotQA's: its own gold passages are in it, MuSiQue's hardly.
    assert hotpot["recall"]["recall@5"]["mean"] > musique["recall"]["recall@5"]["mean"]
    assert set(results["average"]) >= {"em", "f1", "acc", "recall@5", "recall@10"}
