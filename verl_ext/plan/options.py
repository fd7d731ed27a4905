"""Options of the command line that say what a step does: common to `verl_ext plan` and `verl_ext check`."""

from __future__ import annotations

import argparse
import math
from pathlib import Path


def add_load(parser: argparse.ArgumentParser) -> None:
    """Add what `jobs.tokens_of` and `jobs.coefficients` read."""
    parser.add_argument("--run", type=Path, help="folder of a run whose calls are measured: tokens, longest chain")
    parser.add_argument("--prompt_tokens", type=float, help="mean tokens of a call's prompt, in place of --run")
    parser.add_argument("--output_tokens", type=float, help="mean tokens of a call's output, in place of --run")
    parser.add_argument(
        "--longest", type=float, help="tokens of the longest chain of calls (default: all at their limits)"
    )
    parser.add_argument("--tool_seconds", type=float, default=0.0, help="seconds of a tool call (default 0)")
    parser.add_argument(
        "--tool_turns", type=int, default=1, help="tool calls, one after the other, of a trajectory (1)"
    )
    parser.add_argument("--coefficient", action="append", default=[], help="NAME=VALUE, e.g. update=2 for 50%%")


def check_load(parser: argparse.ArgumentParser, given: argparse.Namespace) -> None:
    """End with a usage error where a number is none."""
    if not 0 <= given.tool_seconds < math.inf or given.tool_turns < 0:
        parser.error(f"--tool_seconds {given.tool_seconds} --tool_turns {given.tool_turns}: give numbers of at least 0")
