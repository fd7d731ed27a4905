"""Tiny random models and requests to them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel, Qwen2Config, Qwen2ForCausalLM

from verl_ext.engine.hf.params import Finished, Request, SamplingParams
from verl_ext.engine.hf.slots import SlotEngine

VOCAB = 97
EOS = 1
LENGTH = 160  # context limit of the engines


def tiny_config(family: str) -> Qwen2Config | LlamaConfig:
    """2 layers, hidden 64, head_dim 32; Qwen2 with grouped queries and tied embeddings, Llama with neither."""
    common = {
        "vocab_size": VOCAB,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "max_position_embeddings": 256,
        "eos_token_id": EOS,
        "pad_token_id": 0,
        "bos_token_id": None,
    }
    if family == "qwen2":
        return Qwen2Config(num_key_value_heads=1, tie_word_embeddings=True, **common)
    return LlamaConfig(num_key_value_heads=2, tie_word_embeddings=False, **common)


def tiny_model(family: str, seed: int = 0) -> PreTrainedModel:
    """A random model whose answers vary (the usual small weights give a flat or a self-repeating one)."""
    torch.manual_seed(seed)
    config = tiny_config(family)
    model = (Qwen2ForCausalLM if family == "qwen2" else LlamaForCausalLM)(config).eval()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim == 2:
                weight.mul_(8.0)
    return model


def engine_of(family: str = "qwen2", slots: int = 4, **kwargs) -> SlotEngine:
    return SlotEngine(tiny_model(family), slots, kwargs.pop("max_model_len", LENGTH), [EOS], **kwargs)


def prompt_of(length: int, seed: int = 0) -> tuple[int, ...]:
    return tuple(torch.randint(2, VOCAB, (length,), generator=torch.Generator().manual_seed(seed)).tolist())


def request(length: int, name: int = 0, **params) -> Request:
    given_params = {"max_tokens": 20, "seed": name} | params
    return Request(str(name), prompt_of(length, name), SamplingParams(**given_params))


def same(one: Finished, other: Finished) -> bool:
    close = torch.allclose(torch.tensor(one.log_probs), torch.tensor(other.log_probs), atol=1e-5)
    return (one.token_ids, one.stop_reason) == (other.token_ids, other.stop_reason) and close


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint folder of the tiny Qwen2, with a word-level tokenizer."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("tiny_qwen2")
    tiny_model("qwen2").save_pretrained(folder)
    vocab = {"<pad>": 0, "<eos>": EOS} | {f"w{i}": i for i in range(2, VOCAB)}
    words = Tokenizer(models.WordLevel(vocab, unk_token="<pad>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<eos>", pad_token="<pad>").save_pretrained(folder)
    return folder
