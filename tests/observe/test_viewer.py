"""The viewer's page as text: what is in it, that nothing of it can break out, and the command."""

from __future__ import annotations

import base64
import gzip
import hashlib
import html.parser
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

from tests.observe.viewing import HOSTILE, call, forked, question, trajectory
from verl_ext.observe import viewer
from verl_ext.observe.record import by_step
from verl_ext.observe.summary import next_steps
from verl_ext.observe.trajectory_files import FOLDER, TrajectoryLog
from verl_ext.observe.viewer import build_page, index_entry, main


class Elements(html.parser.HTMLParser):
    """Tags and attributes of a page, and the text of its scripts by id."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.scripts, self._open = [], {}, None
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self._open = (tag, dict(attrs).get("id", "code")) if tag in ("script", "style") else None

    def handle_data(self, data):
        if self._open:
            self.scripts[self._open] = self.scripts.get(self._open, "") + data

    def handle_endtag(self, tag):
        self._open = None


def unpacked(elements, i):
    return json.loads(gzip.decompress(base64.b64decode(elements.scripts["script", f"chunk-{i}"])))


def test_steps_are_in_order_and_the_index_sums_them_up():
    ends = [trajectory(1.0), trajectory(0.5), trajectory(None, "timeout"), trajectory(None)]
    lines = [*forked(2), *forked(1, number=0), *forked(1, number=1), *question(3, [call("a")], ends)]
    steps = by_step([*lines, *question(0, [], [trajectory(0.25)], phase="val")])
    assert list(steps) == [("train", 1), ("train", 2), ("train", 3), ("val", 0)]
    assert [len(one["calls"]) for one in steps["train", 1]] == [4, 4]
    assert "phase" not in steps["train", 1][0]["calls"][0] and steps["train", 1][1]["text"] == "Question 1?"
    entry = index_entry(("train", 3), steps["train", 3])
    assert entry == {"phase": "train", "step": 3, "reward": 0.75, "failed": 1}
    assert index_entry(("val", 0), [])["reward"] is None


def test_data_cannot_leave_its_element():
    said = call("a", output=HOSTILE, tokens=[HOSTILE], prompt=[{"role": HOSTILE, "content": HOSTILE}], agent=HOSTILE)
    phase = "</script><script>alert(1)</script>"
    ends = [trajectory(None, HOSTILE, error=HOSTILE)]
    lines = question(1, [said], ends, phase=phase, text=HOSTILE, source=HOSTILE, gold=HOSTILE)
    page = build_page(lines, HOSTILE)
    plain = Elements(build_page(forked(1), "run"))
    hostile = Elements(page)
    assert [tag for tag, _ in hostile.tags] == [tag for tag, _ in plain.tags], "not one element more"
    assert unpacked(hostile, 0)[0]["calls"][0]["output"] == HOSTILE
    assert "window.broken" not in re.sub(r"<title>.*?</title>|<b>.*?</b>", "", page, flags=re.DOTALL)
    assert json.loads(hostile.scripts["script", "index"])["moments"][0]["phase"] == phase


def test_the_page_asks_nobody_for_anything():
    elements = Elements(build_page(forked(1), "run"))
    for _, attributes in elements.tags:
        assert not {"src", "srcset", "action"} & set(attributes)
        assert attributes.get("href", "data:,") == "data:,"
    policy = next(a["content"] for tag, a in elements.tags if a.get("http-equiv") == "Content-Security-Policy")
    allowed = dict(part.strip().split(" ", 1) for part in policy.split(";"))
    assert allowed["default-src"] == "'none'" and allowed["img-src"] == "data:"
    for name, tag in (("script-src", "script"), ("style-src", "style")):
        digest = base64.b64encode(hashlib.sha256(elements.scripts[tag, "code"].encode()).digest()).decode()
        assert allowed[name] == f"'sha256-{digest}'", "only the page's own code runs"


def test_an_empty_log_and_lone_surrogates_make_a_page():
    odd = question(1, [call("a", output="\ud800")], [trajectory()], text="\udfff")
    for page in (build_page([], "run"), build_page(odd, "run")):
        assert b"<title>run" in page.encode()  # a lone surrogate could not be encoded


def test_the_command_writes_the_page_and_says_where(tmp_path):
    TrajectoryLog(tmp_path / "runs" / "tiny" / FOLDER, 10**6, 2).write(forked(1))
    command = [sys.executable, "-m", "verl_ext.observe.viewer", "runs/tiny"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True, timeout=500)
    page = tmp_path / "runs" / "tiny" / "trajectories.html"
    assert "runs/tiny/trajectories.html" in done.stdout and "<b>tiny</b>" in page.read_text()
    one, elsewhere = tmp_path / "runs" / "tiny" / FOLDER / "000001.jsonl", tmp_path / "new" / "p.html"
    assert main([str(one), "--output", str(elsewhere)]) == 0
    assert "<title>tiny – trajectories</title>" in elsewhere.read_text()


def test_it_says_so_if_no_browser_opens(tmp_path, monkeypatch, capsys):
    TrajectoryLog(tmp_path / FOLDER, 10**6, 2).write(forked(1))
    asked = []
    for opened, said in ((True, False), (False, True)):
        monkeypatch.setattr("webbrowser.open", lambda address, opened=opened: asked.append(address) or opened)
        assert main([str(tmp_path), "--open"]) == 0
        words = f"No browser could be opened; open {tmp_path}/trajectories.html"
        assert (words in capsys.readouterr().out) == said
    assert asked == [(tmp_path / "trajectories.html").as_uri()] * 2


def test_the_end_of_a_run_names_the_command_if_there_is_a_log(tmp_path):
    def named():
        return [line for line in next_steps(["+recipe=x"], "rr", run) if "verl_ext view" in line]

    run = tmp_path / "my run"
    log = TrajectoryLog(run / FOLDER, 9000, 2)
    assert not named()
    log.write([])
    assert not named(), "there is nothing to view"
    log.write(forked(1))
    (line,) = named()
    assert shlex.split(line.split("   ")[1])[1:] == ["view", str(run), "--open"]


def test_the_command_without_a_log_says_what_is_missing(tmp_path, capsys):
    assert main([str(tmp_path)]) == 2
    assert "holds no trajectory log" in capsys.readouterr().err and not list(tmp_path.iterdir())


def test_a_file_without_records_makes_no_empty_page(tmp_path, capsys):
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "metrics": {}}\n')
    assert main([str(tmp_path / "metrics.jsonl")]) == 2
    assert "metrics.jsonl holds no whole record" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.jsonl"]


def test_a_page_that_cannot_be_written_is_told_with_the_remedy(tmp_path, capsys):
    TrajectoryLog(tmp_path / FOLDER, 10**6, 2).write(forked(1))
    assert main([str(tmp_path), "--output", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert "Is a directory" in said and "Remedy: --output FILE" in said


def test_the_pages_own_parts_cannot_end_their_element():
    for name in (*viewer.STYLES, *viewer.SCRIPTS):
        text = (Path(viewer.__file__).parent / "page" / name).read_text()
        assert "</s" not in text and "innerHTML" not in text, name
        assert "http" not in text.replace("http://www.w3.org/2000/svg", ""), name
