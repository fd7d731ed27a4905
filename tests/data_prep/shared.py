"""Helpers of these tests: files of rows."""

import json

import pyarrow.parquet as pq

from verl_ext.data_prep import environments, tools


def write_jsonl(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def prepare_tools(name, output, *options):
    """(status, test rows, train rows) of tools.py or environments.py."""
    command = environments if name in environments.ABOUT else tools
    status = command.main([name, "--output_dir", str(output), *map(str, options)])
    files = [output / "test.parquet", output / "train.parquet"]
    return status, *[pq.read_table(path).to_pylist() if path.exists() else [] for path in files]


def path_of(row):
    """The gold calls of a row."""
    return json.loads(row["reward_model"]["ground_truth"]["path"])
