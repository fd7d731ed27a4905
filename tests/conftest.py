"""Order of the tests, tests that are coroutines, and cores for pytest-xdist's workers."""

import inspect
import os

import pytest
from hypothesis import settings

# No deadlines: the time of an example depends on what else the machine does.
settings.register_profile("verl_ext", deadline=None)
settings.load_profile("verl_ext")


def pytest_configure() -> None:
    """Each worker keeps to cores of its own, as the runs of a comparison do: see `launcher.shares`."""
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    if worker and hasattr(os, "sched_setaffinity"):
        from verl_ext.compare.launcher import shares

        number, count = int(worker.removeprefix("gw")), int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
        os.sched_setaffinity(0, shares(count)[number])


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
