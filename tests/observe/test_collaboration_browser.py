"""The viewer's collaboration view in a real browser: graphs, tables, paths by hand, sliders, keys, hostile names."""

from __future__ import annotations

import pytest

from tests.observe.browsing import hidden
from tests.observe.deciding import decided, decision
from tests.observe.viewing import HOSTILE, forked, question, trajectory

TAB = "[data-tab=collaboration]"
EDGES = (
    "return [...document.querySelectorAll(`[data-step='${arguments[0]}'] .way:not(.start)`)]"
    ".map((e) => [e.dataset.from, e.dataset.to, +e.querySelector('.line').getAttribute('stroke-width')])"
)
OVERLAPS = """
const meet = (a, b) => a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom;
const covers = (box, disc) => {
  const [x, y, r] = [(disc.left + disc.right) / 2, (disc.top + disc.bottom) / 2, disc.width / 2];
  return Math.hypot(Math.max(box.left - x, 0, x - box.right), Math.max(box.top - y, 0, y - box.bottom)) < r;
};
return [...document.querySelectorAll("[data-step] svg")].flatMap((svg) => {
  const labels = [...svg.querySelectorAll("text.choice")].map((e) => [e.textContent, e.getBoundingClientRect()]);
  const discs = [...svg.querySelectorAll(".node circle, .start circle")].map((e) => e.getBoundingClientRect());
  return labels.flatMap(([a, x], i) => [
    ...labels.slice(i + 1).filter(([, y]) => meet(x, y)).map(([b]) => [a, b]),
    ...discs.filter((disc) => covers(x, disc)).map(() => [a, "a disc"]),
  ]);
});
"""


def early_and_late():
    """Step 1: four paths; step 2 and 3: nearly all alike; one validation."""
    yield from decided(1, ["aab", "ab", "ab", "b"], number=0)
    yield from decided(2, ["ab", "ab", "ab", "b"], number=0)
    yield from [*decided(3, ["b"], number=0), *decided(3, ["ab", "ab", "acb"], number=1, index=1, text="The second?")]
    yield from decided(3, ["abab"], phase="val")


def test_two_steps_side_by_side_by_hand(opened):
    page = opened(early_and_late())
    assert not hidden(page, TAB)
    page.click(TAB)
    assert "at=train.3&view=collaboration&b=train.1" in page.address(), "the first and the last logged step"
    assert page.all(".step h2") == ["train 1", "train 3"] and page.text("section h2").startswith("boss")
    # Step 1: 4 a and 4 b; a first thrice; a-b thrice, a-a once. Step 3: 3 a, 4 b, 1 c.
    labels = [page.all(f"[data-step='{step}'] text.choice tspan") for step in ("train 1", "train 3")]
    assert labels[0] == ["a", "50 %", "c", "0 %", "b", "50 %"] and labels[1][1::2] == ["37.5 %", "12.5 %", "50 %"]
    # Widths: one scale for all logged steps, up to 8 for a-b twice in the one path of the validation.
    widths = {(a, b): width for a, b, width in page.browser.execute_script(EDGES, "train 1")}
    assert widths == pytest.approx({("0", "0"): 1.88, ("0", "2"): 3.62}) and len(page.all(".way.loop")) == 1
    late = {(a, b): width for a, b, width in page.browser.execute_script(EDGES, "train 3")}
    assert late == pytest.approx({("0", "1"): 1.88, ("0", "2"): 2.75, ("1", "2"): 1.88})
    starts = "return [...document.querySelectorAll('.start')].map((e) => [e.dataset.to, e.textContent])"
    assert page.browser.execute_script(starts) == [
        *(["0", "a is the first in 3 of 4 paths"], ["2", "b is the first in 1 of 4 paths"]),
        *(["0", "a is the first in 3 of 4 paths"], ["2", "b is the first in 1 of 4 paths"]),
    ]
    assert page.all("tr[data-choice=a] .number") == ["50 %", "37.5 %", "−12.5"]
    numbers = {
        name: page.all(f"tr[data-number={name}] .number") for name in ("length", "density", "cycles", "top_path")
    }
    # Density: (1/4 + 1/4 + 2/4 + 0) / 4 and (0 + 1/4 + 1/4 + 2/9) / 4.
    assert numbers == {
        "length": ["2.00", "2.00", "0"],
        "density": ["0.25", "0.18", "−0.07"],
        "cycles": ["0.25", "0.00", "−0.25"],
        "top_path": ["50 %", "50 %", "0"],
    }
    assert page.all("ol.chain li") == ["a", "b", "a", "b"]
    page.click(".top-path .link", 1)
    assert page.text("h1") == "The second?" and "at=train.3" in page.address(), "a question with the most frequent path"
    page.check_quiet()


def test_a_slider_shows_other_steps_and_keeps_the_focus(opened):
    page = opened(early_and_late())
    page.go("at=train.3&view=collaboration&b=train.1")
    page.browser.execute_script("document.querySelector('[data-side=b]').focus()")
    page.press("\ue014")  # right
    assert page.all(".step h2") == ["train 2", "train 3"] and "b=train.2" in page.address()
    spoken = "const e = document.activeElement; return [e.ariaLabel, e.getAttribute('aria-valuetext'), e.max]"
    assert page.browser.execute_script(spoken) == ["step on the left", "train 2", "2"]
    drag = "const e = document.querySelector('[data-side=at]'); e.value = 0; e.dispatchEvent(new Event('input'))"
    page.browser.execute_script(drag)
    assert page.all(".step h2") == ["train 2", "train 1"] and "at=train.3" in page.address(), "while it is dragged"
    page.act("const e = document.getElementById('moment'); e.value = 3; e.dispatchEvent(new Event('change'))")
    assert page.all(".step h2") == ["train 2", "val 3"] and len(page.all("[data-step='val 3'] .way:not(.start)")) == 2
    assert page.browser.execute_script("return document.querySelector('[data-side=at]').disabled"), "one validation"
    page.check_quiet()


def test_keys_lead_there_and_nodes_say_what_they_are(opened):
    page = opened(early_and_late())
    page.press("g")
    assert "view=collaboration" in page.address()
    page.browser.execute_script("document.querySelector('.node').focus()")
    told = "return document.activeElement.getAttribute('aria-label')"
    assert page.browser.execute_script(told) == ("a: 50 % of the choices; the first in 3 of 4 paths; then b 3 ×, a 1 ×")
    assert len(page.all(".picked .way.on")) == 3 and len(page.all(".picked .way:not(.on)")) == 1
    page.press("[")
    assert page.all(".step h2") == ["train 1", "train 2"]
    page.act("history.back()")
    assert page.all(".step h2") == ["train 1", "train 3"]
    page.check_quiet()


def test_hidden_where_nobody_decides(opened):
    page = opened(forked(1))
    assert hidden(page, TAB)
    page.go("at=train.1&view=collaboration")
    assert len(page.all(".tiles")) == 1, "the overview instead"
    before = page.browser.execute_script("return document.body.dataset.ready")
    page.browser.execute_script("document.body.dispatchEvent(new KeyboardEvent('keydown', {key: 'g', bubbles: true}))")
    assert page.browser.execute_script("return document.body.dataset.ready") == before
    page.go("at=train.1&view=question&q=0&node=c0")
    assert not [text for text in page.all(".detail h3") if text.startswith("Decision")]
    page.check_quiet()


def test_a_step_without_decisions_says_so(opened):
    page = opened([*forked(1), *decided(2, ["ab"])])
    page.go("at=train.2&view=collaboration&b=train.1")
    assert page.text("[data-step='train 1']") == "It decided nothing in what is logged of this step."
    assert page.all("tr[data-choice=a] .number") == ["–", "50 %", "–"] and page.all(".chain li") == ["a", "b"]
    page.check_quiet()


@pytest.mark.parametrize("count", [1, 2, 7, 30])
def test_labels_keep_clear_of_each_other(opened, count):
    """Everybody is the first once and goes on to everybody, to itself too; the names are long."""
    names = [f"WWWWWWWWWW WWWWWWWWWWWW number {n:02d}" for n in range(count)]
    page = opened(decided(1, [[name, name, other] for name in names for other in names], names))
    page.go("view=collaboration")
    assert len(page.all("[data-step] .node")) == 2 * min(count, 12), "both sides show the one step"
    assert page.browser.execute_script(OVERLAPS) == []
    inside = """return [...document.querySelectorAll("[data-step]")].every((part) => {
      const around = part.getBoundingClientRect();
      return [...part.querySelectorAll("text.choice")].every((e) => {
        const box = e.getBoundingClientRect();
        return box.left > around.left && box.right < around.right && box.top > around.top && box.bottom < around.bottom;
      });
    })"""
    assert page.browser.execute_script(inside)
    page.check_quiet()


def test_a_decision_shows_its_options_and_how_probable_it_was(opened):
    calls = [
        decision("boss", 0, "b", "abc", -1.5),
        decision("boss", 1, "b", ["a", "b"], None, id="1"),
        decision("boss", 2, "?", "ab", None, id="2", status="unparsable"),
    ]
    calls[2]["decision"]["chosen"] = None
    page = opened(question(1, calls, [trajectory()]))
    page.go("view=question&q=0&node=c0")
    assert page.all(".options li") == ["a", "b", "c"] and page.all(".options .chosen") == ["b"]
    assert "Decisionamong 3 texts" in page.all(".detail h3")
    assert page.text(".options + .note") == "Chosen with probability 0.223 (log π −1.500)."
    page.go("view=question&q=0&node=c1")
    assert page.text(".options + .note") == "How probable it was is not known."
    page.go("view=question&q=0&node=c2")
    assert page.all(".options .chosen") == [] and page.text(".options + .note") == "What it said is none of them."
    page.check_quiet()


def test_hostile_names_are_shown_and_do_nothing(opened):
    lines = decided(1, [[HOSTILE, "b", "constructor", HOSTILE]], [HOSTILE, "b", "constructor"], agent=HOSTILE)
    page = opened([*lines, *(line | {"step": 2} for line in lines), *decided(3, ["ab"], agent="__proto__", number=1)])
    for address in ("view=collaboration&at=train.2&b=train.1", "at=train.1&view=question&q=0&node=c0"):
        page.go(address)
        assert page.all("main script, main img, main svg[onload]") == [], address
        assert any("window.broken = 1" in text for text in page.all("main")), address
    assert page.text(".options .chosen").replace("\x00", "") == HOSTILE.replace("\x00", "")
    page.go("view=collaboration&at=train.2&b=train.1")
    assert page.all("section h2")[1].startswith("__proto__") and page.all("ol.chain li")[1] == "b"
    page.browser.execute_script("document.querySelectorAll('.node').forEach((e) => e.focus())")
    page.check_quiet()
