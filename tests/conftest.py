"""Under pytest-xdist each worker keeps to cores of its own, as the runs of a comparison do: see `launcher.shares`."""

import os

from hypothesis import settings

# No deadlines: what an example takes depends on what else the machine does.
settings.register_profile("verl_ext", deadline=None)
settings.load_profile("verl_ext")


def pytest_configure() -> None:
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    if worker and hasattr(os, "sched_setaffinity"):
        from verl_ext.compare.launcher import shares

        number, count = int(worker.removeprefix("gw")), int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
        os.sched_setaffinity(0, shares(count)[number])
