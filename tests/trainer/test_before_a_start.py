"""What a run needs is looked at before Ray and the models start: tools, data, preparation, packages."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hydra.core.global_hydra import GlobalHydra
from omegaconf import OmegaConf

from tests.trainer.test_recipes import composed
from verl_ext.engine import preload
from verl_ext.engine.freed_memory import HUGE_PAGES
from verl_ext.evaluate.questions import read_tasks
from verl_ext.mas import Agent, Workflow
from verl_ext.tracebacks import explained
from verl_ext.trainer import run_callback
from verl_ext.trainer.build import build_tools
from verl_ext.trainer.config import read_mas_config
from verl_ext.trainer.preflight.checks import check_tools
from verl_ext.trainer.preflight.data import check_data
from verl_ext.trainer.state.checkpoint import SETTINGS_FILE, lock_run


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["+mas.tools.search.topp=3"], r"mas.tools.search: unknown settings of the search tool ..topp"),
        (["mas.tools.search.corpus=null", "+mas.tools.search.index=/nowhere"], "no index at /nowhere"),
        (["mas.tools.search.corpus=/no/c.jsonl"], "the corpus /no/c.jsonl does not exist"),
        (["mas.tools.search.corpus=null"], "no source given"),
        (
            ["mas.tools.search.corpus=null", "mas.tools.search.url=http://127.0.0.1:9", "+mas.tools.search.attempts=1"],
            "no answer from the retrieval server at http://127.0.0.1:9/health",
        ),
        (
            ["mas.tools.search._target_=tests.trainer.test_before_a_start.questions"],
            "mas.tools.search: .*argument: 'path'",
        ),
        (["mas.tools.search._target_=tests.trainer.nothing"], "mas.tools.search: .*nothing"),
    ],
)
def test_a_tool_that_cannot_work_is_noticed_before_anything_starts(settings, message):
    with pytest.raises(ValueError, match=message):
        check_tools(composed("+recipe=mhgpo_tiny", *settings))


async def look_up(country, atlas=None):
    return (atlas or {}).get(country, "nowhere")


def plain(country):
    return country


def built():
    return "no tool"


def tool(target: str, **settings):
    """A configuration with one tool of this module, as its section."""
    config = composed("+recipe=mhgpo_tiny")
    config.mas.tools = {"atlas": {"_target_": f"tests.trainer.test_before_a_start.{target}"} | settings}
    return config


def test_an_asynchronous_function_is_a_tool_by_itself():
    config = tool("look_up", atlas={"Osk": "Pell"})
    check_tools(config)
    assert asyncio.run(build_tools(read_mas_config(config).tools)["atlas"](country="Osk")) == "Pell"
    with pytest.raises(ValueError, match="mas.tools.atlas: .*unexpected keyword argument 'maps'"):
        check_tools(tool("look_up", maps=1))


def test_a_tool_that_is_no_factory_is_named_with_its_place():
    with pytest.raises(ValueError, match=r"mas.tools.atlas: .*'country'. plain \(.*_start.py:\d+\) must be a factory"):
        check_tools(tool("plain"))
    with pytest.raises(ValueError, match=r"mas.tools.atlas: built \(.*_start.py:\d+\) returned 'no tool'"):
        build_tools(read_mas_config(tool("built")).tools)
    check_tools(tool("plain", _partial_=True))
    assert build_tools(read_mas_config(tool("plain", _partial_=True)).tools)["atlas"]("Osk") == "Osk"


def test_tools_that_can_work(tmp_path):
    (tmp_path / "c.jsonl").write_text("{}")
    check_tools(composed("+recipe=mhgpo_tiny", f"mas.tools.search.corpus={tmp_path / 'c.jsonl'}"))
    unasked = ["mas.tools.search.url=http://127.0.0.1:9", "+mas.tools.search.check=false"]
    check_tools(composed("+recipe=mhgpo_tiny", "mas.tools.search.corpus=null", *unasked))


class Unscored(Workflow):
    agents = {"drafter": Agent(str)}

    async def run(self, task, ctx): ...

    def reward(self, task, result): ...


MESSAGES = [{"role": "user", "content": "q"}]
TWO = [{"index": 0}, {"index": 1}]


TRUTH = {"ground_truth": {"target": ["a"]}}


def questions(path: Path, info: list, source: str = "mine", prompt: object = "q", truth: object = TRUTH) -> Path:
    """A parquet file in verl's schema with these extra_info values; `prompt` and `truth` are those of the last row."""
    asked = [MESSAGES] * (len(info) - 1) + [MESSAGES if prompt == "q" else prompt]
    scored = [TRUTH] * (len(info) - 1) + [truth]
    columns = {"prompt": asked, "reward_model": scored, "data_source": [source] * len(info)}
    pq.write_table(pa.table({**columns, "extra_info": info}), path)
    return path


def check(train: object, val: object, batch: int = 2) -> None:
    given = {"train_files": str(train), "val_files": val if isinstance(val, list) else str(val)}
    check_data(OmegaConf.create({"data": {**given, "train_batch_size": batch}}))


def test_questions_need_numbers_of_their_own(tmp_path):
    one, two = (
        questions(tmp_path / "one.parquet", TWO),
        questions(tmp_path / "two.parquet", [{"index": 2}, {"index": 1}]),
    )
    other = questions(tmp_path / "other.parquet", TWO, source="another data set")
    check(one, [str(one), str(other)])
    check(one, two)
    with pytest.raises(ValueError, match="two.parquet: .*index 1 of data_source 'mine' is also in .*one.parquet"):
        check(one, [str(one), str(two)])


def test_data_files_that_cannot_be_used_are_named(tmp_path):
    one, none = questions(tmp_path / "one.parquet", TWO), questions(tmp_path / "none.parquet", [{"number": 0}])
    text, bare = tmp_path / "text.parquet", tmp_path / "bare.parquet"
    text.write_text("no parquet")
    pq.write_table(pa.table({"prompt": ["q"]}), bare)
    for path, message in (
        (none, "none.parquet: extra_info has no field index"),
        ("nowhere.parquet", "nowhere.parquet does not exist"),
        (text, "text.parquet cannot be read as parquet"),
        (bare, "bare.parquet lacks the column.s. reward_model, extra_info"),
    ):
        with pytest.raises(ValueError, match=message) as refused:
            check(path, one)
        assert "pyarrow" not in explained(refused.value), "no code of the user's is the reason"
    with pytest.raises(ValueError, match="hold 2 questions, fewer than data.train_batch_size=3"):
        check(one, one, batch=3)
    with pytest.raises(ValueError, match="data.val_files is not set"):
        check(one, [])
    pq.write_table(pq.read_table(one).slice(0, 0), tmp_path / "empty.parquet")
    with pytest.raises(ValueError, match="data.val_files hold no question"):
        check(one, tmp_path / "empty.parquet")


@pytest.mark.parametrize("prompt", [[], None, [{"role": "user", "content": None}], [{"role": "user", "content": " "}]])
def test_a_row_without_a_question_is_named(tmp_path, prompt):
    path = questions(tmp_path / "two.parquet", TWO, prompt=prompt)
    with pytest.raises(ValueError, match=r"two.parquet, row 1: prompt must be a list of messages with a content"):
        check(path, path)


@pytest.mark.parametrize(("rows", "row"), [(TWO, 1), (TWO[:1], 0)])
def test_a_row_without_a_ground_truth_is_named_where_the_reward_needs_one(tmp_path, rows, row):
    """In the second file there is no such field at all."""
    path = questions(tmp_path / "q.parquet", rows, truth={"style": "rule"})
    given = [f"data.train_files={path}", f"data.val_files={path}", "data.train_batch_size=1"]
    config = composed("+recipe=mhgpo_tiny", *given)
    with pytest.raises(ValueError, match=rf"q.parquet, row {row}: reward_model has no ground_truth, which the reward"):
        check_data(config)
    with pytest.raises(ValueError, match=rf"row {row}: reward_model has no ground_truth"):
        read_tasks(str(path), truth=True)
    config.mas.workflow, config.mas.agents = {"_target_": "tests.trainer.test_before_a_start.Unscored"}, {}
    check_data(config)


@pytest.mark.parametrize(
    ("arguments", "messages"),
    [
        (["+recipe=mhgpo"], ["+recipe=mhgpo_tiny", "not installed"]),
        ([], ["no recipe is given", "+recipe=mhgpo_tiny"]),
        (["+recipe=mhgpo_tiny", "mas.sampling.stategy=fof"], ["mas.sampling.stategy; did you mean 'strategy'"]),
        (
            ["+recipe=mhgpo_tiny", "mas.tools.search={_target_: prep.tool}"],
            ["This run cannot start.\nmas.tools.search: missing a required argument: 'word'"],
        ),
        (
            ["+recipe=mhgpo_tiny", "mas.prepare={_target_: prep.fail}"],
            ["prep.py\", line 2, in fail\n    raise KeyError('mine')", "This run cannot start"],
        ),
    ],
)
def test_a_run_that_cannot_start_stops_at_once_with_the_remedy(arguments, messages, tmp_path):
    (tmp_path / "prep.py").write_text("def fail(**_):\n    raise KeyError('mine')\ndef tool(word): ...\n")
    status, output = forked_run(arguments, tmp_path)
    assert status == 2 and "Started a local Ray instance" not in output and "HYDRA_FULL_ERROR" not in output
    assert all(message in output for message in messages) and "run_callback.py" not in output, output[-3000:]


def test_a_command_that_is_refused_changes_nothing_of_the_run_that_trains_there(tmp_path):
    folder = tmp_path / "run"
    config = composed("+recipe=mhgpo_tiny", f"trainer.default_local_dir={folder}")
    with lock_run(config):
        (folder / SETTINGS_FILE).write_text('{"mas.sampling.strategy": "fof"}')
        other = ["+recipe=mhgpo_tiny", f"trainer.default_local_dir={folder}", "mas.sampling.strategy=rr"]
        status, output = forked_run(other, tmp_path)
    assert status == 2 and f"another process trains into {folder}" in output, output[-3000:]
    assert (folder / SETTINGS_FILE).read_text() == '{"mas.sampling.strategy": "fof"}'


def test_hydra_prints_the_whole_configuration_without_starting(tmp_path):
    status, output = forked_run(["+recipe=mhgpo", "--cfg", "job"], tmp_path)
    assert status == 0 and OmegaConf.create(output).mas.sampling.strategy == "rr", output[-3000:]


def forked_run(arguments: list[str], folder: Path) -> tuple[int, str]:
    """Status and output of `python -m verl.trainer.main_ppo` in a fork, which has everything imported."""
    from verl.trainer import main_ppo

    output = folder / "output.txt"
    child = os.fork()
    if not child:
        status = 1
        try:
            file = os.open(output, os.O_WRONLY | os.O_CREAT)
            os.dup2(file, 1), os.dup2(file, 2)
            sys.stdout, sys.stderr = open(1, "w"), open(2, "w")
            os.chdir(folder)
            sys.path.insert(0, str(folder))
            sys.argv = ["main_ppo.py", *arguments]
            GlobalHydra.instance().clear()
            sys.settrace(None)  # Hydra explains no error where it sees a debugger, or coverage
            main_ppo.main()
            status = 0
        except SystemExit as error:
            status = error.code
        finally:
            sys.stdout.flush(), sys.stderr.flush()
            os._exit(status)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status), output.read_text()


@pytest.mark.parametrize(
    ("size", "settings", "follows"),
    [
        (10, {}, False),
        (3000, {}, True),
        (3000, {"mas": {"deterministic": True}}, False),
        (3000, {"trainer": {"v1": {"trainer_mode": "mas_separate_async"}}}, False),
    ],
)
def test_large_models_get_huge_pages_and_the_threads_that_are_idle(tmp_path, monkeypatch, size, settings, follows):
    monkeypatch.setattr(run_callback, "LARGE", 2000)
    monkeypatch.setattr("verl_ext.engine.hf.hardware.bounded", lambda: False)
    (tmp_path / "model.safetensors").write_bytes(b"0" * size)
    config = {"actor_rollout_ref": {"model": {"path": str(tmp_path)}}} | settings
    given = run_callback.openmp(OmegaConf.create(config))
    assert (preload.ADAPTS in given, preload.SPINS in given) == (follows, not follows)
    assert (HUGE_PAGES in given) == (size == 3000)
