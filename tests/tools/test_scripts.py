"""examples/hotpotqa_8gpu.sh with stand-ins for python and curl, and `make clean`."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
SCRIPT = "examples/hotpotqa_8gpu.sh"
# A curl that answers as $HEALTH says, and a python that writes down its arguments; as a server it ends or stays.
CURL = '#!/bin/sh\n[ "$HEALTH" = always ] || { [ "$HEALTH" = server ] && [ -e serving ]; }\n'
PYTHON = """#!/bin/sh
echo "$*" >>calls
case "$*" in *retrieval_server*)
  touch serving
  [ "$SERVER" = stays ] || { echo "error: cannot listen"; exit 2; }
  exec /bin/sleep 30;;
esac
"""


def run_example(tmp_path, **environment):
    """(exit status, output, calls of python) of the script in a folder of its own."""
    (tmp_path / "examples").mkdir()
    shutil.copy(REPOSITORY / SCRIPT, tmp_path / SCRIPT)
    for name, text in (("curl", CURL), ("python", PYTHON), ("sleep", "#!/bin/sh\nexec /bin/sleep 0.1\n")):
        (tmp_path / "bin").mkdir(exist_ok=True)
        (tmp_path / "bin" / name).write_text(text)
        (tmp_path / "bin" / name).chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}/bin:{os.environ['PATH']}", **environment}
    command = ["bash", str(tmp_path / SCRIPT), "passages.jsonl"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=20)
    return done.returncode, done.stdout + done.stderr, (tmp_path / "calls").read_text()


def test_example_refuses_a_server_that_is_not_its_own(tmp_path):
    status, output, calls = run_example(tmp_path, HEALTH="always", SERVER="stays")
    assert status == 1 and "already answers on port 8000" in output
    assert "retrieval_server" not in calls and "main_ppo" not in calls


def test_example_stops_when_its_server_ends(tmp_path):
    status, output, calls = run_example(tmp_path, HEALTH="never", SERVER="ends")
    assert status == 1 and "cannot listen" in output and "main_ppo" not in calls


def test_example_trains_with_its_own_server_and_the_papers_retriever(tmp_path):
    status, output, calls = run_example(tmp_path, HEALTH="server", SERVER="stays")
    assert status == 0 and "4/4" in output and "main_ppo" in calls
    assert "--backend dense --model facebook/contriever --dense_index ivf" in calls


@pytest.mark.parametrize("script", sorted(path.name for path in (REPOSITORY / "examples").glob("*.sh")))
def test_examples_are_valid_bash(script):
    checked = subprocess.run(
        ["bash", "-n", str(REPOSITORY / "examples" / script)], capture_output=True, text=True, timeout=20
    )
    assert checked.returncode == 0, checked.stderr


@pytest.mark.skipif(shutil.which("make") is None, reason="no make")
def test_make_clean_keeps_prepared_data_and_checkpoints(tmp_path):
    shutil.copy(REPOSITORY / "Makefile", tmp_path)
    for name in (".venv", ".pytest_cache", ".ruff_cache", ".hypothesis", "outputs", "data", "runs"):
        (tmp_path / name).mkdir()
    environment = {key: value for key, value in os.environ.items() if key not in ("VENV", "MAKEFLAGS")}
    subprocess.run(["make", "clean"], cwd=tmp_path, env=environment, check=True, capture_output=True, timeout=20)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["Makefile", "data", "runs"]
