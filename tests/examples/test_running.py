"""examples/table1 with stand-ins for python, vllm and curl: order, own servers, what is there already, failures."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.examples.dry_run import EXAMPLES, loaded

# Servers leave a mark at their port; `curl` answers where there is one. Everything else makes what the real one makes.
STAND_IN = """#!/bin/bash
program=$(basename "$0")
echo "$program $*" >>calls
after() { local name=$1; shift; while [ $# -gt 0 ]; do [ "$1" = "$name" ] && echo "$2" && return; shift; done; }
stay() { touch "serving-$1"; trap 'rm -f "serving-$1"; exit 0' TERM; while true; do sleep 0.05; done; }
case "$program $*" in
  curl*/health) [ -e "serving-$(sed 's|.*:\\([0-9]*\\)/health|\\1|' <<<"$*")" ];;
  curl*) touch "$(after --output "$@")";;
  *verl_ext.check*) [ ! -e unfit ];;
  *import*faiss*) [ ! -e no-faiss ];;
  vllm*) [ -e broken ] && echo "CUDA out of memory" && exit 1; stay 8100;;
  *retrieval_server*) [ "${SERVER:-}" = ends ] && echo "cannot listen" && exit 2; stay 8000;;
  *data_prep/corpus*) mkdir -p "$(after --output_dir "$@")"; touch "$(after --output_dir "$@")/meta.json";;
  *data_prep*) mkdir -p "$(after --output_dir "$@")"; touch "$(after --output_dir "$@")"/{test.parquet,corpus.jsonl};;
  *passages.py*) touch "$(after --output "$@")";;
  *main_ppo*) folder=$(tr ' ' '\\n' <<<"$*" | sed -n 's/trainer.default_local_dir=//p')
    mkdir -p "$folder"; echo 176 >"$folder/latest_checkpointed_iteration.txt";;
  *model_merger*) mkdir -p "$(after --target_dir "$@")";;
  *verl_ext.evaluate*--cfg*) ;;
  *verl_ext.evaluate*) mkdir -p "$(tr ' ' '\\n' <<<"$*" | sed -n 's/evaluate.output=//p')";;
esac
"""


@pytest.fixture
def clone(tmp_path):
    """A folder with the examples and stand-ins in bin/."""
    shutil.copytree(EXAMPLES, tmp_path / "examples")
    (tmp_path / "bin").mkdir()
    for name in ("python", "curl", "vllm"):
        (tmp_path / "bin" / name).write_text(STAND_IN)
        (tmp_path / "bin" / name).chmod(0o755)
    (tmp_path / "bin" / "sleep").write_text("#!/bin/sh\nexec /bin/sleep 0.05\n")
    (tmp_path / "bin" / "sleep").chmod(0o755)
    return tmp_path


def run(clone: Path, script: str = "table1/mhgpo_rr.sh", **environment: str) -> tuple[int, str, str]:
    """Exit status, output, and the stand-ins' calls (health checks left out)."""
    (clone / "calls").write_text("")
    inherited = {name: value for name, value in os.environ.items() if name not in ("MODEL", "GPUS", "RETRIEVAL")}
    settings = inherited | {"PATH": f"{clone}/bin:{os.environ['PATH']}"} | environment
    done = subprocess.run(
        ["bash", f"examples/{script}"], cwd=clone, env=settings, capture_output=True, text=True, timeout=500
    )
    calls = [line for line in (clone / "calls").read_text().splitlines() if not line.endswith("/health")]
    return done.returncode, done.stdout + done.stderr, "\n".join(calls)


def test_a_row_from_an_empty_clone(clone):
    status, output, calls = run(clone)
    assert status == 0, output
    order = ["verl_ext.check", "qa.py hotpotqa", "psgs_w100", "passages.py", "--similarity dot --dense_index ivf"]
    order += ["retrieval_server", "main_ppo", "global_step_176/actor", "vllm serve", "verl_ext.evaluate", "table.py"]
    places = [calls.index(part) for part in order]
    assert places == sorted(places), calls
    assert (clone / "runs/table1/Llama-3.1-8B-Instruct/mhgpo_rr/model").is_dir()
    assert not list(clone.glob("serving-*")), "a server is left running"


def test_a_row_goes_on_where_it_failed(clone):
    (clone / "broken").touch()
    status, output, calls = run(clone)
    assert status == 1 and "CUDA out of memory" in output and "vllm has ended, see vllm.log" in output
    assert "verl_ext.evaluate" not in calls and not list(clone.glob("serving-*"))
    (clone / "broken").unlink()
    status, output, calls = run(clone)
    assert status == 0 and "verl_ext.evaluate" in calls and "there already" in output
    assert not any(part in calls for part in ("data_prep", "psgs_w100", "main_ppo", "model_merger")), calls
    status, output, calls = run(clone)
    assert status == 0 and "vllm" not in calls and "table.py" in calls


def test_a_row_that_was_moved_away_is_trained_and_evaluated_again(clone):
    run(clone)
    row = clone / "runs/table1/Llama-3.1-8B-Instruct/mhgpo_rr"
    assert (row / "eval" / "finished").exists()
    row.rename(clone / "mine")
    status, output, calls = run(clone)
    assert status == 0 and "main_ppo" in calls and "verl_ext.evaluate" in calls, output


def test_a_killed_training_goes_on_and_only_its_last_checkpoint_stays_once_it_is_merged(clone):
    folder = clone / "runs/table1/Llama-3.1-8B-Instruct/mhgpo_rr"
    for step in (40, 160, 176):
        (folder / f"global_step_{step}" / "actor").mkdir(parents=True)
    (folder / "latest_checkpointed_iteration.txt").write_text("40")
    status, output, calls = run(clone)
    assert "main_ppo" in calls, "a killed training is not taken for a finished one"
    assert status == 0 and [path.name for path in folder.glob("global_step_*")] == ["global_step_176"], output


@pytest.mark.parametrize("script", ["all", "mhgpo_rr", "single_llm_rl"])
def test_a_machine_that_cannot_train_is_told_before_anything_is_downloaded(clone, script):
    (clone / "unfit").touch()
    status, _, calls = run(clone, f"table1/{script}.sh")
    assert status == 1 and "verl_ext.check --here" in calls and "data_prep" not in calls


def test_without_the_packages_of_dense_retrieval_no_index_is_begun(clone):
    (clone / "no-faiss").touch()
    status, output, calls = run(clone, "table1/mas.sh")
    assert status == 1 and "lacks faiss or sentence_transformers" in output and "psgs_w100" not in calls


def test_an_adapter_is_served_with_its_base(clone):
    adapter = clone / "runs/table1/Llama-3.1-8B-Instruct/mhgpo_rr/model/lora_adapter"
    adapter.mkdir(parents=True)
    status, output, calls = run(clone)
    assert status == 0, output
    assert f"--enable-lora --max-lora-rank 64 --lora-modules mhgpo_rr={adapter.relative_to(clone)}" in calls
    assert "--served-model-name base" in calls and "evaluate.model=mhgpo_rr " in calls


def test_somebody_else_s_server_is_refused(clone):
    (clone / "serving-8000").touch()
    status, output, calls = run(clone)
    assert status == 1 and "a server already answers at http://127.0.0.1:8000/health" in output
    assert "retrieval_server" not in calls and "main_ppo" not in calls


def test_a_retrieval_server_that_ends_stops_the_script(clone):
    status, output, calls = run(clone, SERVER="ends")
    assert status == 1 and "cannot listen" in output and "main_ppo" not in calls


def test_all_rows_share_one_retrieval_server(clone):
    status, output, calls = run(clone, "table1/all.sh")
    assert status == 0, output
    assert calls.count("retrieval_server") == 1 and calls.count("vllm serve") == 7 and calls.count("main_ppo") == 5


def test_passages_of_the_dump(tmp_path):
    script, source = EXAMPLES / "table1" / "passages.py", tmp_path / "p.tsv.gz"
    with gzip.open(source, "wt") as out:
        out.write('id\ttext\ttitle\n1\t"Aaron ( or ; ""Ahärôn"") is a\u2028prophet"\tAaron\n2\tplain\tB "b"\n')
    command = [sys.executable, script, "--input", source, "--output", tmp_path / "p.jsonl"]
    assert subprocess.run(command, capture_output=True, timeout=500).returncode == 0
    rows = [json.loads(line) for line in (tmp_path / "p.jsonl").read_text().split("\n")[:-1]]
    first = {"pid": "1", "title": "Aaron", "text": 'Aaron ( or ; "Ahärôn") is a\u2028prophet'}
    assert rows == [first, {"pid": "2", "title": 'B "b"', "text": "plain"}]
    (tmp_path / "p.jsonl").unlink()
    source.write_bytes(source.read_bytes()[:-12])
    done = subprocess.run(command, capture_output=True, text=True, timeout=500)
    assert done.returncode == 2 and "error:" in done.stderr and not (tmp_path / "p.jsonl").exists()


def test_the_table(tmp_path):
    table = loaded(EXAMPLES / "table1" / "table.py")
    folder = tmp_path / "Llama-3.1-8B-Instruct"
    (folder / "mhgpo_rr" / "eval").mkdir(parents=True)
    scores = {"metrics": {name: {"mean": mean} for name, mean in (("em", 0.37043), ("acc", 0.4), ("f1", 0.5))}}
    data = {"hotpotqa": scores | {"questions": 10, "answered": 9}, "musique": scores | {"questions": 3, "answered": 3}}
    (folder / "mhgpo_rr" / "eval" / "results.json").write_text(json.dumps({"data": data}))
    lines = table.table(folder).splitlines()
    ours, mappo = (next(line for line in lines if line.startswith(f"| {title} |")) for title in ("MHGPO-RR", "MAPPO"))
    assert ours.startswith("| MHGPO-RR | 40.000 (40.864) | 37.043 (37.043) | 50.000 (49.724) | – (36.840) |")
    assert mappo.startswith("| MAPPO | – (38.217) | – (34.450) |")
    assert "MHGPO-RR, hotpotqa: only 9 of 10 answered, means are over those." in lines
    assert {len(line.split("|")) for line in lines if line.startswith("|")} == {12}
    (folder / "mappo" / "eval").mkdir(parents=True)
    (folder / "mappo" / "eval" / "results.json").write_text("{}")
    with pytest.raises(ValueError, match="mappo/eval/results.json is no result of verl_ext.evaluate"):
        table.table(folder)
    assert "The paper has no Qwen2.5-3B-Instruct" in table.table(tmp_path / "Qwen2.5-3B-Instruct")
