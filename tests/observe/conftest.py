"""A real browser for the tests of the viewer's page."""

from __future__ import annotations

import pytest

from tests.observe.browsing import Page, start_browser


@pytest.fixture(scope="session")
def chromium(tmp_path_factory):
    browser = start_browser(tmp_path_factory.mktemp("browser"))
    yield browser
    browser.quit()


@pytest.fixture
def opened(chromium, tmp_path):
    return lambda lines: Page(chromium, tmp_path / "page.html", list(lines))
