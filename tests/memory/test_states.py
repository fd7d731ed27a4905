"""Embeddings from the hidden states of a language model, with the tiny model of a recipe."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, BloomConfig, BloomModel

from verl_ext.memory import HiddenStateSimilarity, states
from verl_ext.plugin import package_path
from verl_ext.tools.retrieval import dense
from verl_ext.trainer.build import similarity_of

TINY = package_path("recipe/puppeteer/assets/tiny_model")


def test_it_is_the_last_layers_state_at_the_last_token():
    similarity = similarity_of(f"states:{TINY}", "x")
    assert isinstance(similarity, HiddenStateSimilarity) and similarity.name.startswith("states:")
    found = similarity.encode(["who: 3 + 4", "who: 9 - 2", " "])
    tokenizer, model = AutoTokenizer.from_pretrained(TINY), AutoModelForCausalLM.from_pretrained(TINY)
    ids = tokenizer.apply_chat_template(
        [{"role": "user", "content": "who: 3 + 4"}], return_tensors="pt", return_dict=True
    )
    with torch.no_grad():
        expected = model(**ids, output_hidden_states=True).hidden_states[-1][0, -1].numpy()
    assert np.allclose(found[0], expected / np.linalg.norm(expected), atol=1e-5)
    assert found.shape == (3, similarity.width) and (found[2] == 0).all()
    assert np.abs(found[0] - found[1]).max() > 1e-3
    assert np.array_equal(similarity.encode(["who: 9 - 2"])[0], found[1]), "alone and among others the same bits"


def test_a_model_without_a_limit_of_positions_reads_all(tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(TINY)
    tokenizer.save_pretrained(tmp_path)
    config = BloomConfig(vocab_size=len(tokenizer), hidden_size=16, n_layer=1, n_head=2)
    BloomModel(config).save_pretrained(tmp_path)
    found = HiddenStateSimilarity(str(tmp_path)).encode(["who: 3 + 4", "who: 9 + 4"])
    assert found.shape == (2, 16) and not np.array_equal(*found), "also what stands at the beginning"


def test_wide_states_are_projected_and_keep_their_inner_products(monkeypatch):
    whole = HiddenStateSimilarity(TINY).encode(["who: 3 + 4", "planning"])
    states._state.cache_clear()
    states._projection.cache_clear()
    monkeypatch.setattr(states, "WIDEST", whole.shape[1] - 1)
    try:
        small = HiddenStateSimilarity(TINY).encode(["who: 3 + 4", "planning"])
    finally:
        states._state.cache_clear()
        states._projection.cache_clear()
    assert small.shape == (2, whole.shape[1] - 1)
    assert abs(small[0] @ small[1] - whole[0] @ whole[1]) < 4 / np.sqrt(small.shape[1])


def test_the_files_of_a_model_are_hashed_once(tmp_path, monkeypatch):
    """Each checkpoint names the encoder of its policy heads, and a model may have a hundred gigabytes."""
    asked = []
    monkeypatch.setattr(dense, "model_sha256", lambda model: asked.append(model) or "hash")
    encoder = HiddenStateSimilarity(str(tmp_path))
    assert encoder.name == encoder.name == HiddenStateSimilarity(str(tmp_path)).name == "states:hash"
    assert asked == [str(tmp_path)]


def test_a_model_that_is_not_there(tmp_path):
    with pytest.raises(ValueError, match="names no model. Remedy: states:FOLDER"):
        similarity_of("states:", "x")
    with pytest.raises(ValueError, match="the encoder states:.* could not be loaded"):
        _ = HiddenStateSimilarity(str(tmp_path)).width
