"""Files appear whole or not at all; folders are locked by one process."""

import errno
import hashlib
import os
import signal
import subprocess
import sys

import pytest

from verl_ext.storage import files


def test_a_file_is_replaced_when_the_block_ends(tmp_path):
    target = tmp_path / "new" / "state.json"
    files.write_file(target, "né")
    assert target.read_bytes() == "né".encode()
    with files.writing(target) as file:
        file.write("two\n")
        file.flush()
        assert target.read_bytes() == "né".encode()
    assert target.read_text() == "two\n"
    files.write_file(target, b"\x00")
    assert target.read_bytes() == b"\x00" and list(target.parent.iterdir()) == [target]


def test_a_block_that_raises_leaves_the_old_file_alone(tmp_path):
    files.write_file(tmp_path / "a", "old")
    with pytest.raises(RuntimeError), files.writing(tmp_path / "a") as file:
        file.write("new")
        raise RuntimeError
    assert [path.name for path in tmp_path.iterdir()] == ["a"] and (tmp_path / "a").read_text() == "old"


def test_two_writers_of_a_process_do_not_share_their_new_file(tmp_path):
    """Two threads, for instance."""
    with files.writing(tmp_path / "a") as one:
        one.write("first, and long")
        with files.writing(tmp_path / "a") as other:
            other.write("second")
        assert (tmp_path / "a").read_text() == "second"
    assert (tmp_path / "a").read_text() == "first, and long" and len(list(tmp_path.iterdir())) == 1


def test_the_content_is_on_disk_before_the_rename(tmp_path, monkeypatch):
    done = []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda fd: (done.append(os.fstat(fd).st_size), fsync(fd)))
    monkeypatch.setattr(os, "replace", lambda *paths: (done.append("rename"), replace(*paths)))
    files.write_file(tmp_path / "a", "12345")
    assert done == [5, "rename"]


def test_a_kill_in_the_middle_leaves_the_old_file(tmp_path):
    files.write_file(tmp_path / "a", "old")
    program = (
        "import os, sys; from verl_ext.storage.files import writing\n"
        "with writing(sys.argv[1]) as file: file.write('new'); file.flush(); os.kill(os.getpid(), 9)"
    )
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path / "a")])
    assert done.returncode == -signal.SIGKILL and (tmp_path / "a").read_text() == "old"


def test_a_folder_is_locked_until_the_lock_is_closed(tmp_path):
    lock = files.lock_folder(tmp_path)
    assert lock is not None and files.lock_folder(tmp_path) is None
    lock.close()
    again = files.lock_folder(tmp_path)
    assert again is not None
    again.close()


def test_a_file_system_without_locks_is_not_taken_for_another_process(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(files.fcntl, "flock", refuse)
    with pytest.raises(OSError, match="No locks available: the file system of .* cannot lock files. Remedy"):
        files.lock_folder(tmp_path)


def test_a_checksum_needs_nothing_that_python_3_10_lacks(tmp_path, monkeypatch):
    monkeypatch.delattr(hashlib, "file_digest", raising=False)
    (tmp_path / "weights").write_bytes(content := b"weights" * 200_000)
    assert files.file_sha256(tmp_path / "weights") == hashlib.sha256(content).hexdigest()
