"""What `verl_ext check` says of several policies (`mas.policies`)."""

from __future__ import annotations

import pytest

from tests.trainer.test_recipes import composed, examined
from verl_ext.trainer.config import context_length
from verl_ext.trainer.policies.settings import read_policies

SMALL = "+mas.policies.small={agents: [rewriter, reranker], rollout: {gpu_memory_utilization: 0.3}}"
LARGE = "+mas.policies.large={agents: [answerer], rollout: {gpu_memory_utilization: 0.4}}"
TWO = ("+recipe=mhgpo", "mas.sampling.strategy=fof", SMALL, LARGE)
TINY = (
    "+recipe=mhgpo_tiny",
    "+mas.policies.small={agents: [rewriter, reranker]}",
    "+mas.policies.large={agents: [answerer]}",
)


def test_a_model_that_is_not_known_leaves_the_estimate_of_the_others():
    known = "+mas.policies.large.model.path=Qwen/Qwen2.5-0.5B-Instruct"
    report = examined(*TWO, known, "+mas.policies.small.model.path=nobody/nothing", gpu_memory=8)
    facts = dict(report.facts)
    assert facts["model large"].startswith("Qwen/Qwen2.5-0.5B-Instruct: 0.494 G parameters")
    assert facts["memory"].startswith("not estimated for small, and what follows is without it: nobody/nothing is neit")
    alone = dict(examined(*TWO, known, gpu_memory=8).facts)["memory, training"]
    assert "memory, training" in facts and facts["memory, training"] != alone, "of both, where both are known"
    assert any(item.startswith("memory: about ") for item in report.missing), "what is known is too much for 8 GiB"


def test_token_limits_steps_and_padding_are_those_of_each_policy():
    limit, mini = "actor.ppo_max_token_len_per_gpu", "actor.ppo_mini_batch_size"
    own = examined(*TINY, f"+mas.policies.large.{limit}=100", f"+mas.policies.large.{mini}=8")
    (problem,) = own.problems
    assert problem.startswith(f"mas.policies.large.{limit}=100: less than a row may have"), (
        "the other one has the run's"
    )
    facts = dict(own.facts)
    assert "for small, 100 tokens for large" in facts["tokens"]
    assert "questions and 1 optimiser step of small, 4 optimiser steps of large each" in facts["steps"]
    frozen = examined(*TINY, f"+mas.policies.large.{limit}=100", "+mas.policies.large.frozen=true")
    assert not frozen.problems and "100 tokens" not in dict(frozen.facts)["tokens"], "it answers alone"

    padding = "model.use_remove_padding"
    report = examined(*TWO, f"actor_rollout_ref.{padding}=true", f"+mas.policies.large.{padding}=false")
    (note,) = [note for note in report.notes if "not packed" in note]
    assert note.startswith("rows of large are") and f"(mas.policies.large.{padding}=false;" in note
    swapped = f"actor_rollout_ref.{padding}=false", f"+mas.policies.small.{padding}=true"
    both = examined(*TWO, *swapped, f"+mas.policies.large.{padding}=true")
    assert not [note for note in both.notes if "not packed" in note]


def test_a_policy_that_never_trains():
    """Its agents are told not to, or the run ends before its first step."""
    resting = examined(*TINY, "+mas.agents.answerer.trained=false")
    assert resting.problems == [] and "time of a step" in dict(resting.facts)
    (note,) = examined(*TINY, "+mas.policies.large.from_step=41").notes
    assert note == "policy large trains in none of the 40 steps: mas.policies.large.from_step=41"
    assert examined(*TINY, "+mas.policies.large.from_step=40").notes == []


def test_verls_checks_see_each_policy():
    report = examined(*TINY, "+mas.policies.large.actor.ppo_mini_batch_size=64")
    assert any(problem.startswith("mas.policies.large: data.train_batch_size=") for problem in report.problems)
    alone = examined(*TINY, "+mas.policies.large.actor.optim.lr_scheduler_type=linear")
    (problem,) = alone.problems
    assert problem.startswith("mas.policies.large: ") and "actor_rollout_ref.actor.optim" in problem


def test_the_remedy_for_frozen_policies_works():
    both = [f"+mas.policies.{name}.frozen=true" for name in ("small", "large")]
    (problem,) = examined(*TINY, *both).problems
    assert problem == (
        "no agent of this system trains. Remedy: mas.policies.<name>.frozen=false for one of small, large, which are "
        "frozen"
    )
    assert not examined(*TINY, *both, "mas.policies.small.frozen=false").problems
    (refused,) = examined(*TINY, *both, "++mas.agents.answerer.trained=true").problems
    assert refused.endswith("its policy is frozen. Remedy: mas.policies.large.frozen=false")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            "lr=1e-3",
            "mas.policies.large: lr stands in another section; did you mean actor.optim.lr or critic.optim.lr?",
        ),
        ("optim.lr=1e-3", "mas.policies.large: optim stands in another section; did you mean actor.optim or critic.o"),
        ("path=/models/large", "mas.policies.large: path stands in another section; did you mean model.path?"),
        (
            "actor.lr=1e-3",
            "mas.policies.large: actor.lr cannot differ between policies; did you mean 'actor.optim.lr'?",
        ),
        ("agens=[a]", "unknown key mas.policies.large.agens; did you mean 'agents'?"),
    ],
)
def test_a_setting_in_the_wrong_section_is_named_with_its_place(override, message):
    with pytest.raises(ValueError) as error:
        read_policies(composed(*TINY, f"+mas.policies.large.{override}"))
    assert str(error.value).startswith(message)


def test_the_remedy_for_engines_that_take_too_much_has_numbers():
    default = [one.partition(", rollout")[0] + "}" for one in (SMALL, LARGE)]
    run = ("+recipe=mhgpo", "mas.sampling.strategy=fof")
    (problem,) = examined(*run, *default).problems
    remedy = [f"mas.policies.{name}.rollout.gpu_memory_utilization=0.45" for name in ("small", "large")]
    assert "1.20 of a GPU's memory" in problem and problem.endswith(f"at most 0.9. Remedy: {', '.join(remedy)}")
    assert not examined(*run, *default, *(f"+{one}" for one in remedy)).problems


def test_a_helper_is_given_as_much_as_the_longest_engine_takes():
    """Which refuses what is too long for it itself (`context_length` bounds the calls that do not train)."""
    length = "rollout.engine_kwargs.vllm.max_model_len"
    given = [*TWO, "actor_rollout_ref.rollout.max_model_len=5000"]
    assert context_length(composed(*given)) == 5000
    assert context_length(composed(*given, f"+mas.policies.large.{length}=9000")) == 9000
    assert context_length(composed(*given, f"+mas.policies.large.{length}=4500")) == 5000
