"""read_file: text below one folder, and no way out of it."""

from __future__ import annotations

import asyncio
import os
import socket
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from verl_ext.tools import ToolError, ToolRefused
from verl_ext.tools.files import read_file

SECRET = "the secret outside"
PARTS = ["..", ".", "", "out", "sub", "secret.txt", "up.txt"]


@pytest.fixture
def folder(tmp_path):
    """A folder with all kinds of files, beside a secret."""
    (tmp_path / "secret.txt").write_text(SECRET)
    below = tmp_path / "files"
    (below / "sub" / "deep").mkdir(parents=True)
    (below / "a.txt").write_text("first\nsecond\n")
    (below / "sub" / "deep" / "é ü.csv").write_text("ä,1\n")
    (below / "up.txt").symlink_to("../secret.txt")
    (below / "inside.txt").symlink_to("a.txt")
    (below / "out").symlink_to(tmp_path)
    os.mkfifo(below / "fifo")
    return below


def read(folder, path, **more):
    """The answer to one call, which may not hang."""
    return asyncio.run(asyncio.wait_for(read_file(folder=str(folder), **more)(path=path), 60))


def refusal(folder, path, **more):
    with pytest.raises(ToolRefused) as error:
        read(folder, path, **more)
    assert SECRET not in str(error.value)
    return str(error.value)


def test_text_files_are_read(folder):
    assert read(folder, "a.txt") == read(folder, ".//a.txt") == "first\nsecond\n"
    assert read(folder, "sub/deep/é ü.csv") == read(folder, "sub//deep/./é ü.csv") == "ä,1\n"
    (folder / "marked.txt").write_bytes(b"\xef\xbb\xbfwith a mark\r\nand \x1b[31mred")
    assert read(folder, "marked.txt") == "with a mark\nand \\x1b[31mred"
    (folder / "empty").touch()
    assert read(folder, "empty") == ""


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("../secret.txt", "leads out"),
        ("sub/..", "leads out"),
        ("/etc/passwd", "leads out"),
        ("up.txt", "symbolic link"),
        ("out/secret.txt", "symbolic link"),
        ("sub", "is a folder"),
        (".", "the folder itself"),
        ("a.txt/b", "no folder"),
        ("none.txt", "No such file"),
        ("x" * 300, "File name too long"),
        ("y" * 5000, "must be the path"),
        ("a.txt\0.png", "must be the path"),
        ("", "must be the path"),
        (None, "given NoneType"),
        ("\ud800", "no such name"),
        ("..\udc80", "No such file"),
    ],
)
def test_anything_else_is_refused_with_its_reason(folder, path, words):
    assert words in refusal(folder, path)


def test_what_is_no_ordinary_file_is_not_even_waited_for(folder):
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(folder / "socket"))
    assert all("no ordinary file" in refusal(folder, name) for name in ("fifo", "socket"))
    assert "no ordinary file" in refusal("/dev", "null") and "no ordinary file" in refusal("/dev", "zero")
    server.close()


@pytest.mark.parametrize("content", [b"\x89PNG\r\n\x1a\n\0\0", b"caf\xe9", "text".encode("utf-16"), b"a\0b", b"\xc3"])
def test_what_is_no_text_is_said_to_be_none(folder, content):
    (folder / "x.bin").write_bytes(content)
    assert f"no text but {len(content)} bytes" in refusal(folder, "x.bin")


def test_of_a_long_file_the_beginning_is_shown_and_that_it_is_cut(folder):
    (folder / "long.txt").write_text("é" * 5000)
    expected = "é" * 100 + "\n[cut: these are the first 100 characters of a file of 10,000 bytes]"
    assert read(folder, "long.txt", max_chars=100) == expected
    assert read(folder, "long.txt", max_chars=5000) == "é" * 5000
    (folder / "short.txt").write_text("é" * 101)
    assert read(folder, "short.txt", max_chars=100).endswith("the first 100 characters of a file]")
    with open(folder / "huge.txt", "wb") as file:  # a terabyte, of which only the beginning has blocks
        file.write(b"beginning " * 1000)
        file.truncate(1 << 40)
    assert "first 1,000 characters of a file of 1,099,511,627,776 bytes" in read(folder, "huge.txt", max_chars=1000)


def test_no_more_is_read_than_memory_may_hold(folder):
    with pytest.raises(ValueError, match="max_chars=1000000000000 must be at most"):
        read(folder, "long.txt", max_chars=10**12)


def test_a_character_at_the_cut_is_never_halved(folder):
    for length in range(95, 106):
        (folder / "x.txt").write_text("a" * length + "😀" * 200)
        assert read(folder, "x.txt", max_chars=100).startswith(("a" * length + "😀" * 200)[:100] + "\n[cut")


def test_a_path_that_changes_under_the_reader_never_leads_out(folder):
    """A folder is exchanged for a link to the outside, again and again, while it is read."""
    (folder / "swap").mkdir()
    (folder / "swap" / "secret.txt").write_text("inside")
    (folder / "link").symlink_to(folder.parent)
    done = threading.Event()

    def swap():
        while not done.is_set():
            os.rename(folder / "swap", folder / "kept")
            os.rename(folder / "link", folder / "swap")
            os.rename(folder / "swap", folder / "link")
            os.rename(folder / "kept", folder / "swap")

    async def many():
        """Reads until it has met both states; a loaded machine may need many reads for that."""
        tool, found = read_file(folder=str(folder)), []
        while len(found) < 500 or (len(set(map(type, found))) < 2 and len(found) < 100_000):
            found += await asyncio.gather(*[tool(path="swap/secret.txt") for _ in range(50)], return_exceptions=True)
        return found, tool.counts()

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        found, counts = asyncio.run(many())
    finally:
        done.set()
        thread.join()
    texts = [one for one in found if isinstance(one, str)]
    assert texts and set(texts) == {"inside"} and all(isinstance(one, str | ToolRefused) for one in found)
    assert counts == {"read": len(texts), "cut": 0, "refused": len(found) - len(texts)} and counts["refused"]


@given(st.text(max_size=30) | st.lists(st.sampled_from(PARTS)).map("/".join))
@settings(max_examples=150, deadline=None)
def test_no_path_leads_out(tmp_path_factory, path):
    below = tmp_path_factory.getbasetemp() / "fuzzed" / "files"
    if not below.exists():
        (below / "sub").mkdir(parents=True)
        (below.parent / "secret.txt").write_text(SECRET)
        (below / "up.txt").symlink_to("../secret.txt")
        (below / "out").symlink_to("..")
    with pytest.raises(ToolRefused) as error:
        read(below, path)
    assert SECRET not in str(error.value)


def test_no_descriptor_stays_open(folder):
    tool = read_file(folder=str(folder))

    async def calls():
        for path in ("a.txt", "up.txt", "none", "fifo", "sub/deep/x", "a.txt/b", "\ud800", "sub"):
            try:
                await tool(path=path)
            except ToolRefused:
                pass

    asyncio.run(calls())
    before = len(os.listdir("/proc/self/fd"))
    asyncio.run(calls())
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_folder_that_goes_is_the_tools_failure(folder):
    tool = read_file(folder=str(folder))
    folder.rename(folder.with_name("gone"))
    with pytest.raises(ToolError, match="cannot be opened") as error:
        asyncio.run(tool(path="a.txt"))
    assert not isinstance(error.value, ToolRefused)


def test_the_content_of_the_folder_counts_and_not_its_place(folder):
    before = read_file.identity(folder=str(folder))
    moved = folder.rename(folder.with_name("elsewhere"))
    assert read_file.identity(folder=str(moved)) == before
    (moved / "a.txt").write_text("other")
    assert read_file.identity(folder=str(moved)) != before
