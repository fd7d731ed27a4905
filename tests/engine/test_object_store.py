"""Weights over Ray's object store: whole, in order, bounded, and compared with what was sent."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest
import torch

from verl_ext.engine import object_store
from verl_ext.engine.mailbox import AHEAD, Mailbox
from verl_ext.engine.object_store import ObjectStoreEngine


class Remote:
    """A mailbox, as its handle is called; remembers the most parcels that it held."""

    def __init__(self):
        self.box, self.most = Mailbox(), 0

    def __getattr__(self, name):
        async def call(*arguments):
            result = await getattr(self.box, name)(*arguments)
            self.most = max(self.most, len(self.box._parcels))
            return result

        return type("Method", (), {"remote": staticmethod(call)})


async def stored(value):
    return value


def ends(monkeypatch, readers=2, size=64):
    """A mailbox, the sender, and the readers."""
    monkeypatch.setattr(object_store.ray, "put", lambda parcel: Kept(parcel))
    mailbox, engines = Remote(), [ObjectStoreEngine(size, is_master=True)]
    engines += [ObjectStoreEngine(size) for _ in range(readers)]
    for number, engine in enumerate(engines):
        engine.init_process_group(mailbox=mailbox, reader=number - 1)
    return mailbox, engines[0], engines[1:]


class Kept:
    """A reference: it may be waited for several times."""

    def __init__(self, value):
        self.value = value

    def __await__(self):
        return stored(self.value).__await__()


async def read(engine, step, seconds=0.0):
    found = {}
    async for name, tensor in engine.receive_weights(step):
        found[name] = tensor
        await asyncio.sleep(seconds)
    return found


def test_every_reader_gets_all_tensors_and_a_slow_one_holds_the_sender(monkeypatch):
    sent = {f"layer{n}": torch.randn(n + 1, 5) for n in range(12)}

    async def scenario():
        mailbox, sender, readers = ends(monkeypatch)
        await mailbox.box.open(2)
        asked = [read(readers[0], 3), read(readers[1], 3, seconds=0.002)]
        metrics, *found = await asyncio.gather(sender.send_weights(iter(sent.items()), 3), *asked)
        return mailbox, metrics, found

    mailbox, metrics, found = asyncio.run(scenario())
    assert metrics["update/sent_mb"] == sum(tensor.nbytes for tensor in sent.values()) / 1e6
    for one in found:
        assert list(one) == list(sent) and all(torch.equal(one[name], sent[name]) for name in sent)
    assert mailbox.most <= AHEAD + 1


def test_a_producer_may_use_its_buffer_again(monkeypatch):
    async def scenario():
        mailbox, sender, (reader,) = ends(monkeypatch, readers=1, size=1000)
        await mailbox.box.open(1)
        buffer = torch.zeros(4)

        def produced():
            for value in (1.0, 2.0):
                yield f"w{value:g}", buffer.fill_(value)

        return (await asyncio.gather(sender.send_weights(produced(), 0), read(reader, 0)))[1]

    assert {name: tensor.tolist() for name, tensor in asyncio.run(scenario()).items()} == {
        "w1": [1.0] * 4,
        "w2": [2.0] * 4,
    }


@pytest.mark.parametrize(
    ("asked", "changed", "message"),
    [(4, False, "asked for the weights of step 4 and got those of step 3"), (3, True, "are not those that were sent")],
)
def test_weights_of_another_step_and_changed_ones_end_the_run(asked, changed, message, monkeypatch):
    async def scenario():
        mailbox, sender, (reader,) = ends(monkeypatch, readers=1)
        await mailbox.box.open(1)
        if changed:
            spoilt = [("w", torch.ones(20) * 2)]
            monkeypatch.setattr(
                object_store.ray, "put", lambda parcel: Kept(spoilt if isinstance(parcel, list) else parcel)
            )
        await asyncio.gather(sender.send_weights(iter([("w", torch.ones(20))]), 3), read(reader, asked))

    with pytest.raises(RuntimeError, match=message):
        asyncio.run(scenario())


def test_the_weights_of_one_policy_do_not_arrive_at_another(monkeypatch):
    """Even where both have the same tensors at the same step."""

    async def scenario(theirs):
        mailbox, sender, _ = ends(monkeypatch, readers=0)
        sender.policy, reader = "small", ObjectStoreEngine(64, policy=theirs)
        reader.init_process_group(mailbox=mailbox, reader=0)
        await mailbox.box.open(1)
        return (await asyncio.gather(sender.send_weights(iter(WEIGHTS.items()), 3), read(reader, 3)))[1]

    assert torch.equal(asyncio.run(scenario("small"))["layer"], WEIGHTS["layer"])
    with pytest.raises(RuntimeError, match="of step 3 that arrived at the rollout engine are not those that were sent"):
        asyncio.run(scenario("large"))
    metadata = [ObjectStoreEngine(64, policy=name).prepare() for name in ("small", "large")]
    with pytest.raises(RuntimeError, match="from one policy to another: large, small"):
        ObjectStoreEngine.build_topology(1, 1, metadata)


def test_the_mailbox_starts_on_the_node_of_the_trainer(monkeypatch):
    """Ray would start it on any node, for example on that of a rollout worker, which may die and be replaced."""
    chosen = []

    class Actor:
        def options(self, **options):
            chosen.append(options)
            return SimpleNamespace(remote=lambda: SimpleNamespace(open=SimpleNamespace(remote=lambda readers: None)))

    context = SimpleNamespace(get_node_id=lambda: "ab" * 28)
    ray = SimpleNamespace(remote=lambda cls: Actor(), get=lambda _: None, get_runtime_context=lambda: context)
    monkeypatch.setattr(object_store, "ray", ray)
    monkeypatch.setattr(ObjectStoreEngine, "_mailboxes", {})
    ObjectStoreEngine.build_topology(1, 1, [ObjectStoreEngine(64, policy="small").prepare()])
    place = chosen[0]["scheduling_strategy"]
    assert (place.node_id, place.soft) == ("ab" * 28, False)


WEIGHTS = {"layer": torch.ones(3)}
