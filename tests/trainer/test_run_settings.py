"""What a run must have in common with the checkpoint that it continues from."""

from __future__ import annotations

import shutil
import sys
from fnmatch import fnmatchcase

import pytest
from omegaconf import OmegaConf

import verl_ext.recipe.baselines
from tests.trainer.test_checkpoint import checkpoints
from tests.trainer.test_recipes import composed
from verl_ext.check import examine
from verl_ext.tools.simulator.cache import ResultCache
from verl_ext.tools.simulator.keys import CallKey
from verl_ext.trainer.state.checkpoint import TRACKER, mark_complete
from verl_ext.trainer.state.contents import own_files
from verl_ext.trainer.state.run_settings import (
    FREE,
    check_ranks,
    check_same_run,
    identity_of,
    leaves,
    plain,
    settings_of,
)
from verl_ext.trainer.state.tool_caches import lost_results, recorded_results
from verl_ext.worlds.biographies import ensure


def settings(folder, strategy="fof", resume="auto", steps=3, lr=1e-4, **trainer):
    trainer = {"default_local_dir": str(folder), "resume_mode": resume, "total_training_steps": steps, **trainer}
    data = {"train_files": ["a"], "train_batch_size": 4}
    actor = {"actor": {"optim": {"lr": lr}}}
    return OmegaConf.create(
        {"trainer": trainer, "mas": {"sampling": {"strategy": strategy}}, "data": data, "actor_rollout_ref": actor}
    )


def test_a_run_of_other_settings_is_not_continued(tmp_path):
    check_same_run(settings(tmp_path))
    check_same_run(settings(tmp_path, "rr"))  # nothing trained yet
    checkpoints(tmp_path, [2])
    check_same_run(settings(tmp_path, "rr", steps=9))
    with pytest.raises(ValueError, match="mas.sampling.strategy: rr there, is here"):
        check_same_run(settings(tmp_path, "is"))
    with pytest.raises(ValueError, match="actor.optim.lr: 0.0001 there, 0.001 here"):
        check_same_run(settings(tmp_path, "rr", lr=1e-3))
    check_same_run(settings(tmp_path, "rr"))  # the refusal changed nothing
    check_same_run(settings(tmp_path, "is", val_only=True))  # trains nothing


def test_a_run_that_goes_on_is_told_of_other_files_of_its_system_and_other_data(tmp_path, monkeypatch, capsys):
    code, run = tmp_path / "code", tmp_path / "run"
    code.mkdir()
    (code / "asks.py").write_text("PROMPT = 'Answer.'")
    (installed := code / ".venv" / "lib" / "site-packages").mkdir(parents=True)
    (installed / "somebodys.py").write_text("")
    mine = "import asks, somebodys\nfrom verl_ext.mas import Workflow\nclass Mine(Workflow): pass\n"
    (code / "mine_here.py").write_text(mine)
    (tmp_path / "data").write_text("1")
    for place in (installed, code):
        monkeypatch.syspath_prepend(place)

    def check():
        config = settings(run)
        config.data.train_files, config.mas.workflow = [str(tmp_path / "data")], {"_target_": "mine_here.Mine"}
        check_same_run(config)
        return capsys.readouterr().err

    check()
    checkpoints(run, [2])
    assert check() == "", "nothing has changed"
    (code / "asks.py").write_text("PROMPT = 'Answer, please.'")
    (tmp_path / "data").write_text("2")
    said = check()
    assert said.startswith("Warning: since the checkpoint of step 2") and f"{tmp_path / 'data'}, asks.py." in said
    assert {*own_files(sys.modules["mine_here"].Mine)} == {"asks.py", "mine_here.py"}
    assert own_files(verl_ext.recipe.baselines.CoT) == {}, "this library's are not looked at"


def test_the_length_of_a_run_counts_where_the_learning_rate_depends_on_it(tmp_path):
    def scheduled(steps, **optim):
        config = settings(tmp_path, steps=steps)
        return OmegaConf.merge(config, {"actor_rollout_ref": {"actor": {"optim": optim}}})

    check_same_run(scheduled(3, lr_scheduler_type="cosine"))
    checkpoints(tmp_path, [2])
    with pytest.raises(ValueError, match="trainer.total_training_steps: 3 there, 9 here"):
        check_same_run(scheduled(9, lr_scheduler_type="cosine"))
    warm = {"lr_scheduler_type": "constant", "lr_warmup_steps_ratio": 0.1}
    assert "trainer.total_training_steps" in settings_of(scheduled(9, **warm))
    assert "trainer.total_training_steps" not in settings_of(scheduled(9, lr_scheduler_type="constant"))


@pytest.mark.parametrize("explicit", ["disable", "resume_path"])
def test_each_checkpoint_knows_its_own_settings(tmp_path, explicit):
    check_same_run(settings(tmp_path, "rr"))
    checkpoints(tmp_path, [2])
    # Started afresh in the same folder with other settings, and killed before its first checkpoint.
    check_same_run(settings(tmp_path, "is", resume=explicit))
    with pytest.raises(ValueError, match="rr there, is here.*\n.*resume_from_path"):
        check_same_run(settings(tmp_path, "is"))
    check_same_run(settings(tmp_path, "is", resume=explicit))
    checkpoints(tmp_path, [4])
    check_same_run(settings(tmp_path, "is"))
    with pytest.raises(ValueError, match="is there, rr here"):
        check_same_run(settings(tmp_path, "rr"))
    (tmp_path / TRACKER).write_text("")  # a kill while it was written: the newest complete one counts
    with pytest.raises(ValueError, match="is there, rr here"):
        check_same_run(settings(tmp_path, "rr"))


@pytest.mark.parametrize("says", ["{}", "2"])
def test_a_checkpoint_that_does_not_say_is_continued(tmp_path, says):
    checkpoints(tmp_path, [2])
    (tmp_path / "global_step_2" / "complete").write_text(says)
    check_same_run(settings(tmp_path, "rr"))


@pytest.fixture(scope="module")
def recipe():
    """The command of a run that trains, without what would need its prepared data."""
    return ["+recipe=mhgpo_tiny", "mas.tools.search=null"]


@pytest.fixture
def begun(tmp_path, recipe):
    """A folder with a checkpoint of that run."""
    check_same_run(composed(*recipe, f"trainer.default_local_dir={tmp_path}"))
    checkpoints(tmp_path, [2])
    return tmp_path


def test_every_setting_that_changes_what_is_learned_is_named(begun, recipe):
    changed = {
        "actor_rollout_ref.actor.policy_loss.loss_mode": "gspo",
        "actor_rollout_ref.actor.clip_ratio_c": 3.0,
        "actor_rollout_ref.actor.optim.weight_decay": 0.5,
        "actor_rollout_ref.actor.optim.lr_scheduler_type": "cosine",
        "mas.limits.max_calls": 3,
        "mas.judge.model": "other",
        "trainer.v1.trainer_mode": "mas_colocate_async",
        "data.max_response_length": 12,
        "algorithm.gamma": 0.5,
    }
    overrides = [f"{name}={value}" for name, value in changed.items()]
    with pytest.raises(ValueError) as refused:
        check_same_run(composed(*recipe, f"trainer.default_local_dir={begun}", *overrides))
    for name, value in changed.items():
        assert f"\n  {name}: " in str(refused.value) and f" there, {value} here" in str(refused.value), name


def test_the_check_refuses_what_the_start_would_and_writes_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run, given = tmp_path / "runs" / "mhgpo_tiny", ["+recipe=mhgpo_tiny"]
    ensure("data/tiny_world", train_size=64, val_size=8)
    check_same_run(composed(*given))
    checkpoints(run, [2])
    before = sorted(run.rglob("*"))
    assert examine(given).problems == []
    (problem,) = examine([*given, "mas.sampling.strategy=rr"]).problems
    assert "mhgpo_tiny holds a run with other settings" in problem and "strategy: fof there, rr here" in problem
    shutil.rmtree("data")
    report = examine(given)
    assert report.problems == [] and "corpus.jsonl" in dict(report.facts)["not checked"]
    assert sorted(run.rglob("*")) == before


def test_what_a_judge_is_asked_counts_wherever_its_file_is(tmp_path, recipe):
    def run(name, text):
        (tmp_path / name).write_text(text)
        check_same_run(
            composed(*recipe, f"trainer.default_local_dir={tmp_path}", f"mas.judge.templates={tmp_path / name}")
        )

    run("own.yaml", "one")
    checkpoints(tmp_path, [2])
    run("moved.yaml", "one")
    with pytest.raises(ValueError, match="mas.judge.templates: questions of SHA-256"):
        run("own.yaml", "two")


def test_what_changes_only_outputs_machines_and_length_may_change(begun, recipe):
    overrides = ["trainer.total_training_steps=9", "trainer.save_freq=1", "trainer.logger=[console]"]
    overrides += ["actor_rollout_ref.rollout.agent.num_workers=2", "trainer.n_gpus_per_node=2"]
    overrides += ["mas.budget.questions=9", "mas.trajectory_log.every=3", "ray_kwargs.ray_init.num_cpus=3"]
    overrides += ["actor_rollout_ref.actor.ppo_max_token_len_per_gpu=4096", "trainer.experiment_name=other"]
    overrides += ["mas.judge.url=http://host:8301/v1", "mas.judge.concurrency=8", "mas.judge.timeout=60"]
    check_same_run(composed(*recipe, f"trainer.default_local_dir={begun}", *overrides))


def test_the_workers_of_a_node_may_share_a_tool_later():
    tool = {"_target_": "builtins.dict", "a": 1}
    assert identity_of(tool | {"once_per_node": True}) == identity_of(tool) == tool


def test_a_served_agent_may_move_but_not_become_one_of_the_policys(tmp_path):
    def config(url):
        served = {"mas": {"agents": {"summary": {"endpoint": {"url": url, "model": None}}}}}
        return OmegaConf.merge(settings(tmp_path), served)

    check_same_run(config("http://here:8100/v1"))
    checkpoints(tmp_path, [2])
    check_same_run(config("http://there:8200/v1"))
    with pytest.raises(ValueError, match=r"mas.agents.summary.endpoint.url: given there, None here"):
        check_same_run(config(None))


@pytest.mark.parametrize("resume", ["auto", "resume_path"])
def test_a_checkpoint_of_another_number_of_ranks_is_refused(tmp_path, resume):
    def config(nodes, gpus):
        place = str(tmp_path / "global_step_2")
        return settings(tmp_path, resume=resume, resume_from_path=place, nnodes=nodes, n_gpus_per_node=gpus)

    checkpoints(tmp_path, [2])
    for rank in (0, 3):  # of four: the other machine's are on its own disk
        (tmp_path / "global_step_2" / "actor" / f"model_world_size_4_rank_{rank}.pt").touch()
    with pytest.raises(ValueError, match=r"saved by 4 ranks .* this run has 2: 1 × 2\..* Remedy: nnodes × .* = 4; or"):
        check_ranks(config(1, 2))
    check_ranks(config(2, 2))
    check_ranks(settings(tmp_path, resume="disable", nnodes=1, n_gpus_per_node=2))


@pytest.mark.parametrize("given", [None, "nowhere/global_step_2"])
def test_a_checkpoint_to_go_on_from_must_be_there(tmp_path, given):
    with pytest.raises(ValueError, match=f"that trainer.resume_from_path={given} names, which is no folder. Remedy"):
        check_ranks(settings(tmp_path, resume="resume_path", resume_from_path=given))


def test_each_free_setting_is_one_of_verls_or_ours():
    config = composed("+recipe=joyagents_tiny")
    names = {name for key in config if key != "hydra" for name in leaves(plain(config[key]), str(key))}
    optional = {f"mas.agents.*.endpoint.{key}" for key in ("api_key_env", "concurrency", "timeout", "retries")}
    optional |= {f"mas.workflow.models.*.{key}" for key in ("url", "api_key_env", "concurrency", "timeout", "retries")}
    unused = {free for free in FREE if not any(fnmatchcase(name, free) for name in names)}
    assert unused <= optional | {"trainer.remove_previous_*", "trainer.keep_best"}


def test_a_run_is_told_of_a_recorded_cache_that_is_another_one(tmp_path, recipe):
    cache = tmp_path / "answers.db"

    def store(*keys):
        with_results = ResultCache(cache)
        for key in keys:
            with_results.store(CallKey("weather", "1", "{}", key * 32), '"sunny"', "model").result()
        with_results.close()

    backend = f"{{_target_: verl_ext.tools.simulator.simulator, mode: record, cache: {cache}, endpoint: 'http://x'}}"
    tool = f"+mas.tools.world={{_target_: verl_ext.tools.catalogue.tool_call, sources: [], backend: {backend}}}"
    config = composed(*recipe, f"trainer.default_local_dir={tmp_path / 'run'}", tool)
    store(b"m", b"z")
    checkpoints(tmp_path / "run", [2])
    mark_complete(tmp_path / "run", 2, recorded_results(config))
    assert lost_results(config) == []
    store(b"a")  # by the steps after the checkpoint
    assert lost_results(config) == []
    for path in tmp_path.glob("answers.db*"):
        path.unlink()
    store(b"a", b"m")
    (line,) = lost_results(config)
    assert "mas.tools.world.backend: the cache lacks some of the 2 results that it held at" in line
    cache.unlink()
    assert len(lost_results(config)) == 1


def test_a_tool_counts_by_what_its_answers_depend_on(tmp_path, recipe):
    def tool(cache):
        backend = f"{{_target_: verl_ext.tools.simulator.simulator, mode: replay, cache: {cache}}}"
        return f"+mas.tools.world={backend}"

    for name in ("a", "b", "c"):
        ResultCache(tmp_path / f"{name}.db").close()
    with_result = ResultCache(tmp_path / "c.db")
    with_result.store(CallKey("weather", "1", "{}", b"k" * 32), '"sunny"', "model").result()
    with_result.close()
    place = f"trainer.default_local_dir={tmp_path / 'run'}"
    check_same_run(composed(*recipe, place, tool(tmp_path / "a.db")))
    checkpoints(tmp_path / "run", [2])
    check_same_run(composed(*recipe, place, tool(tmp_path / "b.db")))  # another file of the same content
    with pytest.raises(ValueError, match=r"mas.tools.world.cache: \w+ there, \w+ here"):
        check_same_run(composed(*recipe, place, tool(tmp_path / "c.db")))
