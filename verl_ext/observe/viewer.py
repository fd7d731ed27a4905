"""A trajectory log as one HTML page.

    python -m verl_ext.observe.viewer runs/mhgpo_tiny

The page needs nothing but itself: a content security policy forbids it the network. What models and data sets say is in
it as compressed data, which its script only ever turns into text.
"""

from __future__ import annotations

import argparse
import base64
import gzip
import hashlib
import json
import sys
import webbrowser
from collections.abc import Iterable
from pathlib import Path
from statistics import fmean
from typing import Any

from jinja2 import Environment, PackageLoader
from markupsafe import Markup

from verl_ext.observe.collaboration import for_the_page
from verl_ext.observe.trajectory_files import FOLDER, VALIDATION_FOLDER, log_files, read_records

# In the order in which they build on each other; `page/` has one file per concern.
SCRIPTS = (
    *("model.js", "dom.js", "forest.js", "call.js", "overview.js", "search.js", "compare.js"),
    *("graph.js", "collaboration.js", "app.js"),
)
STYLES = ("style.css", "collaboration.css")
# A page larger than this opens slowly; said, not refused.
LARGE = 100e6

Moment = tuple[str, int]


def moments(records: Iterable[dict[str, Any]]) -> dict[Moment, list[dict[str, Any]]]:
    """(phase, step) -> its questions, each with `trajectories`, `tools` and `calls`; steps in order, training first.

    A question whose own line is missing (a kill, or the oldest file of a full log) is made up from its calls.
    """
    found: dict[Moment, dict[int, dict[str, Any]]] = {}
    for record in records:
        given = record["question"]
        questions = found.setdefault((record["phase"], record["step"]), {})
        empty: dict[str, list[Any]] = {"trajectories": [], "tools": [], "calls": []}
        question = questions.setdefault(given["number"], {**given, "text": str(given.get("text")), **empty})
        if record["kind"] == "question":
            question |= {"trajectories": record["trajectories"], "tools": record["tools"]}
        else:
            head = ("kind", "phase", "step", "question")
            question["calls"].append({name: value for name, value in record.items() if name not in head})
    for questions in found.values():
        for question in questions.values():
            _complete(question)
    return {moment: list(found[moment].values()) for moment in sorted(found)}


def _complete(question: dict[str, Any]) -> None:
    """Stand-ins for trajectories that calls name and no line describes."""
    known = question["trajectories"]
    missing = max((number for call in question["calls"] for number in call["trajectories"]), default=-1) + 1
    for _ in range(len(known), missing):
        known.append(
            {"stream": [], "status": "unknown", "error": "its line is not in the log", "reward": None} | {"sinks": []}
        )


def index_entry(moment: Moment, questions: list[dict[str, Any]]) -> dict[str, Any]:
    """What the page knows of a step before it unpacks it."""
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
    steps = moments(records)
    folder = Path(__file__).parent / "page"
    style, parts = (
        "\n".join((folder / name).read_text(encoding="utf-8") for name in names) for names in (STYLES, SCRIPTS)
    )
    script = f'(() => {{\n"use strict";\n{parts}}})();'
    index = {
        "moments": [index_entry(moment, questions) for moment, questions in steps.items()],
        "collaboration": for_the_page(steps),
    }
    template = Environment(autoescape=True, loader=PackageLoader("verl_ext.observe", "page")).get_template(
        "page.html.j2"
    )
    return template.render(
        title=title,
        style=Markup(style),
        script=Markup(script),
        style_hash=Markup(_hash(style)),
        script_hash=Markup(_hash(script)),
        index=Markup(json.dumps(index, allow_nan=False).replace("<", "\\u003c")),
        chunks=[Markup(_packed(questions)) for questions in steps.values()],
    )


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _packed(questions: list[dict[str, Any]]) -> str:
    """Compressed JSON in letters and digits: nothing in it can end the element that holds it."""
    text = json.dumps(questions, separators=(",", ":"), allow_nan=False)
    return base64.b64encode(gzip.compress(text.encode(), 6, mtime=0)).decode()


def title_of(path: Path) -> str:
    """Name of the run whose log is at `path`."""
    folder = log_files(path)[0].parent.resolve()
    return folder.parent.name if folder.name in (FOLDER, VALIDATION_FOLDER) else folder.name


def main(arguments: list[str] | None = None) -> int:
    """The command; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m verl_ext.observe.viewer",
        description="Write a run's trajectory log as one HTML page that opens in any browser, offline.",
    )
    parser.add_argument("log", type=Path, help="folder of a run, folder of its log, or one file of the log")
    parser.add_argument("--output", type=Path, help="the page (default: trajectories.html beside the log's folder)")
    parser.add_argument("--open", action="store_true", help="open the page in the browser")
    given = parser.parse_args(arguments)
    try:
        first = log_files(given.log)[0]
    except FileNotFoundError as error:
        print(error, file=sys.stderr)
        return 2
    output = given.output or (given.log.parent if given.log.is_file() else first.parent.parent) / "trajectories.html"
    page = build_page(read_records(given.log), title_of(given.log))
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(page, encoding="utf-8")
    size = len(page) / 1e6
    print(
        f"{output} ({size:.1f} MB) opens in any browser, offline."
        + (" It may open slowly." if len(page) > LARGE else "")
    )
    if given.open:
        webbrowser.open(output.resolve().as_uri())
    return 0


if __name__ == "__main__":
    sys.exit(main())
