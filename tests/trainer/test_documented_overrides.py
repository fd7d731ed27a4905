"""Every override that a page of docs/ shows composes with the page's recipes as it is written there."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from tests.trainer.test_recipes import ROOT, composed
from verl_ext.tools.simulator.settings import read_settings
from verl_ext.tools.simulator_server import overrides
from verl_ext.trainer.build import build_workflow
from verl_ext.trainer.config import read_mas_config
from verl_ext.trainer.preflight.checks import check_multi_agent

# A page, and the recipe that its overrides are meant for.
PAGES = [
    ("mhgpo", "mhgpo"),
    ("mhgpo", "mappo"),
    ("reproduce/mhgpo", "mhgpo"),
    ("toolpo", "toolpo_tiny"),
    ("toolpo", "deepagent"),
    ("simulator", "deepagent"),
    ("joyagents", "joyagents_tiny"),
    ("joyagents", "joyagents"),
    ("puppeteer", "puppeteer_tiny"),
    ("puppeteer", "puppeteer"),
    ("smurfs", "smurfs_tiny"),
    ("smurfs", "smurfs"),
    ("reproduce/smurfs", "smurfs"),
    ("web", "puppeteer"),
    ("reproduce/joyagents", "joyagents"),
    ("reproduce/puppeteer", "puppeteer"),
]
OVERRIDE = re.compile(r"(\+{1,2}|~)?[a-z_]+(\.\w+)*=\S*|~[a-z_]+(\.\w+)+")
# Commands that take overrides; `evaluate.*` are an evaluation's own.
COMMAND = re.compile(r"(python -m verl\.trainer\.main_ppo|verl_ext (?:train|evaluate|check)) (.*)")


def shown(text: str) -> list[tuple[str, ...]]:
    """Overrides of a page, those of one line or one `code` together, each line once.

    Lines are those of indented and fenced blocks; what is continued by a backslash is one, comments are left out. What
    has a placeholder (…) is no override.
    """
    text = re.sub(r"\\\n\s*", "", text)
    blocks = re.findall(r"^```\w*\n(.*?)^```", text, re.S | re.M)
    lines = [line.strip() for line in text.splitlines() if line.startswith("    ")]
    lines += [line.strip() for block in blocks for line in block.splitlines()]
    spans = re.findall(r"`([^`]+)`", re.sub(r"^```.*?^```|^    .*?$", "", text, flags=re.S | re.M))
    found = []
    for line in [*lines, *(" ".join(span.split()) for span in spans)]:
        command = COMMAND.match(line)
        said = re.split(r"\s{2,}#|\s#\s", command.group(2) if command else line)[0]
        if "…" in said:
            continue
        try:
            words = shlex.split(said)
        except ValueError:  # an apostrophe: prose
            continue
        if words and all(OVERRIDE.fullmatch(word) for word in words):
            found.append(tuple(word for word in words if not word.startswith("evaluate.")))
    return [words for words in dict.fromkeys(found) if words]


def page(name: str) -> str:
    """The text of docs/<name>.md."""
    return Path(ROOT, "docs", f"{name}.md").read_text(encoding="utf-8")


# What a reader fills in, or has made by another block of the page.
TO_FILL_IN = re.compile(r"…|global_step_N|--config-dir|mas\.plugins|NODE1|\+recipe=capitals|my_prompts")


def commands(text: str) -> list[tuple[str, ...]]:
    """The overrides of each command line that trains or plans a recipe of the package, each once."""
    found = []
    for line in re.sub(r"\\\n\s*", "", text).splitlines():
        command = re.match(r" {4,}(?:python -m verl\.trainer\.main_ppo|verl_ext (?:train|plan)) (.*\+recipe=.*)", line)
        if command and not TO_FILL_IN.search(line):
            words = shlex.split(re.split(r"\s{2,}#|\s#\s", command.group(1))[0])
            found.append(tuple(word for word in words if "=" in word))
    return list(dict.fromkeys(found))


@pytest.mark.parametrize(
    ("recipe", "words"),
    [
        pytest.param(recipe, words, id=f"{recipe}: {' '.join(words)}")
        for name, recipe in PAGES
        for words in shown(page(name))
    ],
)
def test_what_is_documented_composes(recipe, words):
    own = any(word.startswith("+recipe=") for word in words)
    config = composed(*(() if own else (f"+recipe={recipe}",)), *words)
    if any(word.startswith("mas.workflow.orchestration=") for word in words):  # learns nothing: is only evaluated
        assert build_workflow(read_mas_config(config)).trained_agents == []
    else:
        check_multi_agent(config)


@pytest.mark.parametrize(("name", "recipe"), PAGES)
def test_every_page_shows_some(name, recipe):
    assert shown(page(name)), "nothing was found: this module no longer reads what the page is written like"


OTHERS = sorted({path.stem for path in Path(ROOT, "docs").glob("*.md")} - {name for name, _ in PAGES})


@pytest.mark.parametrize(
    "words",
    [pytest.param(words, id=f"{name}: {' '.join(words):.60}") for name in OTHERS for words in commands(page(name))],
)
def test_every_command_of_the_other_pages_is_accepted(words):
    check_multi_agent(composed(*words))


def test_what_counts_as_a_command():
    text = """
    python -m verl.trainer.main_ppo +recipe=r 'a={b: [c, d]}' \\
        e=1       # why
    verl_ext plan +recipe=r --prompt_tokens 1500
    python -m verl.trainer.main_ppo --config-dir . +recipe=mine
    verl_ext view runs/r
"""
    assert commands(text) == [("+recipe=r", "a={b: [c, d]}", "e=1"), ("+recipe=r",)]


def test_what_counts_as_shown():
    text = """
Set `mas.seed=3` or `a.b=1 ~c.d`, not `x = 1`, `ctx.call`, `mas.seed=…` or `f(a=1)`.

    mas.seed=4 \\
        +base=grpo       # why
    mas: {seed: 5}
    verl_ext evaluate +recipe=r evaluate.model=m 'data.val_files=[a,b]'
    python data_prep/x.py --seed=6

```
mas.seed=7
```
"""
    both = [("mas.seed=4", "+base=grpo"), ("+recipe=r", "data.val_files=[a,b]"), ("mas.seed=7",)]
    assert shown(text) == [*both, ("mas.seed=3",), ("a.b=1", "~c.d")]


def test_what_the_simulators_server_prints_is_ready_to_paste():
    config = composed("+recipe=deepagent", *overrides("http://127.0.0.1:8200").split())
    check_multi_agent(config)
    backend = OmegaConf.to_container(config.mas.tools.tool_call.backend)
    assert backend.pop("_target_").endswith(".simulator")
    read = read_settings(backend)
    assert (read.url, read.mode, read.cache, read.endpoint) == ("http://127.0.0.1:8200", "record", None, None)
    assert overrides("http://127.0.0.1:8200").split() in [list(words) for words in shown(page("simulator"))]
