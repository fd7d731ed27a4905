"""`trainer.v1.trainer_mode`: which there are, what follows from it, and what does not go with it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig, OmegaConf, open_dict

if TYPE_CHECKING:
    from verl_ext.trainer.config import MasConfig

SYNC, COLOCATE, SEPARATE = TRAINERS = ("mas_sync", "mas_colocate_async", "mas_separate_async")
OBJECT_STORE, OBJECT_STORE_MODULE = "object_store", "verl_ext.engine.object_store"
# verl's settings in (the other modes, mas_separate_async) where nobody gives them: `${verl_ext.mode:…}` in configs.
DEFAULTS: dict[str, tuple[Any, Any]] = {
    # Rollout replicas on the training ranks, too.
    "hybrid_engine": (True, False),
    # Machines of the rollouts' own pool.
    "nnodes": (0, 1),
    # Parts of a training step.
    "parameter_sync_step": (4, 1),
    # The module that registers the backend `object_store`.
    "custom_backend_module": (None, OBJECT_STORE_MODULE),
}
ROLLOUT, OWN, SAMPLER = "actor_rollout_ref.rollout", "trainer.v1.separate_async", "trainer.v1.sampler"
CORRECTION = "algorithm.rollout_correction"
# Whose product is the number of ranks of a rollout engine.
SIZES = ("tensor_model_parallel_size", "data_parallel_size", "pipeline_model_parallel_size")
ENGINE = f"rollout.{' × '.join(SIZES)}"
# Whose product is the number of ranks of the rollouts' own pool.
POOL = ("nnodes", "n_gpus_per_node")


def mode_of(config: DictConfig) -> str:
    """The mode of a run."""
    return str(OmegaConf.select(config, "trainer.v1.trainer_mode", default=SYNC))


def setting(name: str, root: DictConfig) -> Any:
    """The value of `${verl_ext.mode:name}`: one of DEFAULTS, `backend` of the weights, `pool` (`rollout_ranks`)."""
    separate = mode_of(root) == SEPARATE
    if name == "pool":
        return rollout_ranks(root)
    if name == "backend":
        return (OBJECT_STORE if OmegaConf.select(root, "trainer.device") == "cpu" else "nccl") if separate else "naive"
    return DEFAULTS[name][separate]


def rollout_ranks(config: DictConfig) -> int:
    """GPUs, or CPU ranks, of the rollouts' own pool; 0 where they are on those of the trainer."""
    return sum(ranks for ranks, _ in engines(config).values()) if mode_of(config) == SEPARATE else 0


def engines(config: DictConfig) -> dict[str, tuple[int, int]]:
    """By policy ("": the only one of a run without `mas.policies`): ranks of all its rollout engines, and of each."""
    rollout, trainer = OmegaConf.select(config, ROLLOUT), OmegaConf.select(config, "trainer")
    policies = {name: one for name, one in (OmegaConf.select(config, "mas.policies") or {}).items() if one}
    found = {}
    for name, section in (policies or {"": {}}).items():
        own = section.get("rollout") or {}
        pool = [own.get(key, rollout[key]) if mode_of(config) == SEPARATE else trainer[key] for key in POOL]
        sizes = [own.get(key) or rollout.get(key) or 1 for key in SIZES]
        found[str(name)] = math.prod(map(int, pool)), math.prod(map(int, sizes))
    return found


def logical_cpus(config: DictConfig) -> dict[str, int]:
    """The logical CPUs of Ray that the rollouts' own pool takes."""
    return {"rollouts' ranks (2 each)": 2 * rollout_ranks(config)} if rollout_ranks(config) else {}


def and_pool(config: DictConfig) -> str:
    """The rollouts' own GPUs, in words that follow on those of the trainer."""
    return f" and {rollout_ranks(config)} GPUs of the rollouts' own" if rollout_ranks(config) else ""


def parts_of_step(config: DictConfig) -> int:
    """Parts in which a step's questions are sampled and trained on, one after another."""
    return int(OmegaConf.select(config, f"{OWN}.parameter_sync_step")) if mode_of(config) == SEPARATE else 1


def described(config: DictConfig) -> str:
    """How far the rollouts of `mas_separate_async` are ahead, and what is done about it, in words."""
    own, sampler = OmegaConf.select(config, OWN), OmegaConf.select(config, SAMPLER)
    questions, bound = int(own.num_warmup_batches * config.data.train_batch_size), sampler.max_off_policy_threshold
    late = "waited for" if sampler.max_off_policy_strategy == "wait" else "sampled anew"
    limit = "of any age" if bound is None else f"begun at most {bound - 1} updates before (others are {late})"
    correction = OmegaConf.select(config, CORRECTION)
    kind, most = correction.rollout_is, correction.rollout_is_threshold
    weights = f"importance weights per {kind}, at most {most}" if kind else "no importance weights"
    return f"{questions} questions ahead; rows are {limit}; {weights}"


def facts(config: DictConfig) -> list[tuple[str, str]]:
    """What `verl_ext check` says of the mode: name and words."""
    ahead = [("asynchronous", described(config))] if mode_of(config) == SEPARATE else []
    return ahead + ([("oversampling", words)] if (words := oversampled(config)) else [])


def refusals(mas: MasConfig, config: DictConfig) -> dict[str, bool]:
    """What does not go with the mode: reason and remedy -> whether it is so."""

    def verl(key: str) -> Any:
        return OmegaConf.select(config, key)

    mode = mode_of(config)
    found = {
        f"trainer.v1.trainer_mode={mode} is a trainer of verl that knows nothing of agents: it would leave out groups "
        f"and weights of rows. Allowed: {', '.join(TRAINERS)}": mode not in TRAINERS,
        f"mas.deterministic=true needs trainer.v1.trainer_mode={SYNC}: under {mode} it depends on timing which "
        "trajectories are unfinished when the weights change": mas.deterministic and mode in (COLOCATE, SEPARATE),
    }
    if mas.sampling.oversample > 1:
        found |= _refusals_of_oversampling(mas, config, mode)
    if mode != SEPARATE:
        return found
    ahead, bound, parts = (
        verl(f"{OWN}.num_warmup_batches"),
        verl(f"{SAMPLER}.max_off_policy_threshold"),
        verl(f"{OWN}.parameter_sync_step"),
    )
    backend, engine, questions = (
        verl(f"{ROLLOUT}.checkpoint_engine.backend"),
        verl(f"{ROLLOUT}.name"),
        verl("data.train_batch_size"),
    )
    pool = {key: verl(f"{ROLLOUT}.{key}") for key in POOL}
    weighed, bypass = verl(f"{CORRECTION}.rollout_is"), verl(f"{CORRECTION}.bypass_mode")
    bounded, what = isinstance(bound, int) and bound >= 1, f"trainer.v1.trainer_mode={SEPARATE}"
    for name, (ranks, world) in engines(config).items():
        own, section = (f"mas.policies.{name}.rollout", mas.policies[name].rollout) if name else (ROLLOUT, {})
        given = ", ".join(f"{own}.{key}={section.get(key, number)}" for key, number in pool.items())
        found |= {
            f"{what} needs machines for the rollouts{name and f' of {name}'} (given: {given}). Remedy: {own}.nnodes=1 "
            f"{own}.n_gpus_per_node=1, or more": ranks < 1,
            f"the rollouts' pool of {ranks} ranks ({own}.nnodes × n_gpus_per_node) cannot be shared out to engines of "
            f"{world} ({ENGINE}): it must divide": ranks % world > 0,
        }
    return found | {
        f"{what} does not go with {ROLLOUT}.checkpoint_engine.backend={backend}, which hands weights over within a "
        f"process. Remedy: {ROLLOUT}.checkpoint_engine.backend={OBJECT_STORE} (Ray's object store), or on GPUs nccl": (
            backend == "naive"
        ),
        f"{what} does not go with actor_rollout_ref.hybrid_engine=true where {ROLLOUT}.name=hf: the engine would be "
        "on the trainer's ranks as well, whose cores training needs. Remedy: actor_rollout_ref.hybrid_engine=false": (
            bool(verl("actor_rollout_ref.hybrid_engine")) and engine == "hf"
        ),
        f"{OWN}.parameter_sync_step={parts} must divide data.train_batch_size={questions}: it is the number of parts "
        f"in which a step's questions train. Remedy: {OWN}.parameter_sync_step=1": parts < 1 or questions % parts > 0,
        f"{SAMPLER}.max_off_policy_threshold={bound} must be a whole number of at least 1, or null for no bound. With "
        "K no row trains that was begun more than K − 1 updates before": bound is not None and not bounded,
        f"{OWN}.num_warmup_batches={ahead}: each question would wait for {ahead} updates before it trains, and "
        f"{SAMPLER}.max_off_policy_threshold={bound} lets it wait for {bounded and bound - 1} at most. Remedy: "
        f"{OWN}.num_warmup_batches={bounded and bound - 1} or less, or {SAMPLER}.max_off_policy_threshold="
        f"{math.ceil(ahead) + 1} or more": bounded and ahead > bound - 1,
        f"{CORRECTION}.rollout_is={weighed} has no effect with {CORRECTION}.bypass_mode=true: the engine's "
        f"log-probabilities are then those that PPO's ratio is taken against. Remedy: {CORRECTION}.bypass_mode=false": (
            bool(weighed) and bool(bypass)
        ),
    }


def refused_split(config: DictConfig) -> str:
    """Why the run would be refused under `mas_separate_async`, whatever ranks the rollouts get; "": it would not."""
    from verl_ext.trainer.config import read_mas_config  # which imports this module

    changed = config.copy()
    with open_dict(changed):
        changed.trainer.v1.trainer_mode = SEPARATE
        for name, (_, world) in engines(config).items():
            own = f"mas.policies.{name}.rollout" if name else ROLLOUT
            for key, number in zip(POOL, (1, world), strict=True):
                OmegaConf.update(changed, f"{own}.{key}", number, force_add=True)
    try:
        read_mas_config(changed)
    except ValueError as error:
        return str(error)
    return ""


def _refusals_of_oversampling(mas: MasConfig, config: DictConfig, mode: str) -> dict[str, bool]:
    what, remedy = f"mas.sampling.oversample={mas.sampling.oversample:g}", "Remedy: mas.sampling.oversample=1"
    batch, filtered, refilled = (
        OmegaConf.select(config, key)
        for key in ("data.gen_batch_size", "algorithm.filter_groups.enable", f"{SAMPLER}.sync_refill_failed_groups")
    )
    return {
        f"{what} needs trainer.v1.trainer_mode={SYNC}: under {mode} trajectories go on while the weights change, so "
        f"none holds up a step. {remedy}": mode in (COLOCATE, SEPARATE),
        f"{what} does not go with mas.deterministic=true: the clock decides which questions end first, and so which "
        f"train. {remedy}": mas.deterministic,
        f"{what} does not go with data.gen_batch_size={batch}: questions are taken from the data set one by one. "
        "Remedy: leave data.gen_batch_size out": batch not in (None, 1),
        f"{what} does not go with verl's own refilling of a batch (algorithm.filter_groups.enable={filtered}, "
        f"{SAMPLER}.sync_refill_failed_groups={refilled}). {remedy}, or switch both off": bool(filtered or refilled),
    }


def oversampled(config: DictConfig) -> str:
    """What `mas.sampling.oversample` does in this run, in words; "" where it is off."""
    sampling, questions = config.mas.sampling, int(config.data.train_batch_size)
    if (begun := begun_in_a_step(questions, sampling.get("oversample", 1.0))) == questions:
        return ""
    most = sampling.get("max_cuts", 3)
    limit = "" if most is None else f", at most {most} times each"
    return (
        f"a step begins {begun} questions and trains on the {questions} that end first; the others are cut{limit}, and "
        "begin again in the next step; the last step of an epoch waits for all"
    )


def begun_in_a_step(questions: int, factor: float) -> int:
    """How many questions a step begins that trains on `questions`."""
    return max(questions, math.ceil(questions * factor - 1e-9))
