"""What a run needs is looked at before Ray and the models start: tools, data, preparation, packages."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.trainer.test_recipes import composed
from verl_ext.trainer.preflight.checks import check_tools
from verl_ext.trainer.preflight.data import check_data


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["+mas.tools.search.topp=3"], r"mas.tools.search: unknown settings of the search tool: ..topp"),
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


def test_tools_that_can_work(tmp_path):
    (tmp_path / "c.jsonl").write_text("{}")
    check_tools(composed("+recipe=mhgpo_tiny", f"mas.tools.search.corpus={tmp_path / 'c.jsonl'}"))
    unasked = ["mas.tools.search.url=http://127.0.0.1:9", "+mas.tools.search.check=false"]
    check_tools(composed("+recipe=mhgpo_tiny", "mas.tools.search.corpus=null", *unasked))


def questions(path: Path, info: list, source: str = "mine") -> Path:
    """A parquet file in verl's schema with these extra_info values."""
    columns = {
        "prompt": [[{"role": "user", "content": "q"}]] * len(info),
        "reward_model": [{"style": "rule"}] * len(info),
        "data_source": [source] * len(info),
    }
    pq.write_table(pa.table({**columns, "extra_info": info}), path)
    return path


def test_questions_need_numbers_of_their_own(tmp_path):
    one = questions(tmp_path / "one.parquet", [{"index": 0}, {"index": 1}])
    two = questions(tmp_path / "two.parquet", [{"index": 2}, {"index": 1}])
    none = questions(tmp_path / "none.parquet", [{"number": 0}])
    other = questions(tmp_path / "other.parquet", [{"index": 0}, {"index": 1}], source="another data set")
    small = "data.train_batch_size=2"
    both = f"data.val_files=[{one},{other}]"
    check_data(composed("+recipe=mhgpo_tiny", small, f"data.train_files={one}", both))
    check_data(composed("+recipe=mhgpo_tiny", small, f"data.train_files={one}", f"data.val_files={two}"))
    for files, message in (
        (f"[{one},{two}]", "two.parquet: .*extra_info.index 1 of data_source 'mine' is also in .*one.parquet"),
        (str(none), "none.parquet: extra_info has no field index"),
    ):
        with pytest.raises(ValueError, match=message):
            check_data(composed("+recipe=mhgpo_tiny", small, f"data.train_files={files}", f"data.val_files={one}"))


@pytest.mark.parametrize("prompt", [[], None, [{"role": "user", "content": None}], [{"role": "user", "content": " "}]])
def test_a_row_without_a_question_is_named(tmp_path, prompt):
    path, small = questions(tmp_path / "two.parquet", [{"index": 0}, {"index": 1}]), "data.train_batch_size=2"
    rows = pq.read_table(path).to_pylist()
    rows[1]["prompt"] = prompt
    pq.write_table(pa.Table.from_pylist(rows), path)
    with pytest.raises(ValueError, match=r"two.parquet, row 1: prompt must be a list of messages with a content"):
        check_data(composed("+recipe=mhgpo_tiny", small, f"data.train_files={path}", f"data.val_files={path}"))


def test_a_failing_preparation_stops_the_run(tmp_path):
    (tmp_path / "prep.py").write_text("def fail(**_):\n    raise KeyError('mine')\n")
    command = [sys.executable, "-m", "verl.trainer.main_ppo", "+recipe=mhgpo_tiny", "mas.prepare={_target_: prep.fail}"]
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2 and "KeyError" in done.stderr and "This run cannot start" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "messages"),
    [
        (["+recipe=mhgpo"], ["+recipe=mhgpo_tiny", "not installed"]),
        (["+recipe=mgpo"], ["mhgpo_tiny", "mappo"]),
        (["recipe=mhgpo_tiny"], ["+recipe=mhgpo_tiny"]),
        (["+recipe=mhgpo_tiny", "ray_kwargs.ray_init.num_cpus=4"], ["num_cpus=4", "num_cpus=6 or more"]),
        (["+recipe=mhgpo_tiny", "data.train_files=nowhere.parquet"], ["nowhere.parquet does not exist"]),
    ],
)
def test_a_run_that_cannot_start_stops_at_once_with_the_remedy(arguments, messages, tmp_path):
    command = [sys.executable, "-m", "verl.trainer.main_ppo", *arguments]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    output = done.stdout + done.stderr
    assert done.returncode != 0
    assert "Started a local Ray instance" not in output
    for message in messages:
        assert message in output, output[-3000:]
