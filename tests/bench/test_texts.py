"""The bench of generated texts, in small: nothing fails, and its checks notice a parser that does."""

from __future__ import annotations

import itertools
import re
import time
from pathlib import Path

from tests.bench.texts import HANG_S, SYSTEMS, Count, Parser, check, run
from verl_ext.plugin import package_path


def test_no_text_makes_a_parser_fail():
    counts = run(2000, limit_s=HANG_S)
    assert not [failure for count in counts.values() for failure in count.failures]
    assert all(count.read >= 2000 and count.refused < count.read for count in counts.values())


def test_every_recipes_system_is_tried():
    target = re.compile(r" workflow:\n *_target_: verl_ext\.recipe\.\S*\.(\w+)$", re.M)
    used = {name for file in Path(package_path("configs")).rglob("*.yaml") for name in target.findall(file.read_text())}
    assert len(used) > 8 and used <= {type(system).__name__ for system in SYSTEMS}


def test_an_error_another_result_and_a_slow_text_are_failures():
    numbers = itertools.count()
    for read, told in (
        (lambda text: text[9], "raises IndexError"),
        (lambda text: next(numbers), "gives 0 and then 1"),
        (lambda text: _wait(0.02), "takes 0.0 s"),
    ):
        count = Count()
        check(Parser("p", read, (ValueError,)), "text", count, limit_s=0.01)
        assert len(count.failures) == 1 and f"p {told}" in count.failures[0]


def _wait(seconds: float) -> None:
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass
