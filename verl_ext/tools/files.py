"""The tool with which agents read files: text below one folder, and nothing else.

    await read_file(path="reports/2024.csv")     "year,sales\\n2023,…"
    await read_file(path="../secrets")           ToolRefused: read_file: '../secrets' leads out of the folder …

A path is opened one component at a time, each relative to the one before it, and symbolic links are refused. So the
file lies below the folder, whatever is renamed or replaced meanwhile.
"""

from __future__ import annotations

import asyncio
import codecs
import hashlib
import os
import stat
from collections import Counter
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field
from pydantic.dataclasses import dataclass

from verl_ext.storage.files import file_sha256
from verl_ext.tools.base import Tool, ToolError, ToolRefused
from verl_ext.tools.catalogue.render import clean
from verl_ext.tools.settings import STRICT, options_from

MAX_PATH = 4096
READ, CUT, REFUSED = "read", "cut", "refused"
# Opening must not wait for a writer (FIFO), make a terminal the controlling one, or follow a link.
FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


@dataclass(frozen=True, config=STRICT)
class Settings:
    """Settings of `read_file`.

    folder: the tool reads files below this folder.
    max_chars: how many characters of a file the model sees, at most 10 million; longer files are cut there.
    """

    folder: str = ""
    max_chars: Annotated[int, Field(ge=1, le=10_000_000)] = 20_000

    def __post_init__(self) -> None:
        if not os.path.isdir(self.folder):
            raise ValueError(
                f"there is no folder {self.folder!r}. Remedy: set folder to an existing one, e.g. folder: data/files"
            )


class ReadFile(Tool):
    """Reads text files. In a recipe: `mas.tools.read_file`, with the settings of `Settings`.

    Raises:
        ValueError: a setting is unknown or wrong, or the folder does not exist.
    """

    name = "read_file"

    def __init__(self, **settings: Any) -> None:
        self.settings = options_from(Settings, settings, "settings of read_file")
        self._folder = os.path.realpath(self.settings.folder)
        self._counts: Counter[str] = Counter({READ: 0, CUT: 0, REFUSED: 0})

    async def __call__(self, path: Any = None) -> str:  # type: ignore[override]
        """The text of a file, with control characters made visible. If it is cut, a last line in brackets says so.

        Args:
            path: relative to the folder; of any type, because the agent wrote it.

        Raises:
            ToolRefused: it leads out of the folder, or the file is not regular, not UTF-8 text, or not readable.
            ToolError: the folder itself has disappeared.
        """
        try:
            text, length = await asyncio.to_thread(self._read, path)
        except ToolRefused:
            self._counts[REFUSED] += 1
            raise
        self._counts[READ] += 1
        if len(text) <= self.settings.max_chars and length is None:
            return text
        self._counts[CUT] += 1
        shown = text[: self.settings.max_chars]
        size = "" if length is None else f" of {length:,} bytes"
        return f"{shown}\n[cut: these are the first {len(shown):,} characters of a file{size}]"

    def counts(self) -> dict[str, int]:
        """Files read, files of these that were cut, and calls that were refused."""
        return dict(self._counts)

    @classmethod
    def preflight(cls, **settings: Any) -> None:
        """Check the settings before a run starts."""
        cls(**settings)

    @classmethod
    def identity(cls, **settings: Any) -> dict[str, Any]:
        """What the answers depend on: the content of the folder, not its place."""
        read, content = cls(**settings).settings, hashlib.sha256()
        for folder, below, names in os.walk(read.folder):
            below.sort()
            for path in sorted(Path(folder, name) for name in names):
                if not path.is_symlink() and path.is_file():
                    name = os.fsencode(path.relative_to(read.folder))
                    content.update(b"%d:%s%s" % (len(name), name, file_sha256(path).encode()))
        return {"max_chars": read.max_chars, "files": content.hexdigest()}

    def _read(self, path: Any) -> tuple[str, int | None]:
        """(text or its beginning, length in bytes if there is more). Blocks."""
        parts = _components(path)
        name = f"{path!r:.200}"
        file = self._open(parts, name)
        try:
            about = os.fstat(file)
            if not stat.S_ISREG(about.st_mode):
                raise ToolRefused(f"read_file: {name} is no ordinary file")
            with os.fdopen(os.dup(file), "rb") as stream:
                content = stream.read(4 * self.settings.max_chars + 4)  # a character has at most four bytes
                more = bool(stream.read(1))
        except OSError as error:
            raise ToolRefused(f"read_file: {name} cannot be read: {error.strerror}") from error
        finally:
            os.close(file)
        return _text(content, name, more, about.st_size), about.st_size if more else None

    def _open(self, parts: list[str], name: str) -> int:
        """A descriptor of the file below the folder, without following a link or waiting."""
        try:
            here = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise ToolError(f"read_file: the folder {self._folder} cannot be opened: {error.strerror}") from error
        try:
            for number, part in enumerate(parts, 1):
                kind = os.stat(part, dir_fd=here, follow_symlinks=False).st_mode
                _check_kind(kind, number == len(parts), name)  # before opening: to open a device may have an effect
                folder = os.O_DIRECTORY if number < len(parts) else 0
                below = os.open(part, FLAGS | folder, dir_fd=here)
                os.close(here)
                here = below
        except (OSError, ValueError) as error:  # ValueError: a surrogate that no file name can have
            os.close(here)
            reason = error.strerror if isinstance(error, OSError) else "no such name can be"
            raise ToolRefused(f"read_file: {name} cannot be opened: {reason}") from error
        except ToolRefused:
            os.close(here)
            raise
        return here


def _components(path: Any) -> list[str]:
    if not isinstance(path, str) or not path.strip() or len(path) > MAX_PATH or "\0" in path:
        given = f"{path!r:.200}" if isinstance(path, str) else type(path).__name__
        raise ToolRefused(f"read_file: path must be the path of a file in the folder, given {given}")
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if path.startswith("/") or ".." in parts:
        raise ToolRefused(f"read_file: {path!r:.200} leads out of the folder; give a path relative to it, without '..'")
    if not parts:
        raise ToolRefused(f"read_file: {path!r:.200} is the folder itself; give the path of a file in it")
    return parts


def _check_kind(kind: int, last: bool, name: str) -> None:
    if stat.S_ISLNK(kind):
        raise ToolRefused(f"read_file: {name} is, or leads through, a symbolic link; links are not followed")
    if last and stat.S_ISDIR(kind):
        raise ToolRefused(f"read_file: {name} is a folder; give the path of a file in it")
    if not (stat.S_ISREG(kind) if last else stat.S_ISDIR(kind)):
        what = "is no ordinary file" if last else "leads through what is no folder"
        raise ToolRefused(f"read_file: {name} {what}")


def _text(content: bytes, name: str, more: bool, length: int) -> str:
    """The decoded UTF-8 text, without a byte order mark. If there is `more`, a character cut at the end is left out."""
    try:
        text = codecs.getincrementaldecoder("utf-8-sig")().decode(content, not more)
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise ToolRefused(f"read_file: {name} is no text but {length:,} bytes of something else (only UTF-8 is read)")
    return clean(text)


read_file = ReadFile  # as configurations name it
