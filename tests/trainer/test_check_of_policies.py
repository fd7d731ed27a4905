"""What `verl_ext check` says of several policies (`mas.policies`)."""

from __future__ import annotations

from tests.trainer.test_recipes import examined

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
