"""Run by test_programs.py on a model folder, in one process per rank. Prints `RESULT <check> ok`, or why not.

Each of two ranks holds half of the rows. The results are compared with models that are not sharded.
"""

from __future__ import annotations

import os
import sys
import traceback
from pathlib import Path

import torch

from tests.engine import adapters_learning, adapters_saving

CHECKS = {
    name.removeprefix("check_"): check
    for module in (adapters_learning, adapters_saving)
    for name, check in vars(module).items()
    if name.startswith("check_")
}


if __name__ == "__main__":
    torch.set_num_threads(1)
    for name, check in CHECKS.items():
        try:
            check(Path(sys.argv[1]))
        except BaseException as error:
            traceback.print_exc()
            print("RESULT", name, type(error).__name__, error, flush=True)
            os._exit(1)  # the other rank may wait for this one
        torch.distributed.barrier()
        print("RESULT", name, "ok", flush=True)
