"""Which part of a traceback is the user's."""

from __future__ import annotations

import asyncio
import json

import pytest
from hydra.utils import instantiate

from verl_ext.mas import Agent
from verl_ext.tools.chat import ChatEndpoint
from verl_ext.tracebacks import explained, frames_of, place_of, users_traceback
from verl_ext.trainer.build import build_tools


def raised(action, *arguments, **keywords) -> Exception:
    try:
        action(*arguments, **keywords)
    except Exception as error:
        return error.with_traceback(error.__traceback__.tb_next)  # this function would be the user's
    raise AssertionError("nothing was raised")


def user_code(text: str):
    return json.loads(text)


def another(text: str):
    return json.loads(text + "[")


def test_what_leads_to_the_users_code_is_left_out_and_what_it_calls_is_not():
    trace = users_traceback(raised(instantiate, {"_target_": f"{__name__}.user_code", "text": "{"}))
    first, second = frames_of(trace)[:2]
    assert "in user_code" in first and "json" in second and "hydra" not in trace
    assert trace.endswith(
        "JSONDecodeError: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)"
    )


def test_two_errors_of_one_place_are_alike():
    one, same, other = (users_traceback(raised(*call)) for call in ((user_code, "{"), (user_code, "["), (another, "")))
    assert frames_of(one)[0] == frames_of(same)[0] != frames_of(other)[0]


def test_an_error_that_no_code_of_the_users_raised_has_only_its_message():
    error = raised(build_tools, {"search": {"_target_": "verl_ext.tools.retrieval.search_tool", "topp": 3}})
    assert users_traceback(error) == "" and explained(error) == str(error)


def test_a_server_that_does_not_answer_is_no_mistake_of_the_users(monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    loop, chat = asyncio.new_event_loop(), ChatEndpoint("http://127.0.0.1:9/v1", retries=0)
    error = raised(loop.run_until_complete, chat.find_model())
    loop.run_until_complete(chat.close())
    loop.close()
    assert explained(error) == str(error)


def test_a_record_that_refuses_its_fields_is_no_mistake_of_its_own():
    error = raised(Agent, sampling={"heat": 1.0})
    assert explained(error) == str(error)


def test_syntax_that_python_cannot_read():
    error = raised(compile, "def f(", "mine.py", "exec")
    assert 'File "mine.py", line 1' in users_traceback(error)


@pytest.mark.parametrize("function", [user_code, lambda: None])
def test_the_place_of_a_function(function):
    assert place_of(function).endswith(f" ({__file__}:{function.__code__.co_firstlineno})")
    assert place_of(len) == "len"
