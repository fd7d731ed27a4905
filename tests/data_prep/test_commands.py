"""The six commands as a user starts them: help with an example, by path and as modules, misspelt names."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from verl_ext.arguments import Parser
from verl_ext.data_prep import corpus, environments, mix, qa, reasoning, tools
from verl_ext.recipe.cold_start import train
from verl_ext.recipe.joyagents.cold_start import sft_demonstrations
from verl_ext.recipe.joyagents.data import rl_questions, sft_conversations
from verl_ext.worlds.__main__ import WORLDS
from verl_ext.worlds.__main__ import main as worlds

ROOT = Path(__file__).parents[2]
SUBCOMMANDS = {
    qa: ["", *qa.SOURCES],
    tools: ["", *tools.SOURCES],
    reasoning: ["", *reasoning.SETS],
    environments: ["", "alfworld", "webshop"],
    corpus: [""],
    mix: [""],
}
NAMES = ("corpus", "environments", "mix", "qa", "reasoning", "tools")
OTHERS = {rl_questions: [""], sft_conversations: [""], sft_demonstrations: [""], train: [""]}
HELPS = [(module.main, name) for module, names in (SUBCOMMANDS | OTHERS).items() for name in names]
HELPS += [(worlds, name) for name in ("", *WORLDS)]


class Accepted(Exception):
    """The parser has accepted a command line."""


@pytest.mark.parametrize(("main", "name"), HELPS)
def test_every_help_shows_an_example_that_its_parser_accepts(main, name, capsys, monkeypatch):
    with pytest.raises(SystemExit, match="0"):
        main([name, "--help"] if name else ["--help"])
    shown = capsys.readouterr().out.replace("\\\n", " ")
    script = Path(sys.modules[main.__module__].__file__)
    command = rf"^    python (?:\S*{script.name}|-m {main.__module__.removesuffix('.__main__')}) ({name}.*)"
    examples = re.findall(command, shown, re.MULTILINE)
    assert examples, shown
    parse = Parser.parse_args

    def accept(parser, argv=None):
        parse(parser, argv)
        raise Accepted

    monkeypatch.setattr(Parser, "parse_args", accept)
    for example in examples:
        with pytest.raises(Accepted):
            main(shlex.split(example))


def test_misspelt_names_are_answered_with_the_closest_one(capsys):
    for main, given, message in (
        (qa.main, ["hotpotq"], "invalid choice: 'hotpotq' .*; did you mean 'hotpotqa'"),
        (tools.main, ["toolbensh"], "did you mean 'toolbench'"),
        (tools.main, ["restbench", "--output_dir", "x", "--scenario", "tmbd"], "did you mean 'tmdb'"),
        (reasoning.main, ["gsm_hard", "--limt", "3"], "unrecognized arguments: --limt 3; did you mean '--limit'"),
        (corpus.main, ["--input", "a", "--output_dir", "b", "--backend", "dens"], "did you mean 'dense'"),
        (worlds, ["shopp"], "did you mean 'shop'"),
        (qa.main, ["zzz"], r"invalid choice: 'zzz' \([^)]*\)$"),
    ):
        with pytest.raises(SystemExit, match="2"):
            main(given)
        assert re.search(message, capsys.readouterr().err.strip()), message


@pytest.mark.parametrize("how", [[str(ROOT / "data_prep" / "reasoning.py")], ["-m", "verl_ext.data_prep.reasoning"]])
def test_scripts_run_by_path_and_as_modules(how, tmp_path):
    (tmp_path / "c.jsonl").write_text('{"concepts": ["dog", "run"]}\n')
    command = [sys.executable, *how, "commongen_hard", "--output_dir", str(tmp_path / "o"), "--local_dataset_path"]
    done = subprocess.run([*command, "c.jsonl"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0 and "parquet: 1 rows" in done.stdout, done.stderr
    done = subprocess.run([*command, "none"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr.startswith("error: --local_dataset_path none does not exist")


def test_help_imports_nothing_heavy():
    modules = "verl_ext.worlds.__main__", *(f"verl_ext.data_prep.{name}" for name in NAMES)
    heavy = ("torch", "verl", "transformers", "pyarrow", "datasets")
    program = f"import sys, {', '.join(modules)}; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done
