"""DPR's Wikipedia dump of December 2018, passages of 100 words, as the jsonl that data_prep/corpus.py reads.

https://dl.fbaipublicfiles.com/dpr/wikipedia_split/psgs_w100.tsv.gz: 21,015,324 passages. One row, shortened, with | for
the tabs:
    1|"Aaron Aaron ( or ; ""Ahärôn"") is a prophet, high priest, and the brother of Moses in the ..."|Aaron
Its quirk: text is quoted as in CSV, a quotation mark inside it is doubled.

    python examples/table1/passages.py --input psgs_w100.tsv.gz --output passages.jsonl
"""

import csv
import gzip
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from tqdm import tqdm

from verl_ext.arguments import Parser, exit_status
from verl_ext.storage.jsonl import write_rows

HEADER = ["id", "text", "title"]


def passages(path: Path) -> Iterator[dict[str, str]]:
    """Rows of the dump. Raises ValueError, with the line, for one that has other columns."""
    with gzip.open(path, "rt", encoding="utf-8", newline="") as source:
        rows = csv.reader(source, delimiter="\t")
        header = next(rows, None)
        if header != HEADER:
            raise ValueError(f"{path}: given the columns {header}, expected {HEADER}. Download it again.")
        for row in rows:
            if len(row) != len(HEADER):
                raise ValueError(f"{path}:{rows.line_num}: given {len(row)} columns, expected {HEADER}.")
            yield {"pid": row[0], "title": row[2], "text": row[1]}


def convert(source: Path, target: Path) -> int:
    """Write `target`, which appears whole or not at all; returns the number of passages."""
    try:
        return write_rows(target, tqdm(passages(source), unit=" passages", unit_scale=True))
    except (OSError, EOFError) as error:  # not gzip, or cut short
        raise ValueError(f"{source}: {error}") from error


def main(argv: Sequence[str] | None = None) -> int:
    """Command line. Returns the exit status; user errors are printed without a traceback."""
    parser = Parser(description=__doc__)
    parser.add_argument("--input", type=Path, required=True, help="psgs_w100.tsv.gz")
    parser.add_argument("--output", type=Path, required=True, help="jsonl to write")
    given = parser.parse_args(argv)
    return exit_status(lambda: print(f"wrote {given.output}: {convert(given.input, given.output)} passages"))


if __name__ == "__main__":
    sys.exit(main())
