"""The actions that the agent writes into its sequence of reasoning, and the results that are written behind them.

    <tool_search> query </tool_search>          <tool_search_result> … </tool_search_result>
    <tool_call> {"name": …, "arguments": {…}} </tool_call>      <tool_call_result> … </tool_call_result>
    <fold_thought>
    anything else, to the end                   the final answer

Source: DeepAgent, Section 3.3 and 3.4.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from verl_ext.tools.catalogue.render import neutral as without_tokens
from verl_ext.tools.catalogue.written_calls import read_call

SEARCH, CALL, FOLD = "tool_search", "tool_call", "fold_thought"
# An output ends as soon as it has one of these.
STOPS_WITHOUT_FOLD = (f"</{SEARCH}>", f"</{CALL}>")
STOPS = (*STOPS_WITHOUT_FOLD, f"<{FOLD}>")
# The first action of an output; of one whose tag is not closed all that follows belongs to it.
ACTION_WITHOUT_FOLD = re.compile(rf"<({SEARCH}|{CALL})>(.*?)(</\1>|\Z)", re.S)
ACTION = re.compile(rf"{ACTION_WITHOUT_FOLD.pattern}|<{FOLD}>", re.S)
# Every tag of the grammar, however an injected text may write it.
TAG = re.compile(rf"<(?=\s*(?:/\s*)?({SEARCH}|{CALL}|{FOLD}))", re.I)


class Step(NamedTuple):
    """What an output asks for.

    kind: "search", "call", "fold", "answer", or "broken" for an action that cannot be read.
    query, name, arguments, answer: of the respective kind. problem: of a broken one, in words for the agent.
    """

    kind: str
    query: str = ""
    name: str = ""
    arguments: dict[str, Any] | None = None
    answer: str = ""
    problem: str = ""


def read_step(text: str, /, *, folding: bool = True, **_: Any) -> Step:
    """The first action of an output, or its answer. Never raises, whatever the text is.

    folding: False where there is none: the tag of a fold is then no action.
    """
    found = (ACTION if folding else ACTION_WITHOUT_FOLD).search(text)
    if not found:
        return Step("answer", answer=answer_of(text))
    kind, content, end = found.groups()
    if kind is None:
        return Step("fold")
    if not end:
        return Step("broken", problem=f"<{kind}> is not closed by </{kind}>")
    if kind == SEARCH:
        query = content.strip()
        return Step("search", query=query) if query else Step("broken", problem="the search is empty")
    try:
        name, arguments = read_call(content)
    except ValueError as error:
        return Step("broken", problem=str(error))
    return Step("call", name=name, arguments=arguments)


def action_spans(text: str, folding: bool = True) -> list[tuple[int, int]]:
    """Ranges of characters of all actions that count as tool calls or folds, tags included (ToolPO's M, Eq. 7).

    A search is none: "the specific tokens that constitute the tool call and memory folding actions". A call that is
    not closed reaches to the end of the text.
    """
    actions = ACTION if folding else ACTION_WITHOUT_FOLD
    return [match.span() for match in actions.finditer(text) if match.group(1) != SEARCH]


def answer_of(text: str) -> str:
    """The final answer: what the last `\\boxed{…}` holds, else what stands behind `</think>`, without blanks around."""
    start = text.rfind("\\boxed{")
    if start >= 0:
        depth, begin = 1, start + len("\\boxed{")
        for end in range(begin, len(text)):
            depth += {"{": 1, "}": -1}.get(text[end], 0)
            if depth == 0:
                return text[begin:end].strip()
    return text.rpartition("</think>")[2].strip()


def after_thoughts(text: str) -> str:
    """What stands behind the reasoning, without blanks around; "" if the reasoning has no end."""
    _, end, said = text.rpartition("</think>")
    return "" if not end and text.lstrip().startswith("<think>") else said.strip()


def observed(kind: str, content: str, blank: str = "\n") -> str:
    """The result of an action as it is written into the sequence: nothing in it can be taken for a tag."""
    return f"{blank}<{kind}_result>{blank}{neutral(content)}{blank}</{kind}_result>{blank}"


def neutral(content: str) -> str:
    """Text that can be encoded, in which nothing is a tag of the grammar or a special token: their `<` is `&lt;`."""
    return TAG.sub("&lt;", without_tokens(content))
