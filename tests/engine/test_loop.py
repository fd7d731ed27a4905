"""The engine in its thread: waves, pauses, errors, and what happens when the thread ends. No Ray."""

from __future__ import annotations

import threading
import time
from concurrent.futures import TimeoutError as FutureTimeout
from concurrent.futures import wait

import pytest
import torch

from tests.engine.conftest import EOS, VOCAB, tiny_model
from verl_ext.engine.hf.loop import EngineLoop
from verl_ext.engine.hf.params import Request, SamplingParams
from verl_ext.engine.hf.slots import SlotEngine

SECONDS = 300


class Engine(SlotEngine):
    """Records who runs together, waits for `gate` before each step, and raises `fault` in the next step, once."""

    def __init__(self, slots: int = 4) -> None:
        self.together: list[set[str]] = []
        self.fault: BaseException | None = None
        self.gate = threading.Event()
        self.gate.set()
        super().__init__(tiny_model("qwen2"), slots, 128, [EOS])

    def step(self):
        assert self.gate.wait(SECONDS)
        if self.fault is not None:
            fault, self.fault = self.fault, None
            raise fault
        ended = super().step()
        self.together.append({job.request.request_id for job in self.active} | {d.request.request_id for d in ended})
        return ended


@pytest.fixture
def engine():
    return Engine()


@pytest.fixture
def loop(engine):
    loop = EngineLoop(lambda: engine)
    engine.together.clear()
    yield loop
    engine.gate.set()
    loop.close()


def request(name: str, tokens: int = 6, prompt: tuple[int, ...] = (5, 6, 7)) -> Request:
    return Request(name, prompt, SamplingParams(tokens, seed=sum(name.encode()), ignore_eos=True))


def wait_for_a_step(engine: Engine) -> None:
    """Return after a first step, with the gate closed."""
    deadline = time.monotonic() + SECONDS
    while not engine.together:
        assert time.monotonic() < deadline
        time.sleep(0.001)
    engine.gate.clear()


def test_nothing_joins_a_wave_and_what_came_meanwhile_runs_after_it(engine, loop):
    engine.gate.clear()
    before = loop.submit(request("before", 10))
    wave = loop.submit_wave([request(f"w{i}") for i in range(6)])
    later = [loop.submit(request(f"later{i}")) for i in range(2)]
    second = loop.submit_wave([request("v0")])
    engine.gate.set()
    assert [done.request.request_id for done in wave.result(SECONDS)] == [f"w{i}" for i in range(6)]
    assert len(second.result(SECONDS)) == 1 and before.result(SECONDS) and all(f.result(SECONDS) for f in later)
    for names in engine.together:
        assert len({name[0] for name in names}) == 1, names
    order = [next(iter(names))[0] for names in engine.together]
    assert "".join(dict.fromkeys(order)) == "bwvl"


def test_nothing_joins_a_wave_that_already_runs(engine, loop):
    wave = loop.submit_wave([request("w0", 40), request("w1", 20)])
    wait_for_a_step(engine)
    later = loop.submit(request("later", 3))
    engine.gate.set()
    assert len(wave.result(SECONDS)) == 2 and len(later.result(SECONDS).token_ids) == 3
    assert all("later" not in names or names == {"later"} for names in engine.together)


def test_a_wave_carries_the_errors_of_its_requests_in_their_places(loop):
    results = loop.submit_wave([request("a"), request("bad", prompt=(5,) * 200), request("c")]).result(SECONDS)
    assert isinstance(results[1], ValueError) and "bad" in str(results[1])
    assert [len(results[i].token_ids) for i in (0, 2)] == [6, 6]
    assert [str(e) for e in loop.submit_wave([request("bad", prompt=())]).result(SECONDS)] == [
        "request bad: the prompt is empty"
    ]
    assert loop.submit_wave([]).result(SECONDS) == []


def test_pause_aborts_a_wave_as_a_whole_and_the_next_request_waits(engine, loop):
    wave = loop.submit_wave([request(f"w{i}", 100) for i in range(6)])
    wait_for_a_step(engine)
    paused = loop.pause()
    engine.gate.set()
    results = wave.result(SECONDS)
    assert [done.stop_reason for done in results] == ["aborted"] * 6 and len(paused.result(SECONDS)) == 6
    waiting = loop.submit(request("later"))
    with pytest.raises(FutureTimeout):  # in Python 3.10 not yet the same as TimeoutError
        waiting.result(0.1)
    loop.resume()
    assert waiting.result(SECONDS).stop_reason == "length"


def test_rejecting_pause_answers_everything_that_waits(engine, loop):
    loop.pause().result(SECONDS)
    parked = [loop.submit(request("a")), loop.submit_wave([request("w")]), loop.submit(request("held"))]
    loop.pause(reject=True)
    late = loop.submit(request("late"))
    done, open_ = wait([*parked, late], SECONDS)
    assert not open_
    assert {f.result().stop_reason for f in (parked[0], parked[2], late)} == {"aborted"}
    assert [d.stop_reason for d in parked[1].result()] == ["aborted"]


def test_a_request_whose_logits_are_not_numbers_fails_alone_and_leaves_nothing_behind():
    model = tiny_model("llama")  # its output layer has weights of its own
    loop = EngineLoop(lambda: SlotEngine(model, 4, 128, [EOS]))
    alone = loop.submit(request("alone", 30)).result(SECONDS)
    free = next(token for token in range(8, VOCAB) if token not in alone.token_ids)
    with torch.no_grad():
        model.get_input_embeddings().weight[free] = torch.nan  # in the keys and values of a prompt with this token
    loop.pause().result(SECONDS)
    bad = [loop.submit(request(f"bad{i}", 30, prompt=(5, 6, free, 7, 8))) for i in range(2)]
    others = [loop.submit(request("alone", 30)) for _ in range(2)]
    loop.resume()
    for i in range(2):
        with pytest.raises(FloatingPointError, match=f"request bad{i}: the model's logits are nan"):
            bad[i].result(SECONDS)
    others += [loop.submit(request("alone", 30)) for _ in range(4)]  # in the slots that held nan, too
    for other in others:
        done = other.result(SECONDS)
        assert done.token_ids == alone.token_ids and done.log_probs == pytest.approx(alone.log_probs, abs=1e-5)
    loop.close()


def test_the_same_object_cannot_run_twice_at_a_time(engine, loop):
    twice = request("twice")
    engine.gate.clear()
    first, second = loop.submit(twice), loop.submit(twice)
    engine.gate.set()
    assert len(first.result(SECONDS).token_ids) == 6
    with pytest.raises(ValueError, match="request twice: this object is running already"):
        second.result(SECONDS)
    assert len(loop.submit(twice).result(SECONDS).token_ids) == 6


def test_an_error_in_a_step_fails_those_in_flight_only(engine, loop):
    first = [loop.submit(request(f"a{i}", 50)) for i in range(6)]
    wait_for_a_step(engine)
    engine.fault = RuntimeError("out of memory")
    engine.gate.set()
    failed = [f for f in first if f.exception(SECONDS)]
    assert 1 <= len(failed) <= 4 and all(str(f.exception()) == "out of memory" for f in failed)
    assert all(len(f.result(SECONDS).token_ids) == 50 for f in first if f not in failed)
    assert loop.submit(request("after")).result(SECONDS).stop_reason == "length"


def test_an_error_in_a_command_stays_there(loop):
    with pytest.raises(KeyError):
        loop.call(lambda engine: {}["x"]).result(SECONDS)
    assert loop.submit(request("a")).result(SECONDS)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_dead_loop_is_never_a_hang(engine, loop):
    engine.gate.clear()
    futures = [loop.submit(request("a")), loop.submit_wave([request("w")]), loop.submit(request("held"))]
    engine.fault = SystemExit("killed")
    engine.gate.set()
    for future in futures:
        assert "the decode loop has ended: SystemExit: killed" in str(future.exception(SECONDS))
    assert "killed" in str(loop.submit(request("late")).exception(SECONDS))
    assert "killed" in str(loop.call(lambda engine: 1).exception(SECONDS))


def test_a_request_held_back_by_a_wave_can_be_aborted(engine, loop):
    engine.gate.clear()
    wave = loop.submit_wave([request("w", 100)])
    held, other = loop.submit(request("held")), loop.submit(request("other"))
    aborting = loop.abort(lambda candidate: candidate.request_id == "held")
    engine.gate.set()
    assert [done.stop_reason for done in aborting.result(SECONDS)] == ["aborted"]
    assert held.result(SECONDS).stop_reason == "aborted" and not held.result().token_ids
    assert wave.result(SECONDS)[0].stop_reason == other.result(SECONDS).stop_reason == "length"


def test_the_engine_is_made_in_the_thread_that_runs_it():
    """libgomp counts the threads that another one has started, and lets all sleep whenever they wait."""
    made_in = []
    loop = EngineLoop(lambda: (made_in.append(threading.current_thread()), Engine())[1])
    assert made_in == [loop._thread] and loop.submit(request("one")).result(SECONDS).stop_reason == "length"
    loop.close()


def test_an_engine_that_cannot_be_made_says_why():
    with pytest.raises(ZeroDivisionError):
        EngineLoop(lambda: 1 // 0)
