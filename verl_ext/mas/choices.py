"""Decisions: samples one of a few given texts, token by token among the tokens that these texts allow.

The probability of a text is exact: π(text) = Π_t softmax over the next tokens of all texts that share its beginning.
Where only one token is possible, it is not sampled: it has log-probability 0 and does not train.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence

from verl_ext.mas.types import Generation

Tokens = tuple[int, ...]


async def choose(
    options: Mapping[str, Sequence[int]], sample: Callable[[Tokens, Tokens], Awaitable[Generation]]
) -> tuple[str, Generation]:
    """Choose one of the texts.

    Args:
        options: text -> its tokens. They must end with an end token if one text is the beginning of another.
        sample: (tokens so far, allowed tokens, ascending) -> one of the allowed, its log-probability among them.

    Returns:
        The text, and its tokens with `allowed` filled in. If the engine aborted: "", and the tokens so far.

    Raises:
        ValueError: there is no option, two have the same tokens, or one is the beginning of another.
    """
    check_options(options)
    made = Generation([], [])
    left = {text: tuple(tokens) for text, tokens in options.items()}
    while len(left) > 1 or len(made.token_ids) < len(next(iter(left.values()))):
        place = len(made.token_ids)
        allowed = tuple(sorted({tokens[place] for tokens in left.values()}))
        if len(allowed) == 1:
            made.token_ids.append(allowed[0])
            made.log_probs.append(0.0)
        else:
            part = await sample(tuple(made.token_ids), allowed)
            if len(part.token_ids) != 1:
                made.stop_reason = part.stop_reason
                return "", made
            _append(made, part)
        made.allowed.append(allowed)
        left = {text: tokens for text, tokens in left.items() if tokens[place] == made.token_ids[place]}
    return next(iter(left)), made


def _append(made: Generation, part: Generation) -> None:
    versions = [v for v in (made.min_version, part.min_version) if v >= 0]
    made.token_ids += part.token_ids
    made.log_probs += part.log_probs
    made.min_version = min(versions, default=-1)
    made.max_version = max(made.max_version, part.max_version)
    made.adapter, made.policy = part.adapter, part.policy


def check_options(options: Mapping[str, Sequence[int]]) -> None:
    """Check that every text can be chosen, and by its tokens alone.

    Raises:
        ValueError: see `choose`.
    """
    if not options:
        raise ValueError("there is nothing to choose from")
    ordered = sorted((tuple(tokens), text) for text, tokens in options.items())
    for (tokens, text), (longer, other) in zip(ordered, ordered[1:], strict=False):
        if longer[: len(tokens)] == tokens:
            raise ValueError(f"the choices {text!r} and {other!r} cannot be distinguished by their tokens")


def named(text: str, options: Sequence[str]) -> str | None:
    """The option that a text names, ignoring case, blanks and quotes; None if it names no option, or several."""

    def bare(value: str) -> str:
        return value.strip(" \t\r\n\"'`*.").casefold()

    if text in options:
        return text
    found = [option for option in options if bare(option) == bare(text)]
    return found[0] if len(found) == 1 else None
