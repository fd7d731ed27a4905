"""Order of the tests, and tests that are coroutines."""

import inspect

import pytest
from hypothesis import settings

# No deadlines: the time of an example depends on what else the machine does.
settings.register_profile("verl_ext", deadline=None)
settings.load_profile("verl_ext")


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine on the event loop of tests/helpers.py, whose clock jumps."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    from tests.helpers import run

    run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in inspect.signature(pyfuncitem.obj).parameters}))
    return True


@pytest.hookimpl(tryfirst=True)  # before -m selects by marker
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests/end_to_end, and start with real runs: the longest first, so that workers end at the same time."""
    for item in items:
        if "end_to_end" in item.path.parts:
            item.add_marker("end_to_end")
    items.sort(key=lambda item: item.get_closest_marker("end_to_end") is None)
