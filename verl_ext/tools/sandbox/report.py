"""What the model that wrote a program is told of it: what was printed, the traceback, and which limit was hit."""

from __future__ import annotations

import signal
from dataclasses import dataclass

from verl_ext.tools.catalogue.render import clean
from verl_ext.tools.sandbox.jail.limits import Limits
from verl_ext.tools.sandbox.jail.server import Ended
from verl_ext.tools.sandbox.running import OUTPUT_BYTES, Run, Stream

# Counters of `run_python`; a report names those that a program adds one to.
ERRORS, CPU, WALL, MEMORY, OUTPUT, THREADS, FILES, CRASHES, OUTPUT_CUT = (
    "errors", "cpu_timeouts", "wall_timeouts", "memory", "output", "threads", "files", "crashes", "output_cut",
)  # fmt: skip
OUTCOMES = (ERRORS, CPU, WALL, MEMORY, OUTPUT, THREADS, FILES, CRASHES, OUTPUT_CUT)
_KILLED = -int(signal.SIGKILL)
# The kernel enforces the limit by its ticks and reports the time that it measured: on a busy machine much less.
_NEARLY = 0.5


@dataclass(frozen=True)
class Report:
    """`text`: for the model. `outcomes`: of OUTCOMES, how it ended; none: as it should."""

    text: str
    outcomes: tuple[str, ...]


def report(run: Run, ended: Ended, limits: Limits, max_output: int) -> Report:
    """The report of a program.

    Args:
        run, ended: what it printed and how it ended.
        limits: that it ran under.
        max_output: characters of what it printed and of the traceback together; notes in brackets come on top.
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
    """`text` in at most `limit` characters: its beginning and its end, and between them a note that it was cut."""
    if len(text) <= limit:
        return text
    note = f"\n… [cut: longer than {limit:,} characters] …\n"
    left = limit - len(note)
    return text[: left - left // 2] + note + text[len(text) - left // 2 :]


def last_lines(text: str, limit: int) -> str:
    """The last whole lines of `text` in at most `limit` characters, behind a note; or the end of the last one."""
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
    if ended.code == _KILLED:
        return CPU if ended.cpu_s >= _NEARLY * limits.cpu_s else MEMORY
    if ended.code < 0:
        return CRASHES
    if ended.code > 0:
        last = _text(run.stderr).rstrip().rpartition("\n")[2]
        return MEMORY if last.startswith("MemoryError") else ERRORS
    return ""


def _note(outcome: str, ended: Ended, limits: Limits, said_why: bool) -> str:
    """What happened, in a sentence; nothing where the traceback says it."""
    if outcome == ERRORS:
        return "" if said_why else f"The program ended with exit code {ended.code}."
    if outcome == CRASHES:
        return f"The program crashed ({signal.Signals(-ended.code).name})."
    return {
        "": "",
        CPU: f"The program was ended after {limits.cpu_s} s of CPU time.",
        WALL: f"The program was ended after {limits.wall_s:g} s.",
        MEMORY: f"The program needed more memory than the {limits.memory_mb} MB it may have.",
        OUTPUT: f"The program was ended: it printed more than {OUTPUT_BYTES:,} bytes.",
        THREADS: f"The program was ended: it started more than {limits.threads} threads.",
        FILES: f"The program was ended: it made more than {limits.files} files or folders.",
    }[outcome]


def _printed(run: Run, limit: int) -> tuple[str, bool]:
    """(stdout, then the last lines of stderr; is it all). Stderr gets what stdout leaves, or half at least."""
    out, error = _text(run.stdout).rstrip("\n"), _text(run.stderr).rstrip("\n")
    between = bool(out and error)
    complete = len(out) + between + len(error) <= limit
    error = last_lines(error, max(limit // 2, limit - len(out) - between))
    out = shorten(out, limit - len(error) - between)
    return "\n".join(filter(None, (out, error))), complete


def _text(stream: Stream) -> str:
    """What was printed to `stream`; if that is more than it has kept, longer than any limit, and its middle missing."""
    return clean((stream.head + stream.tail).decode("utf-8", "backslashreplace"))
