"""JoyAgents-R1's conversations for fine-tuning: well formed, and as agents see them."""

from __future__ import annotations

import json
from collections import Counter

import pyarrow.parquet as pq
import pytest

from tests.serving import ChatServer
from tests.serving import answer as served
from verl_ext.memory import HashingSimilarity
from verl_ext.recipe.joyagents import grammar, single
from verl_ext.recipe.joyagents.accuracy import accuracy, functions_called
from verl_ext.recipe.joyagents.data import sft_conversations, thoughts, toolbench_chats
from verl_ext.recipe.joyagents.data.agent_chats import SOLVED, ChatGenerator
from verl_ext.recipe.joyagents.data.chat_tools import call_of
from verl_ext.recipe.joyagents.data.generated_questions import Question
from verl_ext.recipe.joyagents.workflow import SPECIALISTS
from verl_ext.tools.catalogue.types import ToolSpec

PROBLEM = Question("math", "How many are 2 and 3?", answer="5", thought="2 + 3 = <<2+3=5>>5")

PROPERTIES = {"city": {"type": "string", "default": "Oslo"}, "days": {"type": "integer", "default": 3}}
SCHEMA = {"type": "object", "properties": PROPERTIES, "required": ["city"]}
TOOL = ToolSpec("weather_for_sky", "Weather of a city.", SCHEMA, {"rain": "float"})
OTHERS = [ToolSpec(f"other_{number}", f"Something else {number}.") for number in range(8)]


@pytest.mark.parametrize(
    ("required", "question", "expected"),
    [
        (["city"], "Will it rain in Oslo?", {"city": "Oslo"}),
        (["city"], "Will it rain in oslo?", {"city": "Oslo"}),
        (["city"], "Will it rain in Oslofjord?", None),
        (["city"], "Will it rain in Rome?", None),
        (["city", "days"], "Oslo, the next 3 days?", {"city": "Oslo", "days": 3}),
        (["city", "days"], "Oslo, the next 13 days?", None),
        ([], "Anything?", {}),
    ],
)
def test_arguments_are_clear_only_where_the_documented_example_stands_in_the_question(required, question, expected):
    tool = ToolSpec(TOOL.name, TOOL.description, {**SCHEMA, "required": required})
    assert call_of(tool, question) == expected


@pytest.fixture(scope="module")
def conversations():
    one = Question("function", "Will it rain in Oslo?", functions=(TOOL.name,))
    two = Question("function", "Will it rain in Oslo? And else?", functions=(TOOL.name, "other_3"))
    half = Question("function", "Will it rain in Oslo, and in Rome?", functions=("unclear", TOOL.name))
    none = Question("function", "Will it rain in Rome?", functions=("unclear",))
    unclear = ToolSpec("unclear", "Something of a city.", {**SCHEMA, "required": ["days"]})
    real = {"math": [PROBLEM] * 30, "function": [one, two, half, none] * 3}
    chats = ChatGenerator(0, real, [TOOL, unclear, *OTHERS])
    sizes = {agent: {kind: 12 for kind in kinds} for agent, kinds in sft_conversations.SIZES.items()}
    return dict(chats.sets(sizes))


def test_conversations_have_the_form_that_is_rewarded(conversations):
    assert set(conversations) == {"master", *SPECIALISTS, "single_agent"}
    for agent, chats in conversations.items():
        assert chats
        for messages in chats:
            assert [message["role"] for message in messages[:2]] == ["system", "user"]
            assert messages[-1]["role"] == "assistant" and messages[2]["role"] == "assistant"
            for message in messages[2:]:
                if message["role"] == "assistant":
                    assert grammar.well_formed(message["content"]), (agent, message)
                    assert grammar.read_step(message["content"]).kind in ("call", "answer")
                else:
                    assert message["role"] == "tool" and grammar.neutral(message["content"]) == message["content"]


def after_intention(rest):
    """The turns after the call of `tool_intention`, with which some conversations of function agents begin."""
    return rest[2:] if grammar.read_step(rest[0]["content"]).name == "tool_intention" else rest


def test_conversations_show_what_tables_8_and_9_show(conversations):
    """The function agents ask for the intention; the master looks for its next agent, and sees the math agent's steps;
    memories keep worked solutions."""
    calls = {
        agent: Counter(
            grammar.read_step(message["content"]).name
            for messages in chats
            for message in messages
            if message["role"] == "assistant"
        )
        for agent, chats in conversations.items()
    }
    for agent in ("shop_agent", "function_agent"):
        assert 0 < calls[agent]["tool_intention"] < len(conversations[agent]), agent
    assert calls["master"]["tool_retrievals"], "it looks for an agent"
    assert {single.KNOWLEDGE, single.SHOP, single.GENERAL} <= set(calls["single_agent"])
    told = [message["content"] for chat in conversations["master"] for message in chat if message["role"] == "tool"]
    assert "2 + 3 = 5\n5" in told
    prompts = [chat[0]["content"] for chat in conversations["math_agent"]]
    assert any("think>2 + 3 = 5" in prompt and "<<" not in prompt for prompt in prompts)


def test_conversations_as_the_papers_cases_show_them():
    """Tables 8 to 10, and the options of mas.workflow: functions listed, or found in place of their agent; memories."""
    rain = Question("function", "Will it rain in Oslo?", functions=(TOOL.name,))
    real = {"math": [PROBLEM], "function": [rain]}
    chats = ChatGenerator(0, real, [TOOL, *OTHERS], apis="listed", found="functions")
    sizes = {"shop_agent": {"shop": 20}, "function_agent": {"function": 1}, "master": {"cooperation": 60}}
    made = dict(chats.sets(sizes))
    for agent in ("shop_agent", "function_agent"):
        for system, _, *rest in made[agent]:
            steps = [grammar.read_step(one["content"]) for one in rest if one["role"] == "assistant"]
            called = [step.name for step in steps if step.name not in ("", "tool_intention")]
            assert "tool_retrievals" not in called and all(f'"name": "{name}"' in system["content"] for name in called)
    assert any("function-0: " in one["content"] for chat in made["master"] for one in chat if one["role"] == "tool")
    for remember, shown in (("output", True), ("answer", False)):
        drawn = dict(ChatGenerator(0, real, [TOOL], remember=remember).sets({"shop_agent": {"shop": 40}}))["shop_agent"]
        assert any(SOLVED in chat[0]["content"] for chat in drawn) == shown


def test_thoughts_are_left_out_or_written_by_a_model(conversations, tmp_path):
    chat = next(chat for chat in conversations["shop_agent"] if len(chat) > 5)
    bare = thoughts.without(chat)
    assert not any("<think>" in message["content"] for message in bare[2:]) and bare[:2] == chat[:2]
    kinds = [[grammar.read_step(one["content"])[:4] for one in of if one["role"] == "assistant"] for of in (chat, bare)]
    assert kinds[0] == kinds[1], "the same calls, and the same answer"

    with ChatServer(lambda body, number: served("I think so.")) as server:
        for _ in range(2):  # the second time from the file
            (said,) = thoughts.written([chat], server.url, None, tmp_path / "thoughts.jsonl")
    outputs = [message["content"] for message in said if message["role"] == "assistant"]
    assert all(output.startswith("<think>I think so.</think>") for output in outputs) and len(server.requests) == len(
        outputs
    )
    assert thoughts.without(said) == bare


def test_a_thought_that_a_kill_cut_short_is_asked_for_again(conversations, tmp_path):
    chat, cache = next(chat for chat in conversations["shop_agent"] if len(chat) > 5), tmp_path / "thoughts.jsonl"
    with ChatServer(lambda body, number: served("I think so.")) as server:
        (said,) = thoughts.written([chat], server.url, None, cache)
        asked = len(server.requests)
        cache.write_bytes(cache.read_bytes()[:-4])
        assert thoughts.written([chat], server.url, None, cache) == [said]
        assert len(server.requests) == asked + 1


def test_a_thought_is_known_again_whatever_breaks_lines_in_it(conversations, tmp_path):
    """Unicode has line breaks of its own, which JSON does not escape."""
    chat, cache = next(chat for chat in conversations["shop_agent"] if len(chat) > 5), tmp_path / "thoughts.jsonl"
    with ChatServer(lambda body, number: served("I\u2028think\x85so,\r\nand\x0cso.")) as server:
        said = thoughts.written([chat], server.url, None, cache)
        asked = len(server.requests)
        assert thoughts.written([chat], server.url, None, cache) == said
        assert len(server.requests) == asked


def test_conversations_answer_with_what_was_seen(conversations):
    recalled = 0
    for agent, chats in conversations.items():
        for system, _, *rest in chats:
            rest = after_intention(rest)
            last = grammar.read_step(rest[-1]["content"])
            seen = " ".join(message["content"] for message in rest if message["role"] == "tool")
            recalled += len(rest) == 1 and "memory" in rest[0]["content"]
            if last.kind == "answer" and agent not in ("math_agent", "single_agent"):
                memory = system["content"].partition("<memory>")[2]
                known = json.dumps(last.answer, ensure_ascii=False)[1:-1] in memory
                assert known or all(line in seen for line in last.answer.splitlines()), (agent, rest)
            if agent in ("shop_agent", "function_agent") and len(rest) > 1:
                called = grammar.read_step(rest[2]["content"])
                assert f'"name": "{called.name}"' in rest[1]["content"], "it was found before it is called"
                assert agent != "shop_agent" or functions_called(last.answer) == [called.name]
    assert recalled, "some conversations answer from the memory"


def test_function_agents_answer_where_all_calls_are_clear_and_end_with_a_call_where_some_are(conversations):
    ends = Counter()
    for _, query, *rest in conversations["function_agent"]:
        rest = after_intention(rest)
        last = grammar.read_step(rest[-1]["content"])
        names = [TOOL.name, "other_3"] if "else" in query["content"] else [TOOL.name]
        assert all(f'"name": "{name}"' in rest[1]["content"] for name in names), "all are found"
        ends[query["content"], last.kind] += 1
        if last.kind == "answer":
            truth = {"kind": "function", "functions": names}
            assert accuracy(truth, last.answer, HashingSimilarity()) == 1.0
            assert '"rain": "float"' in rest[3]["content"], "the documented form, and the answer hands it on"
    assert ends == {
        ("Will it rain in Oslo?", "answer"): 3,
        ("Will it rain in Oslo? And else?", "answer"): 3,
        ("Will it rain in Oslo, and in Rome?", "call"): 3,
    }


def test_the_master_answers_what_the_function_agent_would(conversations):
    said = {query["content"]: rest for _, query, *rest in conversations["master"]}
    answer = grammar.read_step(said["Will it rain in Oslo? And else?"][-1]["content"]).answer
    assert functions_called(answer) == [TOOL.name, "other_3"]
    assert grammar.read_step(said["Will it rain in Oslo, and in Rome?"][-1]["content"]).name == "function_agent"


def test_a_conversation_about_a_problem_has_its_steps_without_the_calculator(conversations):
    for messages in conversations["math_agent"]:
        thought = messages[-1]["content"]
        assert "<<" not in thought and grammar.read_step(thought).answer == "5"


def test_toolbench_dialogues_become_conversations_of_the_function_agent(tmp_path):
    def step(name, **arguments):
        return {"from": "assistant", "value": f"\nThought: so\nAction: {name}\nAction Input: {json.dumps(arguments)}"}

    system = "You are AutoGPT, … Specifically, you have access to the following APIs: " + str(
        [{"name": name, "description": "", "parameters": {}} for name in ("weather", "Finish")]
    )
    begin = [{"from": "system", "value": system}, {"from": "user", "value": "\nRain?\nBegin!\n"}]
    called = [step("weather", city="Oslo"), {"from": "function", "value": '{"rain": "yes"}'}]
    answered = step("Finish", return_type="give_answer", final_answer="Yes.")
    gives_up = step("Finish", return_type="give_up_and_restart")
    rows = [{"id": "1", "conversations": [*begin, *called, end]} for end in (answered, gives_up)]
    (tmp_path / "train.json").write_text(json.dumps(rows))
    for more, thought in ((), "<think>so</think>"), (("--no_thoughts",), ""):
        assert (
            toolbench_chats.main(["--input", str(tmp_path / "train.json"), "--output_dir", str(tmp_path), *more]) == 0
        )
        (row,) = pq.read_table(tmp_path / "function_agent.parquet").to_pylist()
        prompt, user, call, result, answer = (message["content"] for message in row["messages"])
        assert user == "Rain?" and '"weather"' in prompt and '"Finish"' not in prompt
        assert call == f'{thought}<tool_call>{{"name": "weather", "arguments": {{"city": "Oslo"}}}}</tool_call>'
        assert (result, answer) == ('{"rain": "yes"}', f"{thought}Yes.")
