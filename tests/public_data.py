"""Copies of public data sets beside the clone, for development. Where there are none, the tests of them are skipped."""

from pathlib import Path

import pytest

SHARED = Path(__file__).parents[2] / "shared" / "data"
needs_shared = pytest.mark.skipif(not SHARED.is_dir(), reason=f"the public data sets are not at {SHARED}")
