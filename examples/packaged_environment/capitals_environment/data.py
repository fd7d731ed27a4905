"""The questions, as parquet files in verl's schema."""

from __future__ import annotations

from pathlib import Path

ATLAS = {"Norland": "Iven", "Osk": "Pell", "Tamar": "Rudo", "Velia": "Sarn"}


def ensure(output_dir: str, copies: int = 8) -> None:
    """Write train.parquet and val.parquet, unless they exist. The recipe calls it before a run (`mas.prepare`)."""
    import pandas

    folder = Path(output_dir)
    folder.mkdir(parents=True, exist_ok=True)
    rows = [
        {
            "data_source": "capitals",
            "prompt": [{"role": "user", "content": f"capital of {country}"}],
            "reward_model": {"style": "rule", "ground_truth": capital},
            "extra_info": {"index": index, "country": country},
        }
        for index, (country, capital) in enumerate(list(ATLAS.items()) * copies)
    ]
    for name in ("train", "val"):
        if not (folder / f"{name}.parquet").exists():
            pandas.DataFrame(rows).to_parquet(folder / f"{name}.parquet")
