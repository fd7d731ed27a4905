"""The newcomer's mistakes: `verl_ext check` tells those that need no run, in the words of the run."""

from __future__ import annotations

import re
import sys

import pytest

from tests.bench.mistakes import write_system
from tests.bench.mistakes_made import MISTAKES
from verl_ext import check

# They show when something is started: the hub is asked, the data are made. Without a recipe, check says it otherwise.
NOT_CHECKED = ("hub_name", "prepare_raises", "no_recipe")
CHECKED = [one for one in MISTAKES if not one.trains and one.name not in NOT_CHECKED]


@pytest.mark.parametrize("mistake", CHECKED, ids=lambda one: one.name)
def test_check_tells_it_in_the_words_of_the_run(mistake, tmp_path, monkeypatch, capsys):
    write_system(tmp_path, mistake)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    sys.modules.pop("capitals", None)  # of another system
    status = check.main(["--strict", "--config-dir", ".", "+recipe=capitals", *mistake.overrides])
    sys.modules.pop("capitals", None)  # of another system
    output = capsys.readouterr()
    said = (output.out + output.err).splitlines()
    assert status and [line for line in said if re.search(mistake.told, line)], "\n".join(said)


def test_every_mistake_is_one_of_the_system(tmp_path):
    assert len({one.name for one in MISTAKES}) == len(MISTAKES) >= 20
    for mistake in MISTAKES:
        write_system(tmp_path / mistake.name, mistake)
        if mistake.name != "module_raises":
            compile((tmp_path / mistake.name / "capitals.py").read_text(), "capitals.py", "exec")
