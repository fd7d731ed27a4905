"""Fixtures of the tools' tests."""

import pytest

from tests.tools.website import Site, serve


@pytest.fixture
def site() -> str:
    """host:port of the site, which has not been asked for anything yet."""
    Site.asked.clear()
    Site.headers_seen.clear()
    return serve()
