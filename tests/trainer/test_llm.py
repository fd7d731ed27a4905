"""Calls to our servers without verl's load balancer."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest
from verl.workers.rollout.llm_server import FullyAsyncLLMServerClient, LLMServerClient
from verl.workers.rollout.replica import TokenOutput

from verl_ext.trainer.rollout.llm import ServedLLM, client_of_calls, direct_client

CONFIG = SimpleNamespace(actor_rollout_ref=SimpleNamespace(rollout=SimpleNamespace(name="hf", response_length=9)))


class Server:
    """A replica as Ray shows it: `server.generate.remote(...)`. Answers once `go` is set."""

    def __init__(self, name: int, outputs: list[TokenOutput] | None = None):
        self.name, self.calls, self.go, self.outputs = name, [], asyncio.Event(), outputs
        self.generate = SimpleNamespace(remote=self._generate)

    async def _generate(self, prompt_ids, **rest):
        self.calls.append(prompt_ids)
        await self.go.wait()
        if self.outputs:
            return self.outputs.pop(0)
        return TokenOutput(token_ids=[self.name], log_probs=[0.0], extra_fields={"global_steps": 3})


async def test_one_id_stays_on_one_server_and_new_ones_go_where_least_runs():
    servers = [Server(0), Server(1)]
    client = direct_client(LLMServerClient(CONFIG), servers)

    def call(name):
        return asyncio.ensure_future(client.generate(name, prompt_ids=[1], sampling_params={}))

    # a and its second call share server 0; b and c go to the other one until it is the busier.
    running = [call(name) for name in ("a", "a", "b", "c", "d")]
    await asyncio.sleep(0)
    assert [len(server.calls) for server in servers] == [3, 2]
    for server in servers:
        server.go.set()
    outputs = await asyncio.gather(*running)
    assert [output.token_ids for output in outputs] == [[0], [0], [1], [1], [0]]
    assert outputs[0].extra_fields["min_global_steps"] == 3
    # Nothing is remembered of ids that are not running.
    assert client._load == [0, 0] and not client._home


@pytest.mark.parametrize("fixed", [False, True])
async def test_concurrent_calls_of_a_question_share_a_server_and_no_name(fixed):
    """vLLM refuses a request whose id is running; under full_determinism verl hands on the id that it is given."""
    named = []

    class Named(Server):
        async def _generate(self, prompt_ids, **rest):
            named.append((self.name, rest["request_id"]))
            return await super()._generate(prompt_ids)

    servers = [Named(0), Named(1)]
    rollout = SimpleNamespace(name="vllm", response_length=9, full_determinism=fixed)
    config = SimpleNamespace(actor_rollout_ref=SimpleNamespace(rollout=rollout))
    llm = ServedLLM(SimpleNamespace(eos_token_id=1), client_of_calls(direct_client(LLMServerClient(config), servers)))
    keys = [("q0", "0", "a.0"), ("q0", "0", "x/b.0"), ("q1", "0", "a.0"), ("q0", "0", "a.0*1", "a.0")]
    running = [asyncio.ensure_future(llm.generate([2], {}, key)) for key in keys]
    await asyncio.sleep(0)
    for server in servers:
        server.go.set()
    await asyncio.gather(*running)
    assert [server for server, _ in named] == [0, 0, 1, 0] and len({name for _, name in named}) == 4
    if fixed:
        assert [name for _, name in named] == ["/".join(key) for key in keys]


async def test_a_failed_call_is_released():
    broken = SimpleNamespace(generate=SimpleNamespace(remote=lambda **_: 1 / 0))
    client = direct_client(LLMServerClient(CONFIG), [broken])
    for _ in range(2):
        try:
            await client.generate("a", prompt_ids=[1], sampling_params={})
        except ZeroDivisionError:
            pass
    assert client._load == [0] and not client._home


async def test_an_aborted_generation_is_resumed_by_the_asynchronous_client():
    old, new = {"global_steps": 1}, {"global_steps": 2}
    first = TokenOutput(token_ids=[5, 6], log_probs=[-1.0, -1.0], stop_reason="aborted", extra_fields=old)
    last = TokenOutput(token_ids=[7], log_probs=[-2.0], stop_reason="completed", extra_fields=new)
    server = Server(0, [first, last])
    server.go.set()
    client = direct_client(FullyAsyncLLMServerClient(CONFIG), [server])
    output = await client.generate("a", prompt_ids=[1, 2], sampling_params={"max_tokens": 9})
    assert output.token_ids == [5, 6, 7] and output.log_probs == [-1.0, -1.0, -2.0]
    assert server.calls == [[1, 2], [1, 2, 5, 6]]
    assert (output.extra_fields["min_global_steps"], output.extra_fields["max_global_steps"]) == (1, 2)


@pytest.mark.parametrize(
    ("said", "known"),
    [(("a", "a"), "a"), (("a", "b"), "a, b"), (("a", None), None), (("", ""), ""), ((None, None), None)],
)
async def test_adapter_and_policy_of_a_resumed_generation_are_those_of_all_its_parts(said, known):
    fields = [{} if name is None else {"adapter": name, "policy": name} for name in said]
    first = TokenOutput(token_ids=[5], log_probs=[-1.0], stop_reason="aborted", extra_fields=fields[0])
    last = TokenOutput(token_ids=[7], log_probs=[-2.0], stop_reason="completed", extra_fields=fields[1])
    server = Server(0, [first, last])
    server.go.set()
    client = client_of_calls(direct_client(FullyAsyncLLMServerClient(CONFIG), [server]))
    generation = await ServedLLM(SimpleNamespace(eos_token_id=1), client).generate([1], {"max_tokens": 9}, ("q", "a"))
    assert generation.token_ids == [5, 7] and generation.adapter == generation.policy == known


@pytest.mark.parametrize(
    ("token_ids", "reason", "told"),
    [
        ([5, 6, 7], "completed", "length"),
        ([5, 6, 1], "completed", "completed"),
        ([5, 6, 9], "completed", "completed"),
        ([5], "completed", "completed"),
    ],
)
def test_an_output_cut_off_is_told_from_one_that_ended(token_ids, reason, told):
    class Client:
        async def generate(self, **_):
            return TokenOutput(token_ids=token_ids, log_probs=[0.0] * len(token_ids), stop_reason=reason)

    llm = ServedLLM(SimpleNamespace(eos_token_id=1), Client())
    sampling = {"max_tokens": 3, "stop_token_ids": [9]}  # 9 ends a tool call
    assert asyncio.run(llm.generate([2], sampling, ("q",))).stop_reason == told


@pytest.mark.parametrize(
    ("parts", "limit", "token_ids", "reason"),
    [
        # The engine, asked for the rest, does not know of the stop string's beginning.
        (["ab</t", "ag> and more"], 30, "ab</tag>", "completed"),
        (["ab</t", "ag> and more"], 17, "ab</tag>", "completed"),
        (["ab</tag>"], 8, "ab</tag>", "completed"),
        (["ab", "cd$"], 5, "abcd$", "completed"),
        (["ab", "cde"], 5, "abcde", "length"),
    ],
)
async def test_a_resumed_output_ends_as_one_that_was_not_interrupted(parts, limit, token_ids, reason):
    """Tokens are characters; $ ends a text."""
    why = ["aborted"] * (len(parts) - 1) + ["completed"]
    outputs = [
        TokenOutput(token_ids=list(map(ord, part)), log_probs=[-1.0] * len(part), stop_reason=stop, extra_fields={})
        for part, stop in zip(parts, why, strict=True)
    ]
    server = Server(0, outputs)
    server.go.set()
    tokenizer = SimpleNamespace(eos_token_id=ord("$"), decode=lambda ids, **_: "".join(map(chr, ids)).replace("$", ""))
    llm = ServedLLM(tokenizer, client_of_calls(direct_client(FullyAsyncLLMServerClient(CONFIG), [server])))
    generation = await llm.generate([1], {"max_tokens": limit, "stop": ["</tag>"]}, ("q", "a"))
    assert "".join(map(chr, generation.token_ids)) == token_ids and generation.stop_reason == reason
    assert len(generation.log_probs) == len(token_ids)
