"""Our metrics: name, meaning and computation. A test compares docs/metrics.md with the table."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable
from statistics import fmean
from typing import Any

from verl_ext.mas.types import Status
from verl_ext.observe.decisions import decision_metrics
from verl_ext.observe.question_stats import CallStats, QuestionStats

# Placeholders: <agent> a role's name, <quantity> what an agent's penalty or the workflow's reward reports,
# <status> one of mas.types.Status, <choice> a text that an agent may choose. Validation has the same names
# under `val/`, where they make sense.
METRICS: dict[str, str] = {
    "system/reward": "mean reward of the trajectories that have one (the shared reward, before agent-specific terms)",
    "system/<quantity>": "mean of what the workflow's `reward` reports, e.g. em, f1, acc",
    "system/judge_calls": "mean number of verdicts that a trajectory's reward asked a judge for (`mas.judge`)",
    "system/judge_cached": "of them those that came from the cache, or were being asked for already",
    "system/judge_tokens": "mean tokens, of prompts and outputs, of the others",
    "agents/<agent>/calls": "calls of the agent in the step, shared calls counted once",
    "agents/<agent>/reward": "mean R = R_shared + R_spe of its calls",
    "agents/<agent>/reward_shared": "mean R_shared after backward propagation (Eq. 4)",
    "agents/<agent>/penalty": "mean agent-specific reward: MHGPO's R_spe (<= 0), JoyAgents-R1's R_F (0 or 1)",
    "agents/<agent>/unparsable": "share of its calls whose output broke the agent's format",
    "agents/<agent>/no_tool_call": "share of its calls without the tool call that `tool_choice` asked for (ctx.chat)",
    "agents/<agent>/truncated": "share of its calls that reached max_tokens",
    "agents/<agent>/failed": "share of its calls without usable output (time-out, engine error, prompt too long)",
    "agents/<agent>/output_tokens": "mean number of generated tokens",
    "agents/<agent>/prompt_tokens": "mean number of prompt tokens",
    "agents/<agent>/seconds": "mean seconds of a call, waiting for a slot included, pauses for a weight update not",
    "agents/<agent>/similarity": "mean pairwise F1 between the outputs of a group (Figure 9)",
    "agents/<agent>/<quantity>": "mean of what the agent's penalty reports, e.g. queries, chosen, words",
    "decisions/<agent>/entropy": "mean −log π of its decisions among several choices, in nats: estimates their entropy",
    "decisions/<agent>/options": "mean number of texts that its decisions were among",
    "decisions/<agent>/length": "mean number of its decisions in a trajectory",
    "decisions/<agent>/top_path": "share of the trajectories on the most frequent path; near 1: it has collapsed",
    "decisions/<agent>/paths": "different paths / trajectories",
    "decisions/<agent>/density": "mean density of the folded path: edges / nodes², loops included",
    "decisions/<agent>/cycles": "mean number of elementary cycles of the folded path, at most 1000 each",
    "decisions/<agent>/cycle_length": "mean length of the cycles, over the trajectories that have any",
    "choices/<agent>/<choice>": "share of the choice among all decisions of the agent",
    "head/<agent>/loss": "loss of the policy head: −1/N Σ A_t log π(a_t; S_t), N trajectories, less the entropy bonus",
    "head/<agent>/entropy": "mean entropy of the head's distributions over the options, in nats, before the update",
    "head/<agent>/grad_norm": "norm of the loss's gradient",
    "head/<agent>/return": "mean R_t of the decisions that it learned from",
    "head/<agent>/decisions": "decisions that it learned from",
    "groups/count": "groups of the batch",
    "groups/size": "mean number of members",
    "groups/zero_variance": "share of the groups whose members all have the same reward (no gradient)",
    "groups/single": "share of the groups with one member (no gradient)",
    "groups/dropped_rows": "rows dropped before the update (remainder of the shuffled regrouping)",
    "selection/kept_groups": "groups that train, where the algorithm selects (JoyAgents-R1's top K)",
    "selection/dropped_groups": "groups that were dropped before any forward pass",
    "selection/dropped_rows": "rows of those groups",
    "selection/variance_kept": "share of the groups' summed reward variance that is in the kept ones",
    "memory/memories": "memories of all agents after the step",
    "memory/hit_rate": "share of the agents' parts in trajectories in which anything was recalled",
    "memory/same_rate": "share of the agents' parts in which a memory of the same query, word by word, was recalled",
    "memory/recalled": "distinct memories recalled",
    "memory/inserted": "memories that the step added",
    "memory/deleted_low": "memories deleted because their score fell below D",
    "memory/deleted_full": "memories deleted because an agent had more than its capacity",
    "memory/episodes": "trajectories that the memory learned from",
    "memory/above": "of them with a reward above U",
    "memory/below": "of them with a reward below L",
    "memory/stale": "recalled memories that had been deleted meanwhile",
    "sampling/questions": "questions sampled",
    "sampling/dropped_questions": "of those, evicted as too old to train on (max_off_policy_strategy=drop)",
    "sampling/cut_questions": "with mas.sampling.oversample: questions that were cut, and begin again in the next step",
    "sampling/cut_again": "of those, questions that had been cut before",
    "sampling/cut_trajectories": "trajectories of the cut questions that had been started",
    "sampling/cut_seconds": "seconds that these trajectories had taken, added up",
    "sampling/cut_tokens": "tokens of their outputs that had ended; part of sampling/generated_tokens",
    "sampling/agent_calls": "generations made; replayed calls are not among them",
    "sampling/agent_calls_formula": "what the strategy's formula gives for the lengths of the base trajectories",
    "sampling/generated_tokens": "tokens generated",
    "sampling/prompt_tokens": "prompt tokens of the generations made",
    "sampling/operations": "with mas.budget.operations: 2 x parameters of the agent's model x tokens of its calls",
    "sampling/replayed_calls": "calls answered from the record or shared with a running trajectory",
    "sampling/without_forks": "trajectories sampled independently in the place of forks: replays ask something else",
    "sampling/tool_calls": "tool calls made, retries included",
    "sampling/tool_retries": "tool attempts after a first failure",
    "sampling/tool_failures": "tool calls that failed for good (per trajectory that met them)",
    "sampling/trajectories": "trajectories started",
    "sampling/failed_trajectories": "trajectories that could not finish",
    "sampling/failed/<status>": "of those, by reason",
    "sampling/left_out": "share of the trajectories that train nothing: failed, without a reward in `mas.failure`",
    "sampling/tokens_per_second": "generated tokens / timing_s/gen; in the asynchronous modes / timing_s/step",
    "tools/<tool>/<quantity>": "what the tool has counted since the step before: tool_call its answers by kind, and "
    "what a simulator behind it counts",
    "budget/generated_tokens": "tokens generated for training since the run began (`mas.budget`)",
    "budget/questions": "questions sampled for training since the run began (`mas.budget`)",
    "budget/operations": "with mas.budget.operations: sampling/operations since the run began",
    "doctor/tokens_checked": "1 if the update's tokens were compared with the sampled ones; 0 where verl rejects some",
    "doctor/mask_coverage": "share of the response tokens that train",
    "doctor/without_trained_tokens": "share of the rows in which no token trains",
    "doctor/without_advantage": "share of the rows whose advantage is 0 everywhere: they teach nothing",
    "doctor/version_lag": "mean number of updates since the weights that sampled a row's first token",
    "doctor/version_lag_max": "the largest",
    "doctor/versions": "mean number of versions of the weights, first to last, that sampled a row's tokens",
    "doctor/versions_max": "the largest",
    "doctor/unknown_version": "share of the rows of which the engine did not say which weights sampled them",
    "doctor/weights_compared": "1 if the engine's weights are compared with those sent, 0 if only their version is",
    "doctor/weights_served": "share of the tensors that were compared as they serve; the others as they arrived",
    "doctor/unknown_adapter": "share of the rows of which the engine did not say which adapter sampled them",
    "doctor/unknown_policy": "with mas.policies: share of the rows of which the engine did not say whose it is",
    "doctor/kl_numerical": "KL(π_rollout ‖ π_old) per token of the rows that the last weights sampled: numerical noise",
    "doctor/kl_stale": "the same of the rows that older weights sampled: noise and staleness",
    "doctor/log_prob_difference_numerical": "largest |log π_old − log π_rollout| of a token, last weights",
    "doctor/log_prob_difference_stale": "the same, older weights",
    "doctor/weight/<agent>": "share of the loss's weight that the agent's rows have (MHGPO, Eq. 6: 1 / agents)",
    "doctor/seconds": "seconds that these checks took in the trainer's process",
    "update/rows": "rows of the step, without padding",
    "update/resting_rows": "of these, rows without an advantage, which the update left out; actor/* is of the others",
    "update/padding_rows": "masked rows added so that ranks and mini-batches come out even",
    "update/optimiser_steps": "optimiser steps of the step",
    "update/sent_mb": "megabytes of weights sent to rollouts on ranks of their own (backend object_store)",
    "update/rests": "with mas.policies: 1 if the policy does not train in the step (frozen, every, from_step, no rows)",
    "policies/<policy>/<metric>": "with two or more mas.policies: actor/*, critic/*, update/* and doctor/* of each",
    "update/weight_max": "largest weight of a row in the loss (mas.loss.agent_weights; MHGPO: N / (n · G_k), Eq. 6)",
    "update/weight_min": "smallest weight of a row in the loss",
    "adapters/<agent>/grad_norm": "norm of the gradient of the agent's adapter, before it is clipped by itself",
}


def reduce_stats(stats: Iterable[QuestionStats]) -> dict[str, float]:
    """Metrics of a batch of questions (all but tools/*, budget/*, groups/* and update/*, which the trainer adds)."""
    stats = list(stats)
    metrics: dict[str, float] = {}
    _means(metrics, "system", [{"reward": r, **q} for s in stats for r, q in zip(s.rewards, s.quantities, strict=True)])
    calls = [call for question in stats for call in question.calls]
    for agent in sorted({call.agent for call in calls}):
        metrics |= _agent_metrics(agent, [call for call in calls if call.agent == agent])
        _means(metrics, f"agents/{agent}", [{"similarity": v} for s in stats for v in s.similarity.get(agent, [])])
    metrics |= decision_metrics(path for question in stats for path in question.paths)
    for name in ("agent_calls", "generated_tokens", "prompt_tokens", "replayed_calls", "tool_calls", "tool_retries"):
        metrics[f"sampling/{name}"] = sum(question.cost[name] for question in stats)
    metrics["sampling/without_forks"] = sum(question.cost.get("without_forks", 0) for question in stats)
    metrics["sampling/questions"] = len(stats)
    metrics["sampling/agent_calls_formula"] = sum(question.formula_calls for question in stats)
    metrics["sampling/tool_failures"] = sum(question.tool_failures for question in stats)
    failures = _failures(stats)
    trajectories = sum(question.trajectories for question in stats)
    metrics["sampling/trajectories"] = trajectories
    metrics["sampling/failed_trajectories"] = failures.total()
    if trajectories:
        metrics["sampling/left_out"] = 1 - sum(len(question.rewards) for question in stats) / trajectories
    return metrics | {f"sampling/failed/{status}": count for status, count in sorted(failures.items())}


def failure_report(stats: Iterable[QuestionStats]) -> str:
    """Why trajectories could not finish: the numbers and the first error, then the lines of the user's code that
    raised it, if any did. Empty if all trajectories finished."""
    stats = [question for question in stats if question.failures]
    reasons = ", ".join(f"{count} x {status}" for status, count in sorted(_failures(stats).items()))
    if not stats:
        return ""
    first = next(failure for failure in stats[0].errors if not failure.finished)
    return f"{reasons}; the first: {first.error}" + (f"\n\n{first.trace}" if first.trace else "")


def _failures(stats: Iterable[QuestionStats]) -> Counter[str]:
    return sum((Counter(question.failures) for question in stats), Counter())


def _agent_metrics(agent: str, calls: list[CallStats]) -> dict[str, float]:
    prefix, n = f"agents/{agent}", len(calls)
    answered = [call for call in calls if Status(call.status).trainable]
    metrics: dict[str, float] = {
        f"{prefix}/calls": n,
        f"{prefix}/unparsable": sum(call.status == "unparsable" for call in calls) / n,
        f"{prefix}/no_tool_call": sum(call.status == "no_tool_call" for call in calls) / n,
        f"{prefix}/truncated": sum(call.truncated for call in calls) / n,
        f"{prefix}/failed": (n - len(answered)) / n,
    }
    own = [
        {"output_tokens": c.tokens, "prompt_tokens": c.prompt_tokens, "seconds": c.seconds, "penalty": c.penalty}
        for c in answered
    ]
    credited = [call for call in calls if not math.isnan(call.reward)]
    _means(metrics, prefix, own)
    _means(metrics, prefix, [{"reward": call.reward, "reward_shared": call.reward_shared} for call in credited])
    _means(metrics, prefix, [call.quantities for call in answered])
    return metrics


def _means(into: dict[str, float], prefix: str, records: list[dict[str, float]]) -> None:
    """The mean of every quantity over the records that have it."""
    found: dict[str, list[float]] = defaultdict(list)
    for record in records:
        for name, value in record.items():
            found[name].append(value)
    for name, values in found.items():
        finite = all(map(math.isfinite, values))  # fmean refuses infinities of both signs: their mean is NaN
        into[f"{prefix}/{name}"] = fmean(values) if finite else sum(values) / len(values)


def group_metrics(tags: list[dict[str, Any]]) -> dict[str, float]:
    """groups/*: how many groups, how large, and how many of them carry no gradient."""
    rewards: dict[str, list[float]] = defaultdict(list)
    for tag in tags:
        rewards[tag["group"]].append(tag["reward"])
    groups = rewards.values()
    return {
        "groups/count": len(groups),
        "groups/size": len(tags) / len(groups),
        "groups/zero_variance": sum(len(group) > 1 and len(set(group)) == 1 for group in groups) / len(groups),
        "groups/single": sum(len(group) == 1 for group in groups) / len(groups),
    }
