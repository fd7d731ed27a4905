"""`vllm serve` behind `verl_ext evaluate`: the same greedy trajectories as with the model in this process."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.examples.test_pages import blocks
from tests.rehearse import DTYPE, needs_vllm
from tests.rehearse.engines import ENVIRONMENT, LENGTH
from verl_ext.plugin import package_path

pytestmark = [needs_vllm, pytest.mark.timeout(1800)]
QUESTIONS = 4
# Recipe and its model. Chats; a stream, which is a message of the assistant that is continued, with tool calls and stop
# strings; decisions among given texts, of the model and not of an adapter with the orchestrator's name.
CASES = {"mhgpo_tiny": "mhgpo", "toolpo_tiny": "deepagent", "puppeteer_tiny": "puppeteer"}
OVERRIDES = {"puppeteer_tiny": ["mas.policy=shared"]}


@contextmanager
def served(folder: str, log: Path, *options: str) -> Iterator[str]:
    """The base URL of `vllm serve`."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = ["serve", folder, "--served-model-name", "tiny", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--generation-config", "vllm", "--dtype", DTYPE, "--enforce-eager"]
    command += ["--max-model-len", str(LENGTH), "--kv-cache-memory-bytes", str(2**28), *options]
    with open(log, "w") as written:
        program = [sys.executable, "-m", "vllm.entrypoints.cli.main", *command]
        process = subprocess.Popen(program, env=os.environ | ENVIRONMENT, stdout=written, stderr=written)
    try:
        url, deadline = f"http://127.0.0.1:{port}", time.monotonic() + 600
        while not _answers(f"{url}/health"):
            assert process.poll() is None and time.monotonic() < deadline, log.read_text()[-4000:]
            time.sleep(0.5)
        yield f"{url}/v1"
    finally:
        process.terminate()
        process.wait(60)


def _answers(url: str) -> bool:
    try:
        return urllib.request.urlopen(url, timeout=5).status == 200
    except OSError:
        return False


def evaluated(folder: Path, recipe: str, *overrides: str) -> list[dict[str, Any]]:
    """The trajectories of an evaluation, in the order of the questions."""
    command = [sys.executable, "-m", "verl_ext.evaluate", f"+recipe={recipe}", f"evaluate.output={folder}"]
    command += [f"evaluate.max_questions={QUESTIONS}", *overrides]
    done = subprocess.run(
        command, env=os.environ | ENVIRONMENT, cwd=folder.parent, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    assert "Note:" not in done.stdout, done.stdout
    records = [json.loads(line) for line in (folder / "trajectories.jsonl").read_text().splitlines()]
    return sorted(records, key=lambda record: record["question"]["index"])


def texts(record: dict[str, Any]) -> list[tuple[str, str]]:
    return [(call["agent"], call["output"]) for call in record["calls"]]


@pytest.mark.parametrize("recipe", CASES)
def test_a_served_model_plays_as_the_same_model_here(recipe: str, tmp_path: Path) -> None:
    model = package_path(f"recipe/{CASES[recipe]}/assets/tiny_model")
    overrides = OVERRIDES.get(recipe, [])
    here = evaluated(tmp_path / "here", recipe, f"evaluate.model={model}", *overrides)
    with served(model, tmp_path / "vllm.log") as url:
        there = evaluated(tmp_path / "there", recipe, f"evaluate.endpoint={url}", *overrides)
    assert len(here) == len(there) == QUESTIONS
    for one, other in zip(there, here, strict=True):
        assert texts(one) == texts(other)
        assert one["trajectories"][0]["reward"] == pytest.approx(other["trajectories"][0]["reward"])


# A chat template that shows tools and their calls, as those of models that can call them do: a server shows no others.
TEMPLATE = (
    "{% for tool in tools or [] %}{{ '<|system|> ' + tool | tojson + '<|end|>' }}{% endfor %}"
    "{% for message in messages %}{{ '<|' + message.role + '|> ' + (message.content or '') }}"
    "{% if message.tool_calls %}{{ message.tool_calls | tojson }}{% endif %}{{ '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def test_a_served_model_is_sent_tools_as_the_same_model_here(tmp_path: Path) -> None:
    """The native system of docs/own_system.md, and the options of vLLM that evaluate.md names for it."""
    for block in blocks("own_system.md"):
        name = next(line for line in block.splitlines() if not line.startswith("# @")).removeprefix("# ")
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(block)
    subprocess.run([sys.executable, "make_data.py"], cwd=tmp_path, check=True)
    model, own = tmp_path / "model", f"hydra.searchpath=[file://{tmp_path}]"
    shutil.copytree(package_path("recipe/mhgpo/assets/tiny_model"), model)
    (model / "chat_template.jinja").write_text(TEMPLATE)
    here = evaluated(tmp_path / "here", "capitals_native", own, f"evaluate.model={model}")
    with served(str(model), tmp_path / "vllm.log", "--enable-auto-tool-choice", "--tool-call-parser", "hermes") as url:
        there = evaluated(tmp_path / "there", "capitals_native", own, f"evaluate.endpoint={url}")
    assert [texts(one) for one in there] == [texts(one) for one in here] and len(here) == QUESTIONS
    with served(str(model), tmp_path / "plain.log") as url:
        with pytest.raises(AssertionError, match="Remedy: vllm serve MODEL --enable-auto-tool-choice"):
            evaluated(tmp_path / "refused", "capitals_native", own, f"evaluate.endpoint={url}")
