"""What the chat client sends of a stream and of its stops, and what it learns from a server's refusals."""

from __future__ import annotations

import asyncio

import pytest

from tests.serving import ChatServer, answer
from tests.tools.chatting import CHAT, GREEDY
from verl_ext.tools.chat import ChatEndpoint, EndpointFailed
from verl_ext.tools.chat_forms import complaint_of, is_too_long, sendable

TURNS = [*CHAT, {"role": "assistant", "content": "I look"}, {"role": "user", "content": " -> 5 "}]
JOINED = [*CHAT, {"role": "assistant", "content": "I look -> 5 "}]
STREAM = {**GREEDY, "stop": ["</a>", "<b>"], "continue_from": 1}
DROPPED = (
    "continue_final_message is set but the final message does not appear in the chat after applying the chat template! "
    "This can happen if the chat template deletes portions of the final message. Final message to continue: we stop; "
    "the seed exceeds the maximum context length"
)


def asked(behave, *samplings, messages=TURNS):
    """(client, answers, bodies) of calls one after the other."""

    async def scenario(url):
        llm = ChatEndpoint(url, "tiny", retries=0)
        try:
            return llm, [await llm.complete(messages, sampling) for sampling in samplings]
        finally:
            await llm.close()

    with ChatServer(behave) as server:
        llm, answers = asyncio.run(scenario(server.url))
    return llm, answers, server.requests


def test_a_stream_is_one_message_that_the_server_continues():
    _, (done,), (body,) = asked(None, STREAM)
    assert body["messages"] == JOINED == done.sent
    assert body["continue_final_message"] is True and body["add_generation_prompt"] is False


def test_what_is_no_stream_is_sent_as_it_is():
    _, (done,), (body,) = asked(None, GREEDY)
    assert body["messages"] == TURNS == done.sent and not {"continue_final_message", "add_generation_prompt"} & set(
        body
    )


@pytest.mark.parametrize("name", ["continue_final_message", "add_generation_prompt"])
def test_a_server_that_refuses_one_of_both_gets_turns_from_there_on(name, capsys):
    def behave(body, number):
        return (
            (422, {"detail": [{"loc": ["body", name], "msg": "Extra inputs are not permitted"}]})
            if name in body
            else answer()
        )

    llm, answers, bodies = asked(behave, STREAM, STREAM)
    assert [body["messages"] for body in bodies] == [JOINED, TURNS, TURNS] and llm.ignored == [name]
    assert [done.sent for done in answers] == [TURNS, TURNS]
    assert not {"continue_final_message", "add_generation_prompt"} & {*bodies[1], *bodies[2]}
    assert capsys.readouterr().out.count(f"does not take {name}; a stream is sent as turns") == 1


def test_a_template_that_drops_some_of_the_message_costs_no_other_parameter():
    """Its complaint repeats the whole message, which may say anything."""

    def behave(body, number):
        return (400, {"error": {"message": DROPPED}}) if "continue_final_message" in body else answer()

    assert not is_too_long(400, complaint_of(f'{{"message": "{DROPPED}"}}'))
    llm, _, bodies = asked(behave, {**STREAM, "temperature": 1.0})
    assert llm.ignored == ["continue_final_message"] and {"stop", "seed"} <= set(bodies[1])


def test_a_refusal_without_the_continuation_costs_none():
    with pytest.raises(EndpointFailed):
        asked(lambda body, number: (400, {"error": {"message": "continue_final_message, or not"}}), STREAM)


@pytest.mark.parametrize(
    ("stops", "named", "sent"),
    [
        (["</a>", "<b>"], False, ["</a>"]),
        (["</a>", "<b>"], True, ["</a>", "<b>"]),
        (["\nObservation:"], False, ["\nObservation:"]),  # nothing would ever be named
        (["</a>"], False, ["</a>"]),
    ],
)
def test_which_stops_are_sent(stops, named, sent):
    assert sendable(stops, named) == sent


@pytest.mark.parametrize(
    ("said", "learned"),
    [
        ({"stop_reason": "</a>"}, True),
        ({"matched_stop": "</a>"}, True),
        ({"stop_reason": None}, False),
        ({"stop_reason": 151645}, False),
        ({"stop_reason": "end_turn"}, False),  # a word of another API
        ({}, False),
    ],
)
def test_a_server_that_has_named_a_stop_gets_them_all(said, learned):
    body = answer()
    body["choices"][0] |= said
    llm, _, bodies = asked(lambda *_: body, STREAM, STREAM)
    assert [one["stop"] for one in bodies] == [["</a>"], ["</a>", "<b>"] if learned else ["</a>"]]
    assert llm.names_stops is learned
