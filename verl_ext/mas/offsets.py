"""From ranges of characters in an output to ranges of its tokens, exactly, for any tokenizer."""

from __future__ import annotations

import codecs
import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate, groupby
from os.path import commonprefix
from typing import Any

Span = tuple[int, int]

# Decoders write it for bytes that are not a character.
BROKEN = "\ufffd"
BYTE = re.compile(r"<0x([0-9A-F]{2})>")


def locate_by_decoding(
    token_ids: Sequence[int], text: str, spans: Sequence[Span], decode: Callable[[list[int]], str]
) -> list[Span]:
    """Ranges [first, stop) of the tokens that hold any byte of the characters [start, end) of `text`.

    Decodes about 2·log2(tokens) prefixes of the output per span. That is right for every tokenizer for which decoding
    a prefix of the tokens gives a prefix of the text, except for a last character that is not complete.

    Args:
        text: what `token_ids` decode to.
        spans: ranges of characters; an empty one gives an empty range.
    """
    ids = list(token_ids)

    def right(tokens: int) -> int:
        """Characters that are final after this many tokens; an incomplete one at the end is not."""
        return len(commonprefix([decode(ids[:tokens]), text]))

    def fewest_with(characters: int) -> int:
        return bisect_left(range(len(ids)), characters, key=right)

    found = []
    for start, end in spans:
        first = fewest_with(start)
        if first and len(decode(ids[:first])) > start:  # its last token holds the character before, too
            first -= 1
        found.append((first, fewest_with(end) if end > start else first))
    return found


class TokenBytes:
    """Looks up the bytes of each token, for byte-level and SentencePiece tokenizers.

    Args:
        tokenizer: of Hugging Face; other kinds need `locate_by_decoding`.
    """

    def __init__(self, tokenizer: Any):
        self._tokenizer = tokenizer
        self._added = getattr(tokenizer, "added_tokens_decoder", {})
        self._special = set(getattr(tokenizer, "all_special_ids", ()))
        self._bytes: dict[int, bytes] = {}
        self._raw: set[int] = set()  # tokens of single bytes, `<0xE2>`

    def locate(self, token_ids: Sequence[int], text: str, spans: Sequence[Span]) -> list[Span] | None:
        """As `locate_by_decoding`, or None where the tokens' bytes are not those of `text`."""
        if not spans:
            return []
        pieces = [self._bytes[token] if token in self._bytes else self._look_up(token) for token in token_ids]
        data = b"".join(pieces)
        byte_of: Sequence[int] | None = None
        if text.isascii():
            byte_of = range(len(text) + 1)
        elif BROKEN not in text:
            byte_of = [0, *accumulate(len(character.encode()) for character in text)]
        if byte_of is None or data.decode("utf-8", "replace") != text:
            byte_of = next((found for found in (_lossy(data, text), self._by_runs(token_ids, text)) if found), None)
        if byte_of is None:
            return None
        ends, located = [0, *accumulate(map(len, pieces))], []
        for start, end in spans:
            first = bisect_right(ends, byte_of[start]) - 1
            located.append((first, bisect_left(ends, byte_of[end]) if end > start else first))
        return located

    def _by_runs(self, token_ids: Sequence[int], text: str) -> list[int] | None:
        """Byte of each character, for decoders that replace a whole run of byte tokens if the run is not valid."""
        byte_of, characters = [0], []
        shown = [token for token in token_ids if token not in self._special]
        for raw, run in groupby(shown, lambda token: token in self._raw):
            data = b"".join(self._bytes[token] for token in run)
            try:
                decoded = data.decode()
            except UnicodeDecodeError:
                if not raw:
                    return None
                decoded = BROKEN * len(data)
            sizes = [1] * len(data) if raw and BROKEN in decoded else [len(character.encode()) for character in decoded]
            byte_of += [byte_of[-1] + step for step in accumulate(sizes)]
            characters.append(decoded)
        return byte_of if "".join(characters) == text else None

    def _look_up(self, token: int) -> bytes:
        if token in self._special:
            piece = b""
        elif token in self._added:
            piece = self._added[token].content.encode()
        else:
            entry = self._tokenizer.convert_ids_to_tokens(int(token)) or ""
            match = BYTE.fullmatch(entry)
            if match:
                self._raw.add(token)
            piece = bytes([int(match[1], 16)]) if match else _piece(entry)
        self._bytes[token] = piece
        return piece


def _lossy(data: bytes, text: str) -> list[int] | None:
    """Byte of each character of `data` decoded as a whole, with a broken character per invalid sequence."""
    broken: list[Span] = []

    def note(error: UnicodeError) -> tuple[str, int]:
        assert isinstance(error, UnicodeDecodeError)
        broken.append((error.start, error.end))
        return BROKEN, error.end

    codecs.register_error("verl_ext.note", note)
    if data.decode("utf-8", "verl_ext.note") != text:
        return None
    sizes, byte_of = dict((start, end - start) for start, end in broken), [0]
    for character in text:
        byte_of.append(byte_of[-1] + sizes.get(byte_of[-1], len(character.encode())))
    return byte_of


def _piece(token: str) -> bytes:
    """A vocabulary entry's bytes: of the byte-level alphabet, or text with ▁ for blanks."""
    if all(character in ALPHABET for character in token):
        return bytes(ALPHABET[character] for character in token)
    return token.replace("▁", " ").encode()


def _alphabet() -> dict[str, int]:
    """GPT-2's byte alphabet: printable bytes are themselves, the others the characters from 256 on, in order."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


ALPHABET = _alphabet()
