"""Ray runs this instead of Python: `client.py ADDRESS default_worker.py ARGUMENTS…` (see the package).

It lives as long as the worker, because Ray watches it until the worker has registered.
"""

import array
import json
import os
import socket
import sys


def main() -> None:
    """Ask the preloaded process for a worker with our arguments, environment, cores and outputs; wait until it ends."""
    address, arguments = sys.argv[1], sys.argv[2:]
    server = socket.socket(socket.AF_UNIX)
    try:
        server.connect(address)
    except OSError:  # the preloaded process has ended or could not start
        os.execv(sys.executable, [sys.executable, *arguments])
    cores, folder = list(os.sched_getaffinity(0)), os.getcwd()
    request = {"arguments": arguments, "environment": dict(os.environ), "folder": folder, "cores": cores}
    outputs = array.array("i", [1, 2])
    body = json.dumps(request).encode()
    server.sendmsg([len(body).to_bytes(8, "big")], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, outputs)])
    server.sendall(body)
    server.recv(1)  # the worker's end of the socket closes when the worker ends


if __name__ == "__main__":
    main()
