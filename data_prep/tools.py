"""Prepare a benchmark of tool calls: train.parquet, test.parquet, and the files that its tools need.

    python data_prep/tools.py toolbench --output_dir data/toolbench --sets G3_instruction
    python data_prep/tools.py restbench --scenario tmdb --output_dir data/restbench_tmdb

`tools.py NAME --help` shows a benchmark's layout, licence and a row.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from verl_ext.arguments import Parser, described
from verl_ext.data_prep.sources import api_bank, restbench, toolbench, toolbench_static, toolhop
from verl_ext.data_prep.tool_tasks import add_options, run

SOURCES = {
    "toolbench": toolbench,
    "toolbench_static": toolbench_static,
    "restbench": restbench,
    "api_bank": api_bank,
    "toolhop": toolhop,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Command line. Returns the exit status; user errors are printed without a traceback."""
    parser = Parser(description=__doc__)
    names = parser.add_subparsers(dest="name", metavar="NAME", required=True)
    for name, module in SOURCES.items():
        one = names.add_parser(name, **described(module.__doc__))
        add_options(one)
        if hasattr(module, "options"):
            module.options(one)
    arguments = parser.parse_args(argv)
    return run(SOURCES[arguments.name].prepare, arguments)


if __name__ == "__main__":
    sys.exit(main())
