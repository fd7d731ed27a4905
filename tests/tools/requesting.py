"""Requests to real servers, and a server of given answers: for tests of HTTP servers and their clients."""

import asyncio
import json
import re
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from contextlib import contextmanager

import uvicorn

from verl_ext.tools.http.server import address_of, configuration, listen


def start(module, *arguments, says):
    """(process, url) of a server, when its second line has told the url in the way of the pattern `says`."""
    command = [sys.executable, "-m", module, *map(str, arguments), "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    lines = [process.stdout.readline(), process.stdout.readline()]
    match = re.search(says, lines[1])
    assert match, lines + [process.communicate(timeout=20)[0]]
    return process, match.group(1)


def stop(process):
    """What a server prints after SIGTERM."""
    process.send_signal(signal.SIGTERM)
    return process.communicate(timeout=500)[0]


@contextmanager
def running(app):
    """The url of an application that a thread of this process serves."""
    listener = listen("127.0.0.1", 0)
    server = uvicorn.Server(configuration(app))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        yield address_of(listener, "127.0.0.1")
    finally:
        server.should_exit = True
        thread.join()


def post(url, body, path, kind="application/json"):
    """(status, parsed answer) of one raw request."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    request = urllib.request.Request(url + path, data=data, headers={"Content-Type": kind})
    try:
        with urllib.request.urlopen(request, timeout=300) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


async def serve(answers):
    """A TCP server that answers request i with answers[i] (the last one repeats); None: no answer at all."""
    seen = []

    async def handle(reader, writer):
        head = await reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"Content-Length: (\d+)", head)
        await reader.readexactly(int(length.group(1)) if length else 0)
        answer = answers[min(len(seen), len(answers) - 1)]
        seen.append(head)
        if answer is None:
            await reader.read()  # until the client gives up
        else:
            status, body = answer
            head = f"HTTP/1.1 {status} X\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
            writer.write(head.encode() + body)
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    return server, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", seen
