"""A real browser for tests of the viewer's page: chromium and chromedriver, as Debian has them."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from verl_ext.observe.viewer import build_page

FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --disable-dev-shm-usage --window-size=1440,900"
)
SHOWN = "return document.body.dataset.ready"


def start_browser(profile: Path) -> Any:
    """A browser with a fresh profile. Without one the test is skipped, or fails if VERL_EXT_NEED_BROWSER=1."""
    program = shutil.which("chromium") or shutil.which("google-chrome")
    driver = shutil.which("chromedriver")
    if not program or not driver:
        reason = "needs a browser: apt-get install chromium chromium-driver"
        pytest.fail(reason) if os.environ.get("VERL_EXT_NEED_BROWSER") == "1" else pytest.skip(reason)
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = program
    for flag in [*FLAGS.split(), f"--user-data-dir={profile}"]:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    return webdriver.Chrome(options=options, service=Service(driver))


def hidden(page: Page, selector: str) -> bool:
    """Whether an element is hidden."""
    return page.browser.execute_script("return document.querySelector(arguments[0]).hidden", selector)


class Page:
    """A page, written from these records if there are some, open in the browser."""

    def __init__(self, browser, path, records=None):
        self.browser, self.path = browser, path
        if records is not None:
            path.write_text(build_page(records, "run"), encoding="utf-8")
        for log in ("browser", "performance"):
            browser.get_log(log)
        self.go("")

    def go(self, address):
        """Open the page afresh at `#address`."""
        self.browser.get("about:blank")
        self.browser.get(f"{self.path.as_uri()}#{address}")
        self.wait("1")

    def wait(self, turn):
        """Until the page has been drawn `turn` times."""
        from selenium.webdriver.support.wait import WebDriverWait

        WebDriverWait(self.browser, 30, 0.05).until(lambda b: int(b.execute_script(SHOWN) or 0) >= int(turn))

    def all(self, selector):
        """Texts of the elements."""
        script = "return [...document.querySelectorAll(arguments[0])].map((e) => e.textContent)"
        return self.browser.execute_script(script, selector)

    def text(self, selector):
        """Text of the first of them; fails if there is none."""
        return self.all(selector)[0]

    def act(self, script, *arguments):
        """Run a script that makes the page draw anew, and wait for it."""
        turn = int(self.browser.execute_script(SHOWN))
        self.browser.execute_script(script, *arguments)
        self.wait(turn + 1)

    def click(self, selector, nth=0):
        self.act("document.querySelectorAll(arguments[0])[arguments[1]].click()", selector, nth)

    def press(self, key):
        from selenium.webdriver.common.action_chains import ActionChains

        turn = int(self.browser.execute_script(SHOWN))
        ActionChains(self.browser).send_keys(key).perform()
        self.wait(turn + 1)

    def address(self):
        return self.browser.execute_script("return location.hash")

    def check_quiet(self):
        """No error in the console, nothing executed, and no request but for the page itself."""
        assert self.browser.get_log("browser") == []
        assert self.browser.execute_script("return window.broken ?? null") is None
        sent = [json.loads(entry["message"])["message"] for entry in self.browser.get_log("performance")]
        urls = {m["params"]["request"]["url"].split("#")[0] for m in sent if m["method"] == "Network.requestWillBeSent"}
        # The browser's own first tab may still be loading its parts.
        assert {url for url in urls if not url.startswith(("data:", "about:", "chrome"))} == {self.path.as_uri()}
