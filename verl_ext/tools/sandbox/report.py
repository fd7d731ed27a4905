"""The answer to the model that wrote a program: its output, the traceback, and the limit that ended it."""

from __future__ import annotations

import signal
from dataclasses import dataclass

from verl_ext.tools.catalogue.render import clean
from verl_ext.tools.sandbox.jail.limits import Limits
from verl_ext.tools.sandbox.jail.server import Ended
from verl_ext.tools.sandbox.running import OUTPUT_BYTES, Run, Stream

# Counters of `run_python`. A report names the ones that its program increments.
ERRORS, CPU, WALL, MEMORY, OUTPUT, THREADS, FILES, CRASHES, OUTPUT_CUT = (
    "errors", "cpu_timeouts", "wall_timeouts", "memory", "output", "threads", "files", "crashes", "output_cut",
)  # fmt: skip
OUTCOMES = (ERRORS, CPU, WALL, MEMORY, OUTPUT, THREADS, FILES, CRASHES, OUTPUT_CUT)
_KILLED = -int(signal.SIGKILL)
# The kernel enforces the limit by counting ticks, but reports measured time: on a busy machine much less.
_NEARLY = 0.5


@dataclass(frozen=True)
class Report:
    """text: for the model. outcomes: those of OUTCOMES that apply; empty if the program ended normally."""

    text: str
    outcomes: tuple[str, ...]


def report(run: Run, ended: Ended, limits: Limits, max_output: int) -> Report:
    """The report of a program.

    Args:
        run, ended: its output and its end.
        limits: its limits.
        max_output: characters of the output, traceback included. Notes in brackets come in addition.
    """
    outcome = _outcome(run, ended, limits)
    printed, complete = _printed(run, max_output)
    note = _note(outcome, ended, limits, bool(run.stderr.total))
    if not printed and not note:
        note = "The program printed nothing. Only what it prints is seen."
    parts = [printed, f"[{note}]" if note else ""]
    outcomes = [outcome, "" if complete else OUTPUT_CUT]
    return Report("\n".join(filter(None, parts)), tuple(filter(None, outcomes)))


def shorten(text: str, limit: int) -> str:
    """`text` in at most `limit` characters: its beginning, a note that it was cut, and its end."""
    if len(text) <= limit:
        return text
    note = f"\n… [cut: longer than {limit:,} characters] …\n"
    left = limit - len(note)
    return text[: left - left // 2] + note + text[len(text) - left // 2 :]


def last_lines(text: str, limit: int) -> str:
    """A note and the last whole lines of `text`, or the end of its last line, in at most `limit` characters."""
    if len(text) <= limit:
        return text
    note = "… [cut]\n"
    kept = text[len(text) - (limit - len(note)) :]
    return note + (kept.partition("\n")[2] or kept)


def _outcome(run: Run, ended: Ended, limits: Limits) -> str:
    if run.flooded:
        return OUTPUT
    if ended.reason:
        return {"wall": WALL, "threads": THREADS, "files": FILES}[ended.reason]
    if ended.code == _KILLED and ended.cpu_s >= _NEARLY * limits.cpu_s:
        return CPU
    if ended.code < 0:
        return CRASHES
    if ended.code > 0:
        last = _text(run.stderr).rstrip().rpartition("\n")[2]
        return MEMORY if last.startswith("MemoryError") else ERRORS
    return ""


def _note(outcome: str, ended: Ended, limits: Limits, has_traceback: bool) -> str:
    """The outcome in a sentence; "" if the traceback shows it."""
    if outcome == ERRORS:
        return "" if has_traceback else f"The program ended with exit code {ended.code}."
    if outcome == CRASHES:
        if ended.code == _KILLED:
            return "The program was killed (SIGKILL), by itself or because the machine's memory ran out."
        return f"The program crashed ({_name(-ended.code)})."
    return {
        "": "",
        CPU: f"The program was ended after {limits.cpu_s} s of CPU time.",
        WALL: f"The program was ended: it took longer than {limits.wall_s:g} s.",
        MEMORY: f"The program needed more memory than the {limits.memory_mb} MB it may have.",
        OUTPUT: f"The program was ended: it printed more than {OUTPUT_BYTES:,} bytes.",
        THREADS: f"The program was ended: it started more than {limits.threads} threads.",
        FILES: f"The program was ended: it made more than {limits.files} files or folders.",
    }[outcome]


def _name(number: int) -> str:
    """The name of a signal; real-time signals have none, except the first and the last one."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _printed(run: Run, limit: int) -> tuple[str, bool]:
    """(stdout and then the last lines of stderr, whether that is all). At least half of the limit is for stderr."""
    out, error = _text(run.stdout).rstrip("\n"), _text(run.stderr).rstrip("\n")
    between = bool(out and error)
    complete = len(out) + between + len(error) <= limit
    error = last_lines(error, max(limit // 2, limit - len(out) - between))
    out = shorten(out, limit - len(error) - between)
    return "\n".join(filter(None, (out, error))), complete


def _text(stream: Stream) -> str:
    """The text of `stream`. If the stream has lost its middle, the text is longer than any limit, and is cut there."""
    return clean((stream.head + stream.tail).decode("utf-8", "backslashreplace"))
