"""The preloaded process, from which Ray's workers are forked: `template.py ADDRESS MODULE…` (see the package).

It imports third-party modules only. It must not import Ray, whose native part reads a worker's environment (job,
raylet) when it is loaded, nor verl, which imports Ray.
"""

from __future__ import annotations

import array
import contextlib
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import sys


def main() -> None:
    """Listen at ADDRESS, and serve until the driver has ended."""
    address, *modules = sys.argv[1:]
    del sys.path[0]  # this folder
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address + ".new")
    listener.listen(64)  # workers that come during the imports wait
    os.rename(address + ".new", address)
    try:
        serve(listener, modules)
    finally:
        if listener.fileno() >= 0:  # a worker, which closes its copy, comes by here, too
            os.unlink(address)
            os.rmdir(os.path.dirname(address))


def serve(listener: socket.socket, modules: list[str]) -> None:
    """Import the modules, then fork a worker for every connection, until the driver has ended."""
    for name in modules:
        if _driver_has_ended():
            return
        with contextlib.suppress(ImportError):  # a worker that needs it says so
            importlib.import_module(name)
    gc.collect()
    gc.freeze()  # the collector of a fork would write to, and so copy, the shared memory
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel forgets ended workers
    while True:
        select.select([listener, sys.stdin], [], [])
        if _driver_has_ended():
            return
        connection, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            run_worker(connection)
        connection.close()


def _driver_has_ended() -> bool:
    """Its end of the pipe to this process is closed then."""
    return bool(select.select([sys.stdin], [], [], 0)[0])


def run_worker(connection: socket.socket) -> None:
    """Become the worker that the client asks for. The connection stays open until this process ends."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    size, ancillary, _, _ = connection.recvmsg(8, socket.CMSG_LEN(2 * array.array("i").itemsize))
    outputs = array.array("i", ancillary[0][2])
    with connection.makefile("rb") as stream:
        request = json.loads(stream.read(int.from_bytes(size, "big")))
    for number, output in enumerate(outputs, start=1):
        os.dup2(output, number)
        os.close(output)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.setpgid(0, 0)  # a raylet kills the group of a worker that has ended: the others must not be in it
    os.sched_setaffinity(0, request["cores"])
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.argv = request["arguments"]
    sys.path.insert(0, os.path.dirname(sys.argv[0]))
    if "numpy" in sys.modules:  # Python seeds its own generator anew in a fork
        sys.modules["numpy"].random.seed()
    runpy.run_path(sys.argv[0], run_name="__main__")
    sys.exit(0)


if __name__ == "__main__":
    main()
