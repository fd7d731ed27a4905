"""What the chat client learns from refusals, and what it sends of a stream and of its stops."""

from __future__ import annotations

import json

import pytest

from tests.serving import answer
from tests.tools.chatting import CHAT, GREEDY, SAMPLED, serve_and_ask
from verl_ext.tools.chat import EndpointFailed, TooLong
from verl_ext.tools.chat.wire import complaint_of, is_too_long, refused_parameters, sendable

TURNS = [*CHAT, {"role": "assistant", "content": "I look"}, {"role": "user", "content": " -> 5 "}]
JOINED = [*CHAT, {"role": "assistant", "content": "I look -> 5 "}]
STREAM = {**GREEDY, "stop": ["</a>", "<b>"], "continue_from": 1}
CONTINUATION = {"continue_final_message", "add_generation_prompt"}


@pytest.mark.parametrize("status", [400, 401, 404, 422])
def test_a_refused_request_is_not_tried_again(status):
    _, (done,), requests = serve_and_ask(lambda *_: (status, {"error": {"message": "no \x1b[31m such thing"}}), SAMPLED)
    assert isinstance(done, EndpointFailed) and len(requests) == 1
    assert f"status {status}" in str(done) and "such thing" in str(done) and "\x1b" not in str(done)


def test_a_server_that_reads_no_tool_calls_is_told_how_it_would():
    message = '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'
    refusal = {"error": {"message": message, "type": "BadRequestError", "param": None, "code": 400}}
    tools = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}]
    _, (done, plain), requests = serve_and_ask(
        lambda body, _: (400, refusal) if "tools" in body else answer(), {**GREEDY, "tools": tools}, GREEDY
    )
    assert isinstance(done, EndpointFailed) and plain.text == "Paris" and len(requests) == 2
    remedy = "\nRemedy: vllm serve MODEL --enable-auto-tool-choice --tool-call-parser PARSER"
    assert f"status 400: {message!r}{remedy}" in str(done) and len(str(done)) < 250


@pytest.mark.parametrize(
    ("status", "refusal", "too_long"),
    [
        *(
            (400, {"error": {"message": message}}, True)
            for message in (
                "This model's maximum context length is 4096 tokens. However, you requested 5000 tokens",
                "context_length_exceeded",
                "the request exceeds the available context size",
                "prompt is too long: 210000 tokens > 200000 maximum",
                "Too long input",
            )
        ),
        (403, {"error": {"message": "the prompt is too long"}}, False),  # a policy, not the model's limit
        (400, {"error": {"message": "the name of the user is too long"}}, False),
        (422, {"detail": [{"loc": ["body", "messages"], "msg": "bad role", "input": "a context window"}]}, False),
    ],
)
def test_which_refusals_mean_a_prompt_that_is_too_long(status, refusal, too_long):
    assert is_too_long(status, complaint_of(json.dumps(refusal))) is too_long


def test_a_prompt_too_long_for_the_server_has_an_error_of_its_own():
    _, (done,), requests = serve_and_ask(lambda *_: (400, {"error": {"message": "context_length_exceeded"}}))
    assert isinstance(done, TooLong) and len(requests) == 1


def test_unknown_parameters_are_left_out_with_one_note_each(capsys):
    def picky(body, number):
        for name in ("seed", "top_k"):
            if name in body:
                return 400, {"error": {"message": f"Unrecognized request argument supplied: {name}"}}
        if "max_tokens" in body:
            return 400, {"error": {"message": "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens'."}}
        return answer()

    llm, done, requests = serve_and_ask(picky, *[SAMPLED] * 3)
    assert [one.text for one in done] == ["Paris"] * 3 and llm.ignored == ["seed", "top_k"]
    assert len(requests) == 3 + 3 and requests[-1]["max_completion_tokens"] == 9
    printed = capsys.readouterr().out
    assert printed.count("does not take seed") == 1 and printed.count("does not take top_k") == 1


def echo(body):
    return [{"type": "enum", "loc": ["body", "messages"], "msg": "bad role", "input": body}]


REQUEST = {"messages": CHAT, "seed": 5, "top_k": 20}
NONE: dict[str, None] = {}


@pytest.mark.parametrize(
    ("refusal", "refused"),
    [
        (
            {"detail": [{"loc": ["body", "top_k"], "msg": "Extra inputs are not permitted", "input": 20}]},
            {"top_k": None},
        ),
        ({"error": "unknown field top_k"}, {"top_k": None}),
        ("unknown argument: top_k", {"top_k": None}),
        # A refusal that repeats the request contains the names of all parameters.
        ({"detail": echo(REQUEST)}, NONE),
        ({"error": {"message": f"1 validation error: {echo(REQUEST)}"}}, NONE),
        ({"message": f"messages\n  bad role [type=enum, input_value={REQUEST}, input_type=dict]"}, NONE),
        ({"detail": echo({**REQUEST, "padding": "x" * 5000})}, NONE),
    ],
)
def test_which_parameters_a_refusal_names(refusal, refused):
    text = refusal if isinstance(refusal, str) else json.dumps(refusal)
    assert refused_parameters(REQUEST, complaint_of(text)) == refused


def test_a_refusal_that_stays_without_the_parameters_costs_none(capsys):
    def behave(body, number):
        return answer() if number == 2 else (422, {"error": {"message": "seed must go with top_k"}})

    llm, (bad, good), requests = serve_and_ask(behave, SAMPLED, SAMPLED, retries=0)
    assert isinstance(bad, EndpointFailed) and good.text == "Paris"
    assert llm.ignored == [] and not capsys.readouterr().out and {"seed", "top_k"} <= set(requests[-1])


def test_a_stream_is_one_message_that_the_server_continues():
    _, done, (stream, turns) = serve_and_ask(None, STREAM, GREEDY, messages=TURNS)
    assert stream["messages"] == JOINED == done[0].sent
    assert stream["continue_final_message"] is True and stream["add_generation_prompt"] is False
    assert turns["messages"] == TURNS == done[1].sent and not CONTINUATION & set(turns)


@pytest.mark.parametrize("name", sorted(CONTINUATION))
def test_a_server_that_refuses_to_continue_gets_turns_from_then_on(name, capsys):
    refusal = (422, {"detail": [{"loc": ["body", name], "msg": "Extra inputs are not permitted"}]})
    llm, answers, bodies = serve_and_ask(
        lambda body, _: refusal if name in body else answer(), STREAM, STREAM, messages=TURNS
    )
    assert [body["messages"] for body in bodies] == [JOINED, TURNS, TURNS] and llm.ignored == [name]
    assert [done.sent for done in answers] == [TURNS, TURNS]
    assert not CONTINUATION & {*bodies[1], *bodies[2]}
    assert capsys.readouterr().out.count(f"does not take {name}; a stream is sent as turns") == 1


def test_a_template_that_drops_some_of_the_message_costs_no_other_parameter():
    """Its complaint repeats the whole message, which may contain any word."""
    dropped = (
        "continue_final_message is set but the final message does not appear in the chat after applying the chat "
        "template! This can happen if the chat template deletes portions of the final message. Final message to "
        "continue: we stop; the seed exceeds the maximum context length"
    )
    assert not is_too_long(400, complaint_of(json.dumps({"message": dropped})))
    refusal = (400, {"error": {"message": dropped}})
    llm, _, bodies = serve_and_ask(
        lambda body, _: refusal if "continue_final_message" in body else answer(),
        {**STREAM, "temperature": 1.0}, messages=TURNS,
    )  # fmt: skip
    assert llm.ignored == ["continue_final_message"] and {"stop", "seed"} <= set(bodies[1])


@pytest.mark.parametrize(
    ("stops", "named", "sent"),
    [
        (["</a>", "<b>"], False, ["</a>"]),
        (["</a>", "<b>"], True, ["</a>", "<b>"]),
        (["\nObservation:"], False, ["\nObservation:"]),  # without a closing tag the server would never name one
    ],
)
def test_which_stops_are_sent(stops, named, sent):
    assert sendable(stops, named) == sent


@pytest.mark.parametrize(
    ("choice", "learned"),
    [
        ({"stop_reason": "</a>"}, True),
        ({"matched_stop": "</a>"}, True),
        ({"stop_reason": 151645}, False),
        ({}, False),
    ],
)
def test_a_server_that_has_named_a_stop_gets_them_all(choice, learned):
    body = answer()
    body["choices"][0] |= choice
    llm, _, bodies = serve_and_ask(lambda *_: body, STREAM, STREAM, messages=TURNS)
    assert [one["stop"] for one in bodies] == [["</a>"], ["</a>", "<b>"] if learned else ["</a>"]]
    assert llm.names_stops is learned
