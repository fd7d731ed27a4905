"""Character ranges to token ranges: against a reference that follows every byte, for several tokenizers."""

from __future__ import annotations

import json
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from verl_ext.mas.offsets import TokenBytes, locate_by_decoding

TEXTS = [
    'I look. <tool_call> {"name": "é", "arguments": {}} </tool_call> so',
    "déjà <tool_call>日本語🙂</tool_call><fold_thought>",
    '<tool_call>{"name": "never closed 🙂🙂',
    "<tool_search>a</tool_search>",
    "plain",
    "",
]
OPEN, CLOSE = "<tool_call>", "</tool_call>"


@cache
def tokenizer(kind: str):
    """A tokenizer of its kind, trained on a few texts, in which tags are cut into several tokens."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    special = ["<unk>", "<eos>"]
    if kind == "byte_level":
        made = Tokenizer(models.BPE())
        made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        made.train_from_iterator(
            TEXTS * 3, trainers.BpeTrainer(vocab_size=300, special_tokens=special, initial_alphabet=alphabet)
        )
    elif kind == "sentencepiece":
        made = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>"))
        made.normalizer = normalizers.Replace(" ", "▁")
        made.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
        bytes_ = [f"<0x{i:02X}>" for i in range(256)]
        made.train_from_iterator(
            ['abc defghijklmnopqrstuvwxyz<>/_{}":,. '] * 3, trainers.BpeTrainer(vocab_size=320, special_tokens=special)
        )
        content = json.loads(made.to_str())
        for name in bytes_:
            content["model"]["vocab"][name] = len(content["model"]["vocab"])
        made = Tokenizer.from_str(json.dumps(content))
    else:  # word pieces: decoding adds and removes blanks, so that bytes cannot be looked up
        made = Tokenizer(models.WordPiece(unk_token="<unk>"))
        made.pre_tokenizer, made.decoder = pre_tokenizers.BertPreTokenizer(), decoders.WordPiece()
        made.train_from_iterator(TEXTS * 3, trainers.WordPieceTrainer(vocab_size=200, special_tokens=special))
    return PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<eos>", unk_token="<unk>")


def decode(kind: str):
    return lambda ids: tokenizer(kind).decode(ids, skip_special_tokens=True)


def holders(pieces: list[bytes], text: str, start: int, end: int) -> list[int]:
    """Reference: the tokens with a byte of the characters [start, end) of valid text."""
    owner = [i for i, piece in enumerate(pieces) for _ in piece]
    begin, stop = len(text[:start].encode()), len(text[:end].encode())
    return sorted(set(owner[begin:stop]))


def check(kind: str, ids: list[int], spans: list[tuple[int, int]]) -> None:
    """Valid text against the reference, and against locating by decoding where that is right."""
    text = decode(kind)(ids)
    table = TokenBytes(tokenizer(kind))
    found = table.locate(ids, text, spans)
    pieces = [table._bytes[token] for token in ids] if spans else []
    for (first, stop), (start, end) in zip(found, spans, strict=True):
        want = holders(pieces, text, start, end)
        held = [i for i in range(first, stop) if pieces[i]]
        assert held == want and (not want or (first, stop) == (want[0], want[-1] + 1))
    if kind == "byte_level":
        proper = [span for span in spans if span[0] < span[1]]
        assert locate_by_decoding(ids, text, proper, decode(kind)) == table.locate(ids, text, proper)


@pytest.mark.parametrize("kind", ["byte_level", "sentencepiece"])
@settings(max_examples=200)
@given(
    text=st.text(st.sampled_from('ab <>/_é日🙂"{}'), max_size=40) | st.sampled_from(TEXTS),
    cuts=st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), max_size=4),
    end=st.booleans(),
)
def test_ranges_hold_exactly_the_tokens_with_a_byte_of_the_characters(kind, text, cuts, end):
    ids = tokenizer(kind).encode(text, add_special_tokens=False) + [1] * end
    size = len(decode(kind)(ids))
    spans = [(min(a, b, size), min(max(a, b), size)) for a, b in cuts]
    assert TokenBytes(tokenizer(kind)).locate(ids, decode(kind)(ids), spans) is not None
    check(kind, ids, spans)


@pytest.mark.parametrize("kind", ["byte_level", "sentencepiece"])
@settings(max_examples=300)
@given(ids=st.lists(st.integers(0, 299), max_size=30), cut=st.tuples(st.integers(0, 40), st.integers(0, 40)))
def test_whatever_a_model_samples_can_be_located(kind, ids, cut):
    """Random bytes, and so broken characters, in both ways in which decoders write them."""
    text, whole = decode(kind)(ids), decode(kind)
    start, end = min(*cut, len(text)), min(max(cut), len(text))
    table = TokenBytes(tokenizer(kind))
    ((first, stop),) = table.locate(ids, text, [(start, end)])
    assert 0 <= first <= stop <= len(ids)
    everything = table.locate(ids, text, [(i, i + 1) for i in range(len(text))])
    for i, (one, next_one) in enumerate(zip(everything, everything[1:], strict=False)):
        assert one[0] < one[1] and one[0] <= next_one[0] and one[1] - 1 <= next_one[0], i
    if start < end:
        assert (first, stop) == (everything[start][0], everything[end - 1][1])
    if start < end and "\ufffd" not in text:
        assert whole(ids[:stop])[:end] == text[:end]


def test_other_tokenizers_are_located_by_decoding():
    ids = tokenizer("wordpiece").encode("I look so plain", add_special_tokens=False)
    text = decode("wordpiece")(ids)
    assert TokenBytes(tokenizer("wordpiece")).locate(ids, text, [(0, 3)]) is None
    ((first, stop),) = locate_by_decoding(
        ids, text, [(text.index("look"), text.index("look") + 4)], decode("wordpiece")
    )
    assert "look" in decode("wordpiece")(ids[first:stop]) and "so" not in decode("wordpiece")(ids[first:stop])


def test_by_hand():
    """`a<b>c` as a, <b, >c: the tag takes both tokens that have a part of it."""
    pieces = {0: "a", 1: "<b", 2: ">c"}
    located = locate_by_decoding(
        [0, 1, 2], "a<b>c", [(1, 4), (0, 1), (4, 5), (2, 2)], lambda ids: "".join(pieces[i] for i in ids)
    )
    assert located == [(1, 3), (0, 1), (2, 3), (1, 1)]
    emoji = tokenizer("byte_level").encode("x🙂y", add_special_tokens=False)
    text = "x🙂y"
    table = TokenBytes(tokenizer("byte_level"))
    ((first, stop),) = table.locate(emoji, text, [(1, 2)])
    assert b"".join(table._bytes[token] for token in emoji[first:stop]) == "🙂".encode()
