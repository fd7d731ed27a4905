"""docs/reproduce: a point of a paper names its test, or says that it has none; the tests that are named are there."""

from __future__ import annotations

import re

import pytest

from tests.examples.dry_run import ROOT

PAGES = sorted((ROOT / "docs" / "reproduce").glob("*.md"))
NAMED = re.compile(r"`([\w/]*test_\w+\.py)(?:::(\w+))?`")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_tests_that_a_page_names_are_there(page):
    for file, name in NAMED.findall(page.read_text(encoding="utf-8")):
        path = ROOT / (file if file.startswith("tests/") else f"tests/{file}")
        assert path.is_file(), file
        assert f"def {name}(" in path.read_text(encoding="utf-8") or not name, f"{file}::{name}"


@pytest.mark.parametrize("name", ["joyagents", "puppeteer"])
def test_every_point_says_what_tests_it(name):
    page = (ROOT / "docs" / "reproduce" / f"{name}.md").read_text(encoding="utf-8")
    lines = page.partition("## Against the paper, point by point")[2].splitlines()
    rows = [line.split(" | ") for line in lines if line.startswith("| ") and not re.match(r"\| (\*\*|paper \|)", line)]
    assert len(rows) > 20
    for row in rows:
        assert len(row) == 3 and (NAMED.search(row[2]) or row[2].startswith("none")), row
