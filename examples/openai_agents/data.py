"""The customers' questions: sums and shops, in turn, of the tiny shop's world (verl_ext/worlds/shop.py)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from verl_ext.storage.parquet import split_files
from verl_ext.worlds import shop
from verl_ext.worlds.data_set import draw_distinct, stamped_folder
from verl_ext.worlds.shop import Questions, World, row

FILES = ("train.parquet", "val.parquet")


def ensure(
    output_dir: str | Path, world_dir: str | Path, train_size: int = 160, val_size: int = 64, seed: int = 0
) -> Path:
    """Make sure that `output_dir` holds the questions of these arguments, and `world_dir` the shops."""
    shop.ensure(world_dir, seed=seed)

    def contents() -> dict[str, list[dict[str, Any]]]:
        drawn = {}
        for split, size in (("train", train_size), ("val", val_size)):
            ask = Questions(World(seed), split).draw
            drawn[split] = draw_distinct(lambda n, ask=ask: ask(("math", "shop")[n % 2]), size, f"{split}_size")
        return split_files(row, **drawn)

    stamp = {"train_size": train_size, "val_size": val_size, "seed": seed}
    return stamped_folder(output_dir, "customers.json", FILES, contents, **stamp)
