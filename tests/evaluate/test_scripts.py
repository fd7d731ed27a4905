"""What the scripts of Table 1 make of an evaluation."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = """
source {root}/examples/table1/common.sh
runs={folder}/runs
serve() {{ :; }}
evaluated() {{ mkdir -p "$1" && cp {folder}/results.json "$1"; }}
python() {{
  case "$*" in
    *verl_ext.evaluate*) evaluated "$(printf '%s\\n' "$@" | sed -n 's/^evaluate.output=//p')";;
    *) command python "$@";;
  esac
}}
evaluate row MODEL
"""


@pytest.mark.skipif(not shutil.which("curl"), reason="the scripts need curl")
@pytest.mark.parametrize(("failed", "missing", "finished"), [({}, 0, True), ({"timeout": 1}, 0, False), ({}, 2, False)])
def test_an_evaluation_with_failures_is_not_finished(tmp_path, failed, missing, finished):
    data = {"a": {"failed": {}, "missing": 0}, "b": {"failed": failed, "missing": missing}}
    (tmp_path / "results.json").write_text(json.dumps({"data": data}))
    script = SCRIPT.format(root=ROOT, folder=tmp_path)
    inherited = {name: value for name, value in os.environ.items() if name not in ("DRY_RUN", "MODEL")}
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=500, env=inherited)
    assert done.returncode == 0, done.stderr
    (output,) = tmp_path.glob("runs/**/results.json")
    assert output.with_name("finished").exists() is finished
    assert ("the same command asks them again" in done.stderr) is not finished
