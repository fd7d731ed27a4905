"""Build the search index of one or several corpora.

    python data_prep/corpus.py --input data/hotpotqa/corpus.jsonl --output_dir data/hotpotqa/index
    python data_prep/corpus.py --input a.jsonl b.jsonl --backend dense --model minilm --output_dir data/index

Reads jsonl (.gz too) in two layouts:
    {"pid": 0, "title": "Meet Corliss Archer", "text": "Meet Corliss Archer, a program from radio's Golden Age, ..."}
    {"id": "0", "contents": "\\"Meet Corliss Archer\\"\\nMeet Corliss Archer, a program from radio's Golden Age, ..."}
data_prep/qa.py writes the first (corpus.jsonl beside train.parquet); FlashRAG and Search-R1 use the second
(wiki-18.jsonl). Data sets share paragraphs: a passage that is in several files is indexed once.
"""

import argparse
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from verl_ext.arguments import Parser, exit_status
from verl_ext.tools.retrieval.corpus import read_corpus
from verl_ext.tools.retrieval.dense import INDEX_KINDS, SIMILARITIES
from verl_ext.tools.retrieval.index import BACKENDS, FLAGS, backend_class, build_index, check_target
from verl_ext.tools.settings import options_from

RUNTIME = ("device", "batch_size", "vectors")  # dense: flags that are not options of the index


def build(arguments: argparse.Namespace) -> None:
    """Read, index, save, and print the next commands."""
    start, output = time.monotonic(), arguments.output_dir
    options, runtime = chosen(arguments)
    options_from(backend_class(arguments.backend).options_type, options, "options")  # refused before hours of reading
    check_target(output, arguments.overwrite)
    passages, repeated = read_corpus(arguments.input)
    print(f"read {len(passages)} passages ({repeated} repeated ones left out); indexing with {arguments.backend}")
    unfinished = output.with_name(f"{output.name}.vectors")
    if arguments.backend == "dense":
        runtime.setdefault("vectors", unfinished)
        print(f"embeddings are saved in {runtime['vectors']}: the same command goes on after an interruption")
    runtime |= {"overwrite": arguments.overwrite, "progress": not arguments.quiet}
    build_index(passages, output, arguments.backend, options, **runtime)
    if runtime.get("vectors") == unfinished:
        shutil.rmtree(unfinished)
    size = sum(file.stat().st_size for file in output.rglob("*") if file.is_file()) / 2**20
    print(f"wrote {output}: {size:.0f} MiB in {time.monotonic() - start:.0f} s")
    others = "mas.tools.search.url=null mas.tools.search.corpus=null"
    print(f"next, in a recipe: mas.tools.search.index={output} {others}")
    print(f"or one server: python -m verl_ext.tools.retrieval_server --index {output} --port 8000")
    print(f"what it finds: python -m verl_ext.tools.retrieval.measure --index {output} --questions QUESTIONS.parquet")


def chosen(arguments: argparse.Namespace) -> tuple[dict[str, Any], dict[str, Any]]:
    """The given (options, runtime flags) of the backend. Raises ValueError for a flag of the other backend."""
    given = {name: value for name, value in vars(arguments).items() if value is not None}
    for other in set(BACKENDS) - {arguments.backend}:
        foreign = [*FLAGS[other].values(), *(RUNTIME if other == "dense" else ())]
        unused = [f"--{flag}" for flag in foreign if flag in given]
        if unused:
            remedy = f"add --backend {other} or leave {'it' if len(unused) == 1 else 'them'} out"
            raise ValueError(f"{', '.join(unused)} would do nothing with --backend {arguments.backend}; {remedy}.")
    options = {name: given[flag] for name, flag in FLAGS[arguments.backend].items() if flag in given}
    return options, {name: given[name] for name in RUNTIME if name in given}


def main(argv: Sequence[str] | None = None) -> int:
    """Command line. Returns the exit status; user errors are printed without a traceback.

    Flags of one backend are None unless given; defaults: BM25Options, DenseOptions.
    """
    parser = Parser(description=__doc__)
    parser.add_argument("--input", nargs="+", type=Path, required=True, help="corpus files (.jsonl, .jsonl.gz)")
    parser.add_argument("--output_dir", type=Path, required=True, help="folder of the index")
    parser.add_argument("--backend", choices=BACKENDS, default="bm25")
    parser.add_argument("--overwrite", action="store_true", help="replace an index that is already there")
    parser.add_argument("--quiet", action="store_true", help="no progress bars")
    bm25 = parser.add_argument_group("bm25")
    bm25.add_argument("--k1", type=float, help="saturation of repeated words (1.5)")
    bm25.add_argument("--b", type=float, help="weight of the passage's length (0.75)")
    bm25.add_argument("--title_weight", type=int, help="how often a word of the title counts (2)")
    dense = parser.add_argument_group("dense")
    dense.add_argument("--model", help="minilm (the default), a folder, or a hub name (facebook/contriever)")
    dense.add_argument("--dense_index", choices=INDEX_KINDS, help="exact (the default), or approximate")
    dense.add_argument("--similarity", choices=SIMILARITIES, help="cosine (the default), or dot (facebook/contriever)")
    dense.add_argument("--ivf_probes", type=int, help="ivf: cells searched (128); more: better, slower")
    dense.add_argument("--query_prefix", help="text the model wants before a query")
    dense.add_argument("--passage_prefix", help="text the model wants before a passage")
    dense.add_argument("--device", help="cpu, cuda, ...; by default the encoder's choice")
    dense.add_argument("--batch_size", type=int, help="passages per forward (64)")
    dense.add_argument("--vectors", type=Path, help="keep the embeddings in this folder, for other indexes of them")
    arguments = parser.parse_args(argv)
    return exit_status(lambda: build(arguments))


if __name__ == "__main__":
    sys.exit(main())
