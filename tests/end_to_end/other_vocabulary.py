"""A second tiny model: the first one under other token ids, in a larger vocabulary."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

import verl_ext.recipe

TINY = Path(next(iter(verl_ext.recipe.__path__))) / "mhgpo" / "assets" / "tiny_model"
SHIFT = 10


def other_vocabulary(folder: Path) -> Path:
    """Write it into `folder`: each token has the id of the tiny model's + SHIFT, the first SHIFT ids are never sampled
    by it more often than others. It says the same of every text."""
    shutil.copytree(TINY, folder)
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    for token in tokenizer["added_tokens"]:
        token["id"] += SHIFT
    vocabulary = {text: number + SHIFT for text, number in tokenizer["model"]["vocab"].items()}
    tokenizer["model"]["vocab"] = {f"<unused{i}>": i for i in range(SHIFT)} | vocabulary
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    for name in ("config.json", "generation_config.json"):
        values: dict[str, Any] = json.loads((folder / name).read_text())
        for key in ("eos_token_id", "pad_token_id"):
            values[key] += SHIFT
        if "vocab_size" in values:
            values["vocab_size"] += SHIFT
        (folder / name).write_text(json.dumps(values))
    weights = load_file(folder / "model.safetensors")
    embedding = weights["model.embed_tokens.weight"]
    weights["model.embed_tokens.weight"] = torch.cat([torch.zeros(SHIFT, embedding.shape[1]), embedding])
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder
