"""Reading corpora, and the files in which an index stores its passages.

Two layouts of jsonl (also .jsonl.gz) are accepted:
    {"pid": 0, "title": "Meet Corliss Archer", "text": "Meet Corliss Archer, a program from radio's ..."}   ("id" too)
    {"id": "0", "contents": "\"Meet Corliss Archer\"\nMeet Corliss Archer, a program ..."}     (FlashRAG, Search-R1)
"""

import hashlib
import json
import mmap
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from verl_ext.storage.jsonl import read_rows
from verl_ext.tools.retrieval.types import Passage

PASSAGES, OFFSETS = "passages.jsonl", "offsets.npy"
EXPECTED = '{"pid" or "id": string or integer, "title": string, "text": string} or {"id": ..., "contents": string}'


Paths = str | Path | Sequence[str | Path]


def as_paths(paths: Paths) -> list[Path]:
    """A list of paths, from one path or several. Raises ValueError: it is neither."""
    try:
        return [Path(path) for path in ([paths] if isinstance(paths, str | Path) else paths)]
    except TypeError as error:
        raise ValueError(f"a path must be a text, or several in a list; given {paths!r:.200}") from error


def load_corpus(paths: Paths) -> list[Passage]:
    """The passages of one or several files, as `read_corpus` returns them."""
    return read_corpus(paths)[0]


def read_corpus(paths: Paths) -> tuple[list[Passage], int]:
    """(passages of one or several files, number of repeats left out). All passages are in memory.

    In the order of files and lines, without blank lines. A repeated (title, text) is kept once, under its first pid.
    Raises ValueError with file and line for a malformed line or a pid of two passages, and for an empty corpus.
    """
    files = as_paths(paths)
    kept: dict[tuple[str, str], Passage] = {}
    owners: dict[str, tuple[str, Passage]] = {}  # pid -> where it was first seen, and for which passage
    repeated = 0
    for file in files:
        for where, row in _rows(file):
            passage = parse_passage(row, where)
            first = kept.setdefault((passage.title, passage.text), passage)
            place, owner = owners.setdefault(passage.pid, (where, first))
            if owner is not first:
                raise ValueError(
                    f"{where}: pid {passage.pid!r} is taken by {place} for another passage; make it unique."
                )
            repeated += first is not passage
    return check_not_empty(list(kept.values()), ", ".join(map(str, files)) or "the list of files"), repeated


def check_not_empty(passages: list[Passage], source: str) -> list[Passage]:
    """`passages`, or a ValueError if there are none."""
    if not passages:
        raise ValueError(f"the corpus is empty ({source}): no passages to search. Expected one JSON object per line.")
    return passages


def parse_passage(row: Any, where: str) -> Passage:
    """One parsed line as a Passage. where: file and line, for the ValueError."""
    if not isinstance(row, dict):
        raise ValueError(f"{where}: given {type(row).__name__}, expected {EXPECTED}.")
    pid = row.get("pid", row.get("id"))
    if not isinstance(pid, str | int) or isinstance(pid, bool) or pid == "":
        raise ValueError(f"{where}: field 'pid' (or 'id'): given {pid!r:.80}, expected {EXPECTED}.")
    if "text" not in row and isinstance(row.get("contents"), str):
        title, _, text = row["contents"].partition("\n")
        title = title.strip().removeprefix('"').removesuffix('"')
    else:
        title, text = row.get("title", ""), row.get("text")
    for name, value in (("title", title), ("text", text)):
        if not isinstance(value, str):
            raise ValueError(f"{where}: field '{name}': given {value!r:.80}, expected {EXPECTED}.")
    if not title.strip() and not text.strip():
        raise ValueError(f"{where}: title and text are both empty; expected {EXPECTED}. Remove the line.")
    return Passage(str(pid), title, text)


def passage_text(passage: Passage) -> str:
    """The text of a passage that is embedded: title, line break, text."""
    return f"{passage.title}\n{passage.text}"


def corpus_sha256(passages: Iterable[Passage]) -> str:
    """Hash of the passages in order, equal to the hash of the store's passages.jsonl."""
    digest = hashlib.sha256()
    for passage in passages:
        digest.update(_line(passage))
    return digest.hexdigest()


def write_store(passages: Iterable[Passage], folder: Path) -> None:
    """Write passages.jsonl and offsets.npy (int64, start of each line, then the length of the file) into `folder`."""
    import numpy as np

    offsets = [0]
    with open(folder / PASSAGES, "wb") as out:
        for passage in passages:
            offsets.append(offsets[-1] + out.write(_line(passage)))
    np.save(folder / OFFSETS, np.asarray(offsets, dtype=np.int64))


class PassageStore(Sequence[Passage]):
    """The passages of an index, each read from disk when needed, so that opening the store is fast and small.

    Raises ValueError when offsets and passages do not belong together.
    """

    def __init__(self, folder: Path) -> None:
        import numpy as np

        self._offsets = np.load(folder / OFFSETS)
        with open(folder / PASSAGES, "rb") as source:
            self._bytes = mmap.mmap(source.fileno(), 0, access=mmap.ACCESS_READ)
        if self._offsets.ndim != 1 or len(self._offsets) < 2 or int(self._offsets[-1]) != len(self._bytes):
            raise ValueError(f"{folder / OFFSETS} does not describe {folder / PASSAGES}.")

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __getitem__(self, index: int) -> Passage:  # type: ignore[override]
        if not 0 <= index < len(self):
            raise IndexError(index)
        return Passage(**json.loads(self._bytes[int(self._offsets[index]) : int(self._offsets[index + 1])]))


def _line(passage: Passage) -> bytes:
    return (json.dumps(vars(passage), ensure_ascii=True) + "\n").encode("ascii")


def _rows(file: Path) -> Iterator[tuple[str, Any]]:
    if not file.is_file():
        raise ValueError(
            f"corpus file {file} does not exist; make one with a script of data_prep/ or correct the path."
        )
    yield from read_rows(file, EXPECTED)
