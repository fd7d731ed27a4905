"""Writes the trajectory records of a run or an evaluation as one HTML page that opens in any browser, offline.

    verl_ext view runs/mhgpo_tiny
    verl_ext view runs/evaluate/mhgpo_tiny --open

A content security policy forbids the page the network. Texts of models and data sets are in it as compressed data,
which its script inserts as text only, never as HTML.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from statistics import fmean
from typing import Any

from verl_ext.arguments import Parser
from verl_ext.observe.record import Moment, by_step
from verl_ext.observe.trajectory_files import EVALUATION_FILE, FOLDER, VALIDATION_FOLDER, log_files, read_records

# In the order in which they build on each other; `page/` has one file per concern.
SCRIPTS = [f"{name}.js" for name in "model dom forest call overview search compare graph collaboration app".split()]
STYLES = ["style.css", "collaboration.css"]
# Bytes from which on the command warns that the page opens slowly.
LARGE = 100e6


def index_entry(moment: Moment, questions: list[dict[str, Any]]) -> dict[str, Any]:
    """The entry of a step in the page's index, which the page reads before it unpacks the step."""
    trajectories = [trajectory for question in questions for trajectory in question["trajectories"]]
    rewards = [t["reward"] for t in trajectories if t["status"] == "ok" and t["reward"] is not None]
    return {
        "phase": moment[0],
        "step": moment[1],
        "reward": fmean(rewards) if rewards else None,
        "failed": sum(trajectory["status"] != "ok" for trajectory in trajectories),
    }


def build_page(records: Iterable[dict[str, Any]], title: str) -> str:
    """The page with these records."""
    from jinja2 import Environment, PackageLoader
    from markupsafe import Markup

    from verl_ext.observe.graph_layout import page_index

    steps = by_step(records)
    folder = Path(__file__).with_name("page")
    style, parts = ("\n".join((folder / name).read_text("utf-8") for name in names) for names in (STYLES, SCRIPTS))
    script = f'(() => {{\n"use strict";\n{parts}}})();'
    index = {"moments": [index_entry(moment, questions) for moment, questions in steps.items()]} | page_index(steps)
    environment = Environment(autoescape=True, loader=PackageLoader("verl_ext.observe", "page"))
    return environment.get_template("page.html.j2").render(
        title=title,
        style=Markup(style),
        script=Markup(script),
        style_hash=Markup(_hash(style)),
        script_hash=Markup(_hash(script)),
        index=Markup(json.dumps(index, allow_nan=False).replace("<", "\\u003c")),
        chunks=[_packed(questions) for questions in steps.values()],
    )


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _packed(questions: list[dict[str, Any]]) -> str:
    """Compressed JSON in letters and digits: nothing in it can end the element that holds it."""
    text = json.dumps(questions, separators=(",", ":"), allow_nan=False)
    return base64.b64encode(gzip.compress(text.encode(), 6, mtime=0)).decode()


def title_of(path: Path) -> str:
    """Name of the run or evaluation whose records are at `path`."""
    folder = log_files(path)[0].parent.resolve()
    return folder.parent.name if folder.name in (FOLDER, VALIDATION_FOLDER) else folder.name


def main(arguments: list[str] | None = None) -> int:
    """The command; returns the exit status."""
    parser = Parser("verl_ext view", description=__doc__)
    parser.add_argument("log", type=Path, help="folder of a run, an evaluation or a log, or one file")
    parser.add_argument("--output", type=Path, help="the page (default: trajectories.html in the folder of the run)")
    parser.add_argument("--open", action="store_true", help="open the page in the browser")
    given = parser.parse_args(arguments)
    try:
        folder = log_files(given.log)[0].parent
    except FileNotFoundError as error:
        print(error, file=sys.stderr)
        return 2
    beside = given.log.is_file() or (folder / EVALUATION_FILE).is_file()
    output = given.output or (folder if beside else folder.parent) / "trajectories.html"
    if next(read_records(given.log), None) is None:
        print(f"{given.log} holds no whole record of a trajectory, so there is nothing to view", file=sys.stderr)
        return 2
    page = build_page(read_records(given.log), title_of(given.log))
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(page, encoding="utf-8")
    except OSError as error:
        print(f"the page cannot be written: {error}. Remedy: --output FILE", file=sys.stderr)
        return 2
    slow = " It may open slowly." if len(page) > LARGE else ""
    print(f"{output} ({len(page) / 1e6:.1f} MB) opens in any browser, offline.{slow}")
    if given.open:
        import webbrowser

        if not webbrowser.open(output.resolve().as_uri()):
            print(f"No browser could be opened; open {output.resolve()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
