"""What the model is told, as a function of what was printed: invariants, and hand-made cases."""

from __future__ import annotations

import asyncio
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verl_ext.tools.sandbox.jail.limits import Limits
from verl_ext.tools.sandbox.jail.server import Ended
from verl_ext.tools.sandbox.report import last_lines, report, shorten
from verl_ext.tools.sandbox.running import Run, Stream

LIMITS = Limits(cpu_s=2, wall_s=10.0, memory_mb=512)
TEXTS = st.text(st.characters(blacklist_categories=["Cs", "Cc"]) | st.sampled_from("\n\nab"), max_size=600)
BYTES = st.binary(max_size=600) | TEXTS.map(str.encode)


def made(stdout: bytes, stderr: bytes = b"", keep: int = 10_000, flooded: bool = False) -> Run:
    """A program's run, as if it had printed this."""

    async def run() -> Run:
        return Run(1, keep, lambda _: None)

    done = asyncio.run(run())
    done.stdout.add(stdout)
    done.stderr.add(stderr)
    done.flooded = flooded
    return done


@given(text=TEXTS, limit=st.integers(100, 400))
def test_shorten(text, limit):
    short = shorten(text, limit)
    if len(text) <= limit:
        assert short == text
    else:
        begin, note, end = short.partition(f"\n… [cut: longer than {limit} characters] …\n")
        assert len(short) == limit and note
        assert text.startswith(begin) and text.endswith(end) and 0 <= len(begin) - len(end) <= 1


@given(text=TEXTS, limit=st.integers(50, 400))
def test_last_lines(text, limit):
    short = last_lines(text, limit)
    if len(text) <= limit:
        assert short == text
    else:
        kept = short.removeprefix("… [cut]\n")
        assert len(short) <= limit and kept != short and text.endswith(kept)
        at = len(text) - len(kept)
        whole = text[at - 1] == "\n"
        assert whole or "\n" not in text[len(text) - limit + 8 : -1]  # no whole line fits


@given(stdout=BYTES, stderr=BYTES, limit=st.integers(200, 500), code=st.sampled_from([0, 1, 3, -9, -11]))
def test_a_report_is_bounded_and_readable(stdout, stderr, limit, code):
    told = report(made(stdout, stderr), Ended(1, code), LIMITS, limit)
    text, bracket, note = told.text.rpartition("[")
    printed = text.rstrip("\n") if bracket and note.startswith(("The program", "Nothing")) else told.text
    assert len(printed) <= limit and len(told.text) <= limit + 100
    assert {c for c in told.text if unicodedata.category(c) in ("Cc", "Cs")} <= {"\n", "\t"}
    assert told.text


@given(st.lists(st.binary(max_size=40), max_size=30), st.integers(1, 60))
def test_a_stream_keeps_beginning_and_end(parts, keep):
    stream = Stream(keep)
    for part in parts:
        stream.add(part)
    whole = b"".join(parts)
    assert stream.total == len(whole) and stream.head == whole[:keep]
    assert stream.tail == whole[keep:][-keep:]
    if len(whole) <= 2 * keep:
        assert stream.head + stream.tail == whole
    assert sum(map(len, stream._tail)) <= 2 * keep + 40


@given(TEXTS.filter(lambda text: len(text) > 100), st.integers(200, 210))
def test_a_stream_that_lost_its_middle_is_cut_the_same(text, limit):
    """Kept are four bytes for each character of the limit, so that nothing is missing of what is shown."""
    text = text.strip("\n") * 20
    shown = report(made(text.encode(), keep=4 * limit), Ended(1), LIMITS, limit).text
    assert shown == shorten(text, limit)


@pytest.mark.parametrize(
    ("run", "ended", "text", "outcomes"),
    [
        ((b"2\n",), Ended(1), "2", ()),
        ((b"",), Ended(1), "[The program printed nothing. Only what it prints is seen.]", ()),
        ((b"a\n", b"b\n"), Ended(1), "a\nb", ()),
        ((b"a\n", b"T: x\n"), Ended(1, 1), "a\nT: x", ("errors",)),
        ((b"",), Ended(1, 3), "[The program ended with exit code 3.]", ("errors",)),
        ((b"", b"MemoryError\n"), Ended(1, 1),
         "MemoryError\n[The program needed more memory than the 512 MB it may have.]", ("memory",)),
        ((b"", b"MemoryError\n"), Ended(1, 0), "MemoryError", ()),
        ((b"a",), Ended(1, -9, cpu_s=1.4), "a\n[The program was ended after 2 s of CPU time.]", ("cpu_timeouts",)),
        ((b"a",), Ended(1, -9, cpu_s=0.2),
         "a\n[The program was killed (SIGKILL), by itself or because the machine's memory ran out.]", ("crashes",)),
        ((b"a",), Ended(1, -9, "wall"), "a\n[The program was ended: it took longer than 10 s.]", ("wall_timeouts",)),
        ((b"",), Ended(1, -9, "threads"), "[The program was ended: it started more than 64 threads.]", ("threads",)),
        ((b"",), Ended(1, -9, "files"), "[The program was ended: it made more than 64 files or folders.]", ("files",)),
        ((b"a",), Ended(1, -9, "killed"),
         "a\n[The program was ended: it printed more than 1,048,576 bytes.]", ("output",)),
        ((b"",), Ended(1, -11), "[The program crashed (SIGSEGV).]", ("crashes",)),
        ((b"",), Ended(1, -40), "[The program crashed (signal 40).]", ("crashes",)),
        ((b"a" * 200,), Ended(1), "a" * 200, ()),
        ((b"a" * 100 + b"b" * 101,), Ended(1),
         "a" * 81 + "\n… [cut: longer than 200 characters] …\n" + "b" * 80, ("output_cut",)),
        ((b"", b"x\n" * 200), Ended(1, 1), "… [cut]\n" + "x\n" * 95 + "x", ("errors", "output_cut")),
    ],
)  # fmt: skip
def test_by_hand(run, ended, text, outcomes):
    told = report(made(*run, flooded=ended.reason == "killed"), ended, LIMITS, 200)
    assert (told.text, told.outcomes) == (text, outcomes)


def test_a_long_output_does_not_hide_the_exception():
    told = report(made(b"first\n" + b"x" * 5000, b"Traceback\nZ: by zero\n"), Ended(1, 1), LIMITS, 1000)
    assert told.text.startswith("first\nx") and told.text.endswith("Z: by zero") and len(told.text) <= 1000
