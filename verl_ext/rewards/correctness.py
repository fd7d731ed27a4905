"""Which tool calls count as correct, C(a_call) of ToolPO's R_action, and how much of a gold path was gone."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from verl_ext.rewards.calls import Invocation
from verl_ext.tools.catalogue.types import canonical


def by_name(call: Invocation, gold: Invocation) -> bool:
    """The name is right."""
    return call.name == gold.name


def by_arguments(call: Invocation, gold: Invocation) -> bool:
    """The name is right, and the arguments are, where the gold path tells them."""
    return call.name == gold.name and (
        gold.arguments is None or canonical(call.arguments or {}) == canonical(gold.arguments)
    )


def by_gold_path(call: Invocation, gold: Invocation) -> bool:
    """Right name and arguments, and executed without an error."""
    return call.ok and by_arguments(call, gold)


MATCHES: dict[str, Callable[[Invocation, Invocation], bool]] = {
    "name": by_name,
    "arguments": by_arguments,
    "gold_path": by_gold_path,
}
RULES = (*MATCHES, "executed")


def correct_calls(rule: str, calls: Sequence[Invocation], gold: Sequence[Invocation]) -> int:
    """Σ_t C(a_call_t): how many of `calls` are correct.

    A call of the gold path counts once: saying it again earns nothing. `executed` counts every call that was answered
    without an error and differs from the ones before it, also where there is no gold path.

    Raises:
        ValueError: unknown rule.
    """
    if rule == "executed":
        return len({(call.name, canonical(call.arguments or {})) for call in calls if call.ok})
    if rule not in MATCHES:
        raise ValueError(f"mas.workflow.correct={rule!r} is unknown; allowed: {', '.join(RULES)}")
    left, count = list(gold), 0
    for call in calls:
        found = next((one for one in left if MATCHES[rule](call, one)), None)
        if found is not None:
            left.remove(found)
            count += 1
    return count


def path_share(calls: Sequence[Invocation], gold: Sequence[Invocation], ordered: bool = True) -> float:
    """Share of the gold path that was gone, errors not counted, in [0, 1]; 1 for an empty path.

    In its order: the longest common subsequence of both, over the gold path's length. At 1 the gold path is a
    subsequence of the calls: the "correct path" of RestBench. Not `ordered`: each of its calls once, in any order, as
    API-Bank counts.
    """
    if not gold:
        return 1.0
    if not ordered:
        return correct_calls("gold_path", calls, gold) / len(gold)
    best = [0] * (len(gold) + 1)
    for call in calls:
        before = best[:]
        for i, one in enumerate(gold, 1):
            best[i] = before[i - 1] + 1 if by_gold_path(call, one) else max(before[i], best[i - 1])
    return best[-1] / len(gold)
