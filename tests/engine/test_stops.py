"""Stop strings: an output ends at the token that completes one, however it is cut into tokens."""

from __future__ import annotations

import pytest
import torch

from tests.engine.conftest import VOCAB, engine_of, request
from verl_ext.engine.hf.admission import Job
from verl_ext.engine.hf.params import SamplingParams
from verl_ext.engine.hf.stops import StopStrings

# Byte pieces of a vocabulary in which </a> and é may be cut anywhere; every fifth token has no text (a special one).
PIECES = [b"<", b"/", b"a", b">", b"</", b"a>", b"/a>x", b"\xc3", b"\xa9", b"z"]


def piece(token: int) -> bytes:
    return b"" if token % 5 == 4 and token > 20 else PIECES[token % len(PIECES)]


def decode(token_ids: list[int]) -> str:
    return b"".join(map(piece, token_ids)).decode("utf-8", "replace")


def first_end(token_ids: list[int], strings: tuple[str, ...]) -> int:
    """Number of tokens after which the text has one of the strings, or all."""
    ends = (n for n in range(1, len(token_ids) + 1) if any(s in decode(token_ids[:n]) for s in strings))
    return next(ends, len(token_ids))


@pytest.mark.parametrize("strings", [("</a>",), ("a>x", "</"), ("é",), ("z", "ax<")])
def test_an_output_with_stop_strings_is_the_other_one_cut_there(strings):
    free = [request(5 + i, i, max_tokens=60, temperature=1.5) for i in range(24)]
    bound = [request(5 + i, i, max_tokens=60, temperature=1.5, stop=strings) for i in range(24)]
    engine = engine_of(slots=24, decode=decode)
    outputs = engine.generate(free)
    ended = 0
    for whole, cut in zip(outputs, engine.generate(bound), strict=True):
        end = first_end(whole.token_ids, strings)
        assert cut.token_ids == whole.token_ids[:end]
        reached = any(string in decode(cut.token_ids) for string in strings)
        ended += reached and end < len(whole.token_ids)
        assert cut.stop_reason == ("completed" if reached else whole.stop_reason)
    assert ended > 3, "the test must see stop strings"


def test_a_stop_string_may_end_with_a_space_that_no_token_has_alone():
    def words(token_ids: list[int]) -> str:  # as SentencePiece's decoders
        return decode(token_ids).replace("<", " ").removeprefix(" ")

    free = [request(5 + i, i, max_tokens=60, temperature=1.5) for i in range(24)]
    bound = [request(5 + i, i, max_tokens=60, temperature=1.5, stop=("a ",)) for i in range(24)]
    engine = engine_of(slots=24, decode=words)
    ended = 0
    for whole, cut in zip(engine.generate(free), engine.generate(bound), strict=True):
        ends = [n for n in range(1, len(whole.token_ids) + 1) if "a " in words(whole.token_ids[:n])]
        assert cut.token_ids == whole.token_ids[: ends[0] if ends else None]
        ended += bool(ends)
    assert ended > 3, "the test must see stop strings"


def test_requests_with_and_without_stop_strings_share_a_batch():
    engine = engine_of(slots=8, decode=decode)
    mixed = [request(9, i, max_tokens=40, temperature=1.5, stop=("</",) if i % 2 else ()) for i in range(8)]
    results = engine.generate(mixed)
    for one, result in zip(mixed, results, strict=True):
        alone = engine.generate([request(9, int(one.request_id), max_tokens=40, temperature=1.5, stop=one.params.stop)])
        assert alone[0].token_ids == result.token_ids
    assert any("</" in decode(result.token_ids[:-1]) for result in results[::2])


def test_only_the_tail_is_decoded():
    asked = []

    def watching(token_ids: list[int]) -> str:
        asked.append(len(token_ids))
        return decode(token_ids)

    stops = StopStrings(watching, VOCAB, torch.device("cpu"))
    stops.learn(["</a>"])
    asked.clear()
    job = Job(request(3, stop=("</a>",)), (), 5000)
    tokens = torch.full((1, 4000), 9)
    tokens[0, -3:] = torch.tensor([0, 1, 5])  # < / a>
    assert stops.reached([job], tokens[:, -1], tokens, torch.tensor([4000])) == [0]
    assert max(asked) <= 12
    assert stops.reached([job], torch.tensor([9]), tokens, torch.tensor([3990])) == []
    assert len(asked) == 1, "a token without the last character is not looked at"


def test_what_is_refused():
    with pytest.raises(ValueError, match="stop strings need an engine with a tokenizer"):
        engine_of().add(request(4, stop=("x",)))
    for wrong in ([""], [3]):
        with pytest.raises(ValueError, match="none of them empty"):
            SamplingParams.from_mapping({"stop": wrong}, 5)
    assert SamplingParams.from_mapping({"stop": "x"}, 5).stop == ("x",)
    assert SamplingParams.from_mapping({"stop": None, "include_stop_str_in_output": True}, 5).stop == ()
