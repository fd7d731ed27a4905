"""The viewer's page in a real browser: it opens, shows, compares, searches, and executes nothing that a model says.

Debian: apt-get install chromium chromium-driver. Without it these are skipped, unless VERL_EXT_NEED_BROWSER=1.
"""

from __future__ import annotations

import json
import shlex

from tests.evaluate.asking import questions
from tests.evaluate.conftest import Command, quick_compose
from tests.observe.browsing import Page, hidden
from tests.observe.deciding import decided
from tests.observe.viewing import HOSTILE, call, forked, question, trajectory
from tests.serving import ChatServer, answer, question_of
from verl_ext.evaluate import config as evaluate_config
from verl_ext.observe.viewer import main


def search(page, text):
    page.act(
        f"const e = document.getElementById('find'); e.value = {json.dumps(text)};"
        "e.dispatchEvent(new KeyboardEvent('keydown', {key: 'Enter'})); e.blur()"
    )


def test_it_opens_with_the_overview_of_the_last_training_step(opened):
    page = opened([*forked(1), *forked(2), *forked(2, number=1)])
    assert page.browser.title == "run – trajectories"
    assert page.text(".tile b") == "0.333" and page.all(".tile b")[1:] == ["2", "6", "8", "0"]
    # Two shared queries at 0.5; six answers at 0, 1, 0.
    cells = [page.all(f"tr[data-agent={agent}] td.number") for agent in "ab"]
    assert cells[0][:5] == ["2", "0.500", "0.500", "0.000", "0 %"] and cells[1][:3] == ["6", "0.333", "0.333"]
    assert len(page.all("#timeline [data-moment]")) == 2
    page.check_quiet()


def test_a_question_is_picked_and_its_forest_forks(opened):
    page = opened([*forked(1), *forked(1, number=1, size=4)])
    page.click(".questions .row", 1)
    assert "view=question" in page.address()
    assert sorted(page.all(".card .top b")) == ["a"] + ["b"] * (3 if "q=0" in page.address() else 4)
    page.go("at=train.1&view=question&q=1")
    assert page.text("h1") == "Question 1?" and "answer: gold" in page.text(".gold")
    assert page.all(".pill") == ["search"], "the shared tool call is drawn once"
    # a – search, search – b four times, and four ends.
    assert len(page.all("path.edge")) == 1 + 4 + 4 and page.all(".end") == ["0", "1", "0", "1"]
    assert sorted(page.all("text.flow")) == sorted(
        f"{value}shared reward that flows back from this call" for value in "0101"
    )
    tops = page.browser.execute_script("return [...document.querySelectorAll('.card')].map((e) => e.offsetTop)")
    assert len(set(tops)) == 4 and sorted(tops)[0] == sorted(tops)[1], "a lane each; the shared call is in the first"
    page.check_quiet()


def test_a_call_shows_tokens_by_advantage_its_prompt_on_demand_and_its_group(opened):
    page = opened(forked(1))
    page.go("at=train.1&view=question&q=0&node=c2")
    assert page.text(".detail h2") == "b" and page.all(".sum dd") == ["1", "0", "1", "0"]
    assert page.all(".tokens .token") == ["ans", "wer 1"]
    colours = page.browser.execute_script(
        "return [...document.querySelectorAll('.tokens .token')].map((e) => getComputedStyle(e).backgroundColor)"
    )
    assert len(set(colours)) == 2 and not any("rgba(0, 0, 0, 0)" == colour for colour in colours)
    assert page.all(".detail .legend .number") == ["−1", "+1"]
    assert page.all(".member .said") == ["answer 1", "answer 0", "answer 2"], "the best first"
    assert page.all(".message .text") == []
    page.browser.execute_script("document.querySelector('.message summary').click()")
    assert page.all(".message .text") == ["prompt of b"]
    page.click(".pill")
    assert page.text(".detail h2") == "search" and "found it" in page.all(".detail .text")[1]
    assert "node=t0" in page.address()
    page.check_quiet()


def test_a_decisions_advantage_is_that_of_its_tokens_with_a_choice(opened):
    """Of four tokens one trains: 0.8 is the advantage of the call, not 0.8 / 4."""
    lines = forked(1)
    made = {"output": "a,b.", "tokens": ["a", ",", "b", "."], "advantage": [0.8, None, None, None]}
    lines[0]["calls"][2] |= made
    lines[0]["calls"][3]["advantage"] = None  # a call whose every token was without a choice
    page = opened(lines)
    page.go("at=train.1&view=question&q=0&node=c2")
    assert page.all(".sum dd")[-1] == "+0.80"
    assert [text for text in page.all(".card small") if text.startswith("A ")] == ["A +0.50", "A −0.50", "A +0.80"]
    members = page.all(".member .number")
    assert members[1::2] == ["+0.80", "–", "−0.50"]
    titles = "return [...document.querySelectorAll('.tokens .token')].map((e) => e.title)"
    assert page.browser.execute_script(titles)[:2] == ["token 1, advantage +0.80", "token 2, does not train"]
    assert "forked from0 at b.0 (sample 1)" in page.all(".detail tr")
    edges = "return [...document.querySelectorAll('.card')].map((e) => getComputedStyle(e).borderLeftColor)"
    assert len(set(page.browser.execute_script(edges))) == 4
    page.check_quiet()


def test_keys_walk_and_the_address_brings_one_back(opened):
    page = opened([*forked(1), *forked(2), *forked(2, number=1), *forked(3, number=1)])
    page.go("at=train.2&view=question&q=0&node=c0")
    page.press("\ue014")  # right: to the tool, then to an answer
    assert "node=t0" in page.address()
    page.press("\ue014")
    page.press("\ue015")  # down
    assert "node=c2" in page.address()
    page.press("j")
    assert page.text("h1") == "Question 1?" and "q=1" in page.address()
    page.press("]")
    assert "at=train.3" in page.address() and page.text("h1") == "Question 1?", "the same question where it is logged"
    page.press("o")
    assert "view=overview" in page.address()
    page.act("history.back()")
    assert page.text("h1") == "Question 1?"
    before = page.browser.execute_script("return document.documentElement.dataset.theme")
    page.browser.execute_script("document.getElementById('theme').click()")
    assert page.browser.execute_script("return document.documentElement.dataset.theme") != before
    page.check_quiet()


def test_two_steps_are_compared_by_question(opened):
    lines = [*forked(1), *forked(1, number=1), *forked(4, size=2), *forked(4, number=5)]
    page = opened(lines)
    page.go("at=train.4&b=train.1&view=compare")
    assert page.all(".pairs .row .said") == ["Question 0?"], "the one question in both"
    # Mean reward 1/3 at step 1, of three answers; 1/2 at step 4, of two.
    assert page.all(".pairs .row .number") == ["0.33 → 0.50", "+0.17"]
    rewards = page.all("tr[data-agent=b] td.number")
    assert rewards[0] == "0.333 → 0.400+0.07"
    page.click(".pairs .row")
    said = page.all(".pair .said-often .text")
    assert "query of step 1" in said and "query of step 4" in said and "pair=0" in page.address()
    page.check_quiet()
    page = opened([*forked(1), *forked(4, number=5)])
    page.go("at=train.4&b=train.1&view=compare")
    assert page.all(".pairs") == [] and "share no logged question" in " ".join(page.all("h2"))


def test_comparing_begins_with_the_first_and_the_last_validation(opened):
    validations = [line | {"phase": "val"} for step in (0, 4, 8) for line in forked(step)]
    page = opened([*forked(1), *forked(9), *validations])
    page.click("[data-tab=compare]")
    assert "at=val.8" in page.address() and "b=val.0" in page.address()
    assert page.all(".pairs .row .said") == ["Question 0?"]
    page.act("const e = document.getElementById('moment'); e.value = 0; e.dispatchEvent(new Event('change'))")
    page.press("c")
    assert "at=train.1" in page.address(), "who has chosen a step in the comparison keeps it"
    page = opened([*forked(1), *forked(9), *validations[:1]])
    page.press("c")
    assert "at=train.9" in page.address() and "b=train.1" in page.address()


def test_questions_have_one_order_the_lowest_reward_first(opened):
    good = forked(1, number=0)
    for one in good[0]["trajectories"]:
        one["reward"] = 1.0
    page = opened([*good, *forked(1, number=1), *forked(1, number=2, size=4)])
    order = ["Question 1?", "Question 2?", "Question 0?"]  # 1/3, 1/2, 1
    assert page.all(".questions .said") == order
    page.click(".questions .row")
    assert page.text("h1") == order[0] and page.all("#questions .said") == order
    page.press("j")
    assert page.text("h1") == order[1], "the keys walk in this order"


def test_failures_are_named_counted_and_filtered(opened):
    odd = call("a", status="unparsable", error="no ids", rewards={"shared": None, "specific": 0, "total": None})
    tool = {"id": "0 | tool:search.0", "name": "search", "trajectories": [0], "after": [], "arguments": {}}
    lost = trajectory(None, "tool_error", error="server gone")
    broken = question(
        1, [odd], [lost], tools=[tool | {"result": None, "failure": "gone"}], number=1, index=1, text="Bad?"
    )
    page = opened([*forked(1), *broken])
    assert page.text(".tile:last-child b") == "1"
    kinds = page.browser.execute_script(
        "return [...document.querySelectorAll('[data-failure]')].map((e) => e.dataset.failure)"
    )
    assert sorted(kinds) == ["a: unparsable", "search: tool failed", "trajectory: tool_error"]
    page.click("[data-failure='a: unparsable']")
    assert page.text(".detail .error") == "no ids" and "server gone" in page.text("header.question .error")
    assert len(page.all(".card.bad")) == len(page.all(".pill.bad")) == 1 and page.all(".end.bad") == ["▲ tool error"]
    assert len(page.all("#questions .row")) == 2
    page.press("f")
    assert page.all("#questions .row .said") == ["Bad?"] and "bad=1" in page.address()
    page.check_quiet()


def test_hostile_text_is_shown_and_does_nothing(opened):
    harm = dict.fromkeys(("agent", "output", "group", "error", "status", "id"), HOSTILE)
    harm |= {"tokens": [HOSTILE], "scope": [HOSTILE], "metrics": {HOSTILE: 1.0}}
    harm |= {"prompt": [{"role": HOSTILE, "content": HOSTILE}]}
    tool = {"id": HOSTILE, "name": HOSTILE, "trajectories": [0], "after": [HOSTILE], "arguments": HOSTILE}
    ended = trajectory(None, HOSTILE, error=HOSTILE, notes={HOSTILE: HOSTILE}, stream=[HOSTILE])
    lines = question(1, [call("a", **harm)], [ended], tools=[tool | {"result": HOSTILE, "failure": None}], text=HOSTILE,
                     source=HOSTILE, gold={"target": [HOSTILE]})  # fmt: skip
    page = opened([*lines, *(line | {"step": 2} for line in lines)])
    kept = HOSTILE.replace("\x00", "")
    for address in (
        "view=overview",
        "view=question&q=0&node=c0",
        "view=question&q=0&node=t0",
        "view=compare&b=train.1&pair=0",
        "view=search&find=window.broken",
        "view=<script>window.broken=5</script>&at=%3Cimg src=x onerror=window.broken=6%3E&node=<b>&q=<i>&filter=<b>",
    ):
        page.go(address)
        page.browser.execute_script("document.querySelectorAll('details').forEach((e) => { e.open = true; })")
        assert page.all("main script, main img, main svg[onload]") == [], address
        assert any("window.broken = 1" in text for text in page.all("main")) or "view=<" in address
    page.go("view=question&q=0&node=c0")
    assert page.text("h1").replace("\x00", "") == kept and page.text(".tokens .token").replace("\x00", "") == kept
    page.check_quiet()


def test_the_policy_is_shown_of_a_call_and_beside_its_agent(opened):
    lines = question(1, [call("a", policy="small"), call("b", policy="large")], [trajectory()])
    page = opened([*lines, *question(2, [call("a"), call("b")], [trajectory()])])
    page.go("at=train.1&view=question&q=0&node=c1")
    of_call = dict(zip(page.all("table.plain th"), page.all("table.plain td"), strict=True))
    assert of_call["policy"] == "large"
    page.go("at=train.1")
    assert page.all("tr[data-agent] td:first-child") == ["a policy small", "b policy large"]
    page.go("at=train.2")
    assert page.all("tr[data-agent] td:first-child") == ["a", "b"], "a run with one policy has no name for it"
    page.go("at=train.2&view=question&q=0&node=c1")
    assert "policy" not in page.all("table.plain th")
    page.check_quiet()


def test_odd_numbers_and_very_long_texts(opened):
    none = {"shared": None, "specific": "NaN", "total": 1e308}
    long = call(
        "a",
        adapter="writer",
        difference="inf",
        rewards=none,
        output="x" * 60_000,
        tokens=["x" * 10] * 6000,
        advantage=[0.5] * 5999 + [None],
    )
    page = opened(question(1, [long], [trajectory(None)], text="w" * 5000))
    page.go("view=question&q=0&node=c0")
    assert page.all(".sum dd")[:2] == ["–", "–"] and len(page.all(".token")) == 3000
    assert {"writer", "inf"} <= {*page.all("table.plain td")} and "adapter" in page.all("table.plain th")
    page.browser.execute_script("document.querySelector('.tokens .more').click()")
    assert len(page.all(".token")) == 6000
    width = "return document.documentElement.scrollWidth <= innerWidth"
    assert page.browser.execute_script(width), "long words do not push the page out of the window"
    page.check_quiet()


def test_search_looks_into_every_text_and_leads_there(opened):
    lines = forked(1, gold={"target": ["Golden Gate"]})
    lines[0]["tools"][0]["result"] = [{"title": 'He said: say "hi"'}]
    lines[0]["trajectories"][0]["error"] = "the prompt is too long"
    lines[0]["calls"][0]["reasoning"] = "a silent thought"
    page = opened([*lines, *forked(2), *forked(7, number=3)])
    page.go("at=train.1")
    for wanted in ("golden gate", "a silent thought", 'say "hi"', "too long", "QUERY of step 7"):
        search(page, wanted)
        assert [text.lower() for text in page.all(".hit mark")] == [wanted.lower()]
    assert "find=QUERY" in page.address()
    before = page.browser.execute_script("return document.body.dataset.ready")
    key = "new KeyboardEvent('keydown', {key: 'ArrowDown', bubbles: true, cancelable: true})"
    assert page.browser.execute_script(f"return document.body.dispatchEvent({key})"), "the browser may scroll"
    assert page.browser.execute_script("return document.body.dataset.ready") == before
    page.click(".hit")
    assert "at=train.7" in page.address() and "node=c0" in page.address() and page.text("h1") == "Question 3?"
    page.check_quiet()


def test_an_evaluation_opens_as_a_run_does(chromium, tmp_path, monkeypatch, capsys):
    """Two agents that fail, a tool, a judge that is right once; two samples of each of three questions."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(evaluate_config, "compose", quick_compose)

    def reply(body, number):
        asked = question_of(body).split()
        return {"left": answer("x", "length"), "right": answer("two words")}.get(asked[0]) or answer("word0")

    command = Command(tmp_path)
    with ChatServer(reply) as server:
        more = ["evaluate.samples=2", "evaluate.temperature=1.0"]
        assert command(*more, recipe="team", server=server, files=[questions(tmp_path, 3)]) == 0
    look = next(line for line in capsys.readouterr().out.splitlines() if "look at them" in line)
    assert main([shlex.split(look)[-1]]) == 0
    page = Page(chromium, command.output / "trajectories.html")
    assert page.browser.title == "out – trajectories" and page.all("#moment option") == ["eval"]
    assert page.all(".tile b")[1:] == ["3", "6", "18", "0"] and "at=" not in page.address()
    cells = {agent: page.all(f"tr[data-agent={agent}] td.number") for agent in ("left", "right", "judge")}
    assert cells["left"][0] == "6" and cells["left"][4] == "100 %" and cells["judge"][4] == "0 %"
    assert hidden(page, "[data-tab=compare]") and page.all("#timeline [data-moment]") == [""]
    page.go("view=question&q=0")
    assert sorted(page.all(".card .top b")) == ["judge", "judge", "l / left", "l / left", "r / right", "r / right"]
    assert page.all(".pill") == ["library", "library"] and sorted(page.all(".end")) == ["1", "1"]
    assert page.all(".legend") == [] and "advantage" not in page.all(".sum dt"), "nothing was trained"
    nodes = page.browser.execute_script("return [...document.querySelectorAll('.card')].map((e) => e.dataset.node)")
    judge = nodes[page.all(".card .top b").index("judge")]
    page.go(f"view=question&q=0&node={judge}")
    assert page.text(".detail .text") == "word0" and "Output2 tokens" in page.all(".detail h3")
    page.browser.execute_script("document.querySelector('.message summary').click()")
    assert "word0" in page.text(".message .text")
    rows = page.all(".detail tr")
    assert "score: f11" in rows and "score: recall@50.50" in rows
    page.check_quiet()


def test_five_thousand_calls_are_usable(opened):
    """One question of 3,000 calls and 500 of four: what is not in view is not there."""
    page = opened([*forked(1, size=2999), *(line for n in range(1, 501) for line in forked(1, number=n))])
    assert page.all(".tile b")[1:4] == ["501", "4,499", "5,000"]
    assert 0 < len(page.all(".questions .row")) < 60
    page.go("view=question&q=0")
    assert 0 < len(page.all(".card")) < 60 and len(page.all("path.edge")) < 120
    page.browser.execute_script("document.querySelector('.forest').scrollTop = 1e9")
    page.wait("1")
    from selenium.webdriver.support.wait import WebDriverWait

    WebDriverWait(page.browser, 10, 0.05).until(lambda _: "answer 2998" in page.all(".card .said"))
    assert len(page.all(".card")) < 60 and page.all(".end")[-1] == "0"
    page.browser.execute_script("document.querySelector('#questions .lazy').scrollTop = 1e9")
    WebDriverWait(page.browser, 10, 0.05).until(lambda _: "Question 500?" in page.all("#questions .said"))
    assert len(page.all("#questions .row")) < 60
    page.check_quiet()


def test_a_narrow_window_has_everything_in_reach(opened):
    names = [f"a rather long name {n}" for n in range(9)]
    page = opened([*forked(1), *decided(1, [names], names, number=1)])
    metrics = {"width": 420, "height": 860, "deviceScaleFactor": 1, "mobile": False}
    size = "const {width, top} = document.querySelector(arguments[0]).getBoundingClientRect(); return [width, top]"
    page.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    try:
        for address in ("view=overview", "view=question&q=0&node=c1", "view=compare", "view=collaboration"):
            page.go(address)
            assert page.browser.execute_script("return document.documentElement.scrollWidth <= innerWidth"), address
            assert page.browser.execute_script("return document.querySelector('main').clientHeight > 300"), address
            first_line = [
                page.browser.execute_script(size, one) for one in (".name", "#find", "#theme", "#help-button")
            ]
            assert min(first_line[0][0], first_line[1][0]) > 100, "room for a name and for words"
            assert max(top for _, top in first_line) < 30, "the buttons stay in the first line"
    finally:
        page.browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    page.check_quiet()
