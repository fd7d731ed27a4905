"""Command lines of scripts: help that keeps its line breaks, errors that name the closest known word.

parser = Parser(description=__doc__)
parser.add_argument("name", choices=["hotpotqa", "musique"])
parser.parse_args(["hotpotq"])      # error: ... invalid choice: 'hotpotq' (...); did you mean 'hotpotqa'?
"""

from __future__ import annotations

import argparse
import difflib
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """`; did you mean 'x'?` for the known name that is most like `name`, or nothing if none is close."""
    close = difflib.get_close_matches(str(name), list(known), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def positive(text: str) -> int:
    """The type of an argument that is a whole number above 0."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be >= 1, given {text}")
    return value


class Parser(argparse.ArgumentParser):
    """An ArgumentParser for one script or one of its subcommands; takes the same arguments."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **{"formatter_class": argparse.RawDescriptionHelpFormatter, **kwargs})

    def add_subparsers(self, **options: Any) -> Any:
        """As argparse; subcommands refuse unknown options themselves, because only they know similar ones."""
        return super().add_subparsers(**{"parser_class": _Subcommand, **options})

    def parse_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        """As argparse; options may stand between overrides: `+recipe=NAME --here key=value`."""
        parse = super().parse_args if self._subparsers else super().parse_intermixed_args
        return parse(args, namespace)

    def error(self, message: str) -> NoReturn:
        """Print the message, with the closest known name if there is one, and exit with status 2."""
        problem, _, choices = message.partition(" (choose from ")
        known = re.findall(r"[\w.-]+", choices) or re.findall(r"--[\w-]+", self.format_help())
        given = re.findall(r"'([^']*)'", problem) if choices else re.findall(r"--[\w-]+", problem)
        hints = (did_you_mean(name, known) for name in given if name not in known)
        super().error(message + next(filter(None, hints), ""))


class _Subcommand(Parser):
    def parse_known_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        namespace, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return namespace, unknown


def exit_status(work: Callable[[], object], interrupted: str | None = None) -> int:
    """Run a script's work: 0, or 2 if the user gave something wrong, which is printed without a traceback.

    interrupted: what to print after a Ctrl-C, whose status is 130; None: Ctrl-C is raised.
    """
    try:
        work()
    except (ValueError, ImportError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        if interrupted is None:
            raise
        print(f"\n{interrupted}", file=sys.stderr)
        return 130
    return 0


def described(text: str | None) -> dict[str, Any]:
    """Arguments of `add_parser` from a docstring: all of it as the description, its first clause for the overview."""
    text = text or ""
    return {"help": text.splitlines()[0].partition(" (")[0], "description": text}
