"""The load model against numbers computed by hand, its fit against coefficients that are known, and the command."""

from __future__ import annotations

import json
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from tests.bench import cpu_seconds
from tests.observe.viewing import call, question, trajectory
from verl_ext.observe.trajectory_files import FOLDER, TrajectoryLog, read_records
from verl_ext.plan.__main__ import main
from verl_ext.plan.fit import fit, leave_one_out, predict, terms_of
from verl_ext.plan.formulas import PHASES, Load, Sizes, communication, rollout, seconds, training
from verl_ext.plan.hardware import DEVICES, Device, measured_cpu
from verl_ext.plan.policies import part_of
from verl_ext.plan.scale import ASSUMED, Job, colocated, separate, split
from verl_ext.plan.steps import best_split
from verl_ext.plan.steps import seconds as seconds_of
from verl_ext.plan.workload import Point, distinct, expected_load, read_calls, read_point, read_points, write_points
from verl_ext.plan.workload import _longest as longest_chain
from verl_ext.sampling import make_strategy
from verl_ext.trainer.preflight.gpu_memory import GIB, Engine, Memory

SIZES = Sizes(body=1000, head=200, layers=2, width=10, weight_bytes=2400, kv_bytes=8)
DEVICE = Device("test", flops=1e6, bandwidth=1e4, memory=80 * GIB, link=1000, network=100, node=8, source="")
LOAD = Load(4, 48, 36, 48, 36, prompt=100, output=10, longest=30, tool_turns=1, tool_seconds=2)
TINY = Path(__file__).parents[2] / "recipe" / "mhgpo" / "assets" / "tiny_model"


def test_a_rollout_by_hand():
    # Two engines of 8 slots: 480 / 2 tokens, 30 steps, each reads 2400 bytes; a token reads 105 tokens of 8 bytes.
    terms = rollout(LOAD, SIZES, DEVICE, engines=2, slots=8, workers=4)
    assert terms["decode_steps"] == 30 and terms["calls"] == 12 and terms["tools"] == 2
    assert terms["decode"] == pytest.approx((30 * 2400 + 240 * 105 * 8) / 1e4)
    # 18 prompts of 100 tokens; a token costs 2 · 1200 + 2 · 2 layers · 10 · 100 operations.
    assert terms["prefill"] == pytest.approx(18 * 100 * 6400 / 1e6)
    assert rollout(LOAD, SIZES, DEVICE, engines=2, slots=4)["decode_steps"] == 60
    many = rollout(LOAD, SIZES, DEVICE, engines=480)  # a token each: the longest chain still takes 30 steps
    assert many["decode"] == pytest.approx((30 * 2400 + 105 * 8) / 1e4)
    fast = rollout(LOAD, SIZES, replace(DEVICE, bandwidth=1e9), engines=2, slots=8)  # bound by operations
    assert fast["decode"] == pytest.approx(240 * (2400 + 40 * 210) / 1e6)


def test_training_and_its_traffic_by_hand():
    # 5 devices: two of 9 rows wait for three of 10. A token costs 2 · 1200 + 40 · 110 operations.
    terms = training(LOAD, SIZES, DEVICE, devices=5, passes=4)
    assert terms["forward"] == pytest.approx(50 / 48 * 48 * 110 * 6800 / 5e6)
    assert terms["update"] == pytest.approx(4 * terms["forward"]) and terms["update_rows"] == 48 / 5
    assert training(LOAD, SIZES, DEVICE, shared=True)["forward"] == pytest.approx((36 * 100 + 480) * 6800 / 1e6)
    # 16 devices on 2 machines: 330 tokens each are 4 micro-batches; 8 ports of 100 are slower than a link of 1000.
    gather, update = communication(LOAD, SIZES, DEVICE, devices=16, micro_tokens=100)
    assert gather == pytest.approx(4 * 2 * 1200 * 15 / 16 / 800) and update == 4 * gather
    assert communication(LOAD, SIZES, DEVICE, 1, 100) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("name", "calls", "prompts", "rows", "trained"),
    [("is", 27, 18, 12, 3), ("fof", 12, 9, 12, 9), ("rr", 9, 6, 9, 6), ("nmc", 21, 12, 12, 3)],
)
def test_calls_and_prompts_of_the_strategies(name, calls, prompts, rows, trained):
    """Three agents, G = 4: a fork has one prompt for 4 samples; is and nmc fork at each agent and keep only those."""
    load = expected_load(name, make_strategy(name, 4, ["a", "b", "c"]), 10, 1, 1, 1)
    found = [load.calls, load.distinct, load.rows, load.distinct_rows]
    assert found == pytest.approx([10 * number for number in (calls, prompts, rows, trained)])
    assert distinct(name, 12 * 10, 10, 3, 1) == 120  # G = 1: no forks


def points(known: dict[str, float]) -> list[Point]:
    """Runs that the model explains exactly."""
    found = []
    for number in range(1, 9):
        calls, rows = 50 * number, 10 + 7 * (number * 5 % 8)
        load = Load(
            4, calls, calls - 3 * number**2 % 40, rows, rows, 90 + 13 * (number % 3), 5 + number % 4, 20 + number
        )
        sizes = replace(SIZES, body=1000 * (1 + number % 3), weight_bytes=2400 * (1 + number % 3))
        point = Point(f"run{number}", load, sizes, DEVICE, {}, shared=False)
        values = {phase: seconds(phase, terms_of(point), known) for phase in PHASES if phase != "old_log_prob"}
        found.append(replace(point, seconds=values | {"step": sum(values.values())}))
    return found


def test_the_fit_finds_what_made_the_runs_and_never_a_negative_coefficient(tmp_path):
    known = {name: 0.5 + 0.25 * number for number, name in enumerate(ASSUMED)} | {"tools": 1.0}
    made = points(known)
    assert fit(made) == pytest.approx(known, rel=1e-4)
    for point, found in zip(made, leave_one_out(made), strict=True):
        assert found == pytest.approx(point.seconds, rel=1e-4)
    write_points(tmp_path / "points.jsonl", made)
    assert read_points(tmp_path / "points.jsonl") == made
    write_points(tmp_path / "points.jsonl", [replace(made[0], seconds={"gen": 1.0})])
    with pytest.raises(ValueError, match="line 1: seconds has no step above 0"):
        read_points(tmp_path / "points.jsonl")
    cheaper = [replace(one, seconds=one.seconds | {"rest": 5 - one.load.rows / 100}) for one in made]
    assert fit(cheaper)["rows"] == 0 and fit(cheaper)["once"] > 4  # fewer rows, longer rest: not "-0.01 s a row"
    assert predict(made[0], known)["step"] == pytest.approx(made[0].seconds["step"])


ROOM = Memory({"all": GIB}, resident=0, sync=0, engines=(Engine(GIB, 1e6, 0.6),))


def job(**changes: float) -> Job:
    def memory(devices: int) -> Memory:
        return replace(ROOM, parts={"all": 400 * GIB / devices})

    base = Job(LOAD, SIZES, DEVICE, ASSUMED, memory, ("ref", "update_actor"))
    return replace(base, **changes)


def test_a_split_is_worth_it_where_sampling_waits_and_says_what_it_waits_for():
    waiting = job(load=replace(LOAD, tool_seconds=100))
    shared, split = colocated(waiting, 8), separate(waiting, 8)
    assert shared.seconds == pytest.approx(sum(shared.phase(name) for name in shared.parts))
    assert split.trainers in range(5, 8)  # 400 GiB do not fit into fewer than 5 GPUs of 80
    assert split.seconds < shared.seconds and split.limit()[0] == shared.limit()[0] == "tools"
    terms = shared.critical()
    assert sum(terms.values()) == pytest.approx(shared.seconds) and terms["tools"] == 100
    assert sum(split.critical().values()) == pytest.approx(split.seconds)
    assert colocated(job(), 4).problem == "needs 100 GiB of 80" and separate(job(), 4) is None
    assert colocated(job(tensor=8), 8).problem == ""
    assert colocated(job(tensor=8), 6).problem == "an engine needs 8 devices"
    fast = job(device=replace(DEVICE, bandwidth=1e9, flops=1e12), load=replace(LOAD, tool_seconds=0))
    assert (
        colocated(fast, 512).limit()[0] == "traffic" and colocated(fast, 8).seconds < colocated(fast, 512).seconds + 9
    )
    assert "chain" in colocated(job(), 512).parts["gen"] and "decode" in colocated(job(max_seqs=1), 8).parts["gen"]


def test_a_step_of_two_policies_by_hand():
    """One trains a and b, or a alone; the other, frozen, answers as c."""
    calls = {"a": (10, 100, 8), "b": (10, 40, 2), "c": (20, 70, 5)}
    load = Load(4, 48, 36, 24, 18, prompt=70, output=5, longest=30, tool_turns=1, tool_seconds=2)
    found = part_of(load, calls, own="ab", trained="ac")
    assert found == Load(4, 24, 18, 8, 6, prompt=70, output=5, longest=15, tool_turns=0.5, tool_seconds=2)
    assert part_of(load, calls, own="ab", trained="ac", node_wise=True).rows == 12
    frozen = part_of(load, calls, own="c", trained="ab")
    assert frozen == replace(found, rows=0, distinct_rows=0)
    assert expected_load("fof", make_strategy("fof", 4, ["a", "b"]), 10, 1, 1, 1, length=3).rows == 80  # of 120 calls

    small = job(load=found, coefficients=dict.fromkeys(ASSUMED, 1.0), memory=lambda devices: ROOM)
    large = replace(small, load=frozen, phases=())
    # Sampling: 18 prompts; 15 steps that read all weights, 120 tokens that read 72.5; 24 calls by 8 processes; a tool.
    gen = 18 * 70 * (2400 + 40 * 70) / 1e6 + (15 * 2400 + 120 * 72.5 * 8) / 1e4 + 15 + 24 / 8 + 1
    forward = 8 * 75 * (2400 + 40 * 75) / 1e6
    trained = (forward + 8 + 1) + (3 * forward + 8 + 1) + (8 + 1)  # reference, update, rest
    steps = {"small": colocated(small, 1), "large": colocated(large, 1)}
    assert steps["large"].seconds == pytest.approx(gen + 2400 / 1000 + 1)
    assert seconds_of(steps) == pytest.approx(2 * gen + trained + 2 * (2400 / 1000 + 1))
    # Beside the training: the longest chain goes through both. Frozen weights are not sent.
    apart = {"small": split(small, 1, 1), "large": split(large, 1, 1)}
    chain = 2 * ((15 * 2400 + 120 * 72.5 * 8) / 1e4 + 15 + 1)
    assert chain > gen and seconds_of(apart) == pytest.approx(max(chain, trained) + 2 * 2400 / 1000 + 1)


def test_the_best_split_of_several_policies_is_that_of_all_splits():
    """Of 8 devices, tried one by one; over several machines, parts of one are such that they fill it."""
    small = job(load=replace(LOAD, tool_seconds=0, calls=400, distinct=300), memory=lambda devices: ROOM)
    large = replace(small, load=replace(small.load, rows=400), tensor=2)
    jobs = {"small": small, "large": large}
    every = [
        {"small": split(small, t, s), "large": split(large, t, n)}
        for t in range(1, 8)
        for s in range(1, 8 - t)
        for n in range(2, 9 - t - s, 2)
    ]
    found = best_split(jobs, 8)
    assert seconds_of(found) == pytest.approx(min(map(seconds_of, every)))
    assert best_split(jobs, 3) is None, "1 + 1 + 2 are needed"
    pools = [step.devices - step.trainers for step in best_split(jobs, 32).values()]
    assert best_split(jobs, 32)["small"].trainers % 8 == 0 and all(n in (1, 2, 4) or n % 8 == 0 for n in pools)
    full = replace(ROOM, parts={"all": 60 * GIB}, resident=50 * GIB)  # each fits alone, not both
    assert best_split({name: replace(one, memory=lambda devices: full) for name, one in jobs.items()}, 8) is None


def test_runs_of_several_policies_are_not_fitted_as_one_model(tmp_path, capsys):
    models = {"mas.policies.small.agents": ["a"], "mas.policies.large.agents": ["b"], "mas.policies.gone": None}
    settings = {"actor_rollout_ref.model.path": str(TINY), **models}
    (tmp_path / "settings.json").write_text(json.dumps(settings))
    assert main(["--fit", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert f"{tmp_path} is a run of several policies (mas.policies: small, large), and --fit needs" in said
    assert "Remedy: a run of each model without mas.policies" in said


def test_a_run_is_measured_without_its_first_step(tmp_path):
    with pytest.raises(ValueError, match="metrics.jsonl is not there"):
        read_point(tmp_path, DEVICE)
    phases = {"gen": 4.0, "ref": 1.0, "update_actor": 2.0, "update_weights": 0.5, "step": 9.0}
    counted = {"sampling/questions": 8, "sampling/agent_calls": 96, "sampling/prompt_tokens": 9600, "update/rows": 96}
    counted |= {"sampling/generated_tokens": 480, "num_turns/max": 3, "response_length/max": 24}
    counted |= {"agents/a/calls": 96, "agents/a/prompt_tokens": 100, "agents/a/output_tokens": 5}
    lines = []
    for step, slower in ((1, 10.0), (2, 1.0), (3, 1.0)):
        timing = {f"timing_s/{name}": 7 * slower for name in phases}
        timing |= {f"timing_s/{name}_cpu": slower * value for name, value in phases.items()}
        lines.append(json.dumps({"step": step, "metrics": counted | timing}))
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines[:1]) + "\n")
    with pytest.raises(ValueError, match="1 steps of training; 2 are needed"):
        read_point(tmp_path, DEVICE)
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    settings = {"mas.sampling.strategy": "fof", "mas.sampling.group_size": 4, "actor_rollout_ref.rollout.name": "hf"}
    settings |= {"actor_rollout_ref.model.path": str(TINY), "actor_rollout_ref.rollout.dtype": "float32"}
    (tmp_path / "settings.json").write_text(json.dumps(settings))
    point = read_point(tmp_path, DEVICE)
    assert point.cpu and point.shared and point.seconds == phases | {"rest": 1.5}
    assert (point.load.prompt, point.load.output, point.load.longest, point.load.distinct) == (100, 5, 72, 96 - 8 * 3)
    assert read_calls(tmp_path, ["a"]) == {"a": (96, 100, 5)}
    assert point.sizes.head == 871 * 128 and point.sizes.body == 4 * (4 * 128**2 + 3 * 128 * 256)
    only = {"mas.policies.all.model.path": str(TINY), "actor_rollout_ref.model.path": "nowhere/else"}
    (tmp_path / "settings.json").write_text(json.dumps(settings | only))
    assert read_point(tmp_path, DEVICE) == point, "the only policy has a model of its own"


def test_the_longest_chain_counts_a_record_that_was_split(tmp_path):
    calls = [call("ab"[n % 2], f"{n // 2}", trajectories=[n // 2], generated_tokens=10 + n) for n in range(4)]
    TrajectoryLog(tmp_path / FOLDER, 2000, 9).write(question(2, calls, [trajectory(), trajectory()]))
    assert len(list(read_records(tmp_path))) == 5, "a part without calls, and one for each call"
    assert longest_chain(tmp_path) == 12 + 13


def test_this_cpu_is_measured_and_the_table_is_in_order():
    cpu = measured_cpu(size=256, numbers=2**20, repeats=1)
    assert cpu.flops > 1e8 and cpu.bandwidth > 1e7 and cpu.memory > GIB
    assert all(device.flops / device.bandwidth > 100 and device.source for device in DEVICES.values())


def test_cpu_seconds_stand_beside_wall_seconds(monkeypatch):
    readings, timing = iter([1.0, 3.5, 4.0, 4.5]), dict[str, float]()

    @contextmanager
    def stock(name, raw):
        yield
        raw[name] = raw.get(name, 0) + 9

    monkeypatch.setattr(cpu_seconds, "spent", lambda: next(readings))
    for _ in range(2):  # a phase that a step has twice adds up, as verl's own does
        with cpu_seconds.counting(stock)("gen", timing):
            pass
    assert timing == {"gen": 18, "gen_cpu": 3.0}


def test_the_command(capsys):
    tokens = ["--prompt_tokens", "50", "--output_tokens", "5"]
    assert main(["+recipe=mhgpo_tiny", *tokens, "--gpus", "8"]) == 0
    said = capsys.readouterr().out
    # 32 questions; 27 calls of a question under is, 12 under fof
    assert "| is       |   864 |" in said and "| fof      |   384 |" in said and "fof, largest part, " in said
    assert "Nothing was measured on several GPUs" in said and "Next: verl_ext check +recipe=mhgpo_tiny" in said
    two = [
        "+mas.policies.small={agents: [rewriter, reranker]}",
        "+mas.policies.large={agents: [answerer], frozen: true}",
    ]
    assert main(["+recipe=mhgpo_tiny", *two, *tokens, "--gpus", "8"]) == 0
    rows = {row.split("|")[1].strip(): row.split("|")[2:4] for row in capsys.readouterr().out.split("\n") if "|" in row}
    assert [[int(cell) for cell in rows[name]] for name in ("small", "large", "all")] == [
        [256, 256],
        [128, 0],
        [384, 256],
    ]
    assert main(["+recipe=mhgpo_tiny", *two, *tokens, "--gpus", "2", "8", "64"]) == 0
    said = capsys.readouterr().out
    assert "No split: some GPUs train, and each policy has its own for its rollouts: 3 or more." in said
    assert said.count("est split") == 2
    fixed = ["mas.deterministic=true", "mas.sampling.seeded=true"]
    for overrides in (fixed, [*two, *fixed]):
        assert main(["+recipe=mhgpo_tiny", *overrides, *tokens, "--gpus", "8"]) == 0
        said = capsys.readouterr().out
        assert "No split: mas.deterministic=true needs trainer.v1.trainer_mode=mas_sync" in said
        assert "est split" not in said and "a split" not in said
    assert main(["+recipe=mhgpo_tiny", *two, *tokens, "--device", "cpu"]) == 0
    assert "does not fit" not in capsys.readouterr().out, "engines on a CPU have no share of its memory"
    engine = "actor_rollout_ref.rollout"
    wide = [f"{engine}.tensor_model_parallel_size=8", f"{engine}.gpu_memory_utilization=0.3"]
    for numbers in ("8", "4"):
        assert main(["+recipe=mhgpo_tiny", *two, *wide, *tokens, "--gpus", numbers]) == 0
        assert ("It does not fit" in capsys.readouterr().out) == (numbers == "4")
    for wrong in (["--tool_seconds", "nan"], ["--tool_turns", "-1"]):
        with pytest.raises(SystemExit):
            main(["+recipe=mhgpo_tiny", *tokens, *wrong])
        assert "give numbers of at least 0" in capsys.readouterr().err
    for wrong, text in [
        ([], "the tokens of a call are not known. Remedy: --prompt_tokens"),
        ([*tokens, "--coefficient", "updte=2"], "did you mean 'update'?"),
        ([*tokens, "--coefficient", "update=-1"], "give a number of at least 0"),
        (["actor_rollout_ref.model.path=nowhere/model", *tokens], "Remedy: actor_rollout_ref.model.path=FOLDER"),
        (
            [*two, "+mas.policies.large.model.path=nowhere/model", *tokens],
            "nowhere/model is neither here nor in the hub's cache, nor in the table in preflight/gpu_memory.py. "
            "Remedy: mas.policies.large.model.path=FOLDER",
        ),
    ]:
        assert main(["+recipe=mhgpo_tiny", *wrong]) == 2
        assert text in capsys.readouterr().err
