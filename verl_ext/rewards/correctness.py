"""Which tool calls are correct, C(a_call) of ToolPO's R_action, and the share of a gold path that was called."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from verl_ext.rewards.calls import Invocation
from verl_ext.tools.catalogue.types import canonical


def by_name(call: Invocation, gold: Invocation) -> bool:
    """`name`: the name is correct."""
    return call.name == gold.name


def by_arguments(call: Invocation, gold: Invocation) -> bool:
    """`arguments`: the name is correct, and so are the arguments, if the gold path has any."""
    return call.name == gold.name and (
        gold.arguments is None or canonical(call.arguments or {}) == canonical(gold.arguments)
    )


def by_gold_path(call: Invocation, gold: Invocation) -> bool:
    """`gold_path`: as `arguments`, and the call succeeded; order does not count."""
    return call.ok and by_arguments(call, gold)


MATCHES: dict[str, Callable[[Invocation, Invocation], bool]] = {
    "name": by_name,
    "arguments": by_arguments,
    "gold_path": by_gold_path,
}
RULES = (*MATCHES, "executed", "effect")


def correct_calls(rule: str, calls: Sequence[Invocation], gold: Sequence[Invocation]) -> int:
    """Σ_t C(a_call_t): how many of `calls` are correct.

    Each call of the gold path counts once; repetitions earn nothing. Two rules need no gold path: `executed` counts
    every distinct call whose answer was no error, `effect` those of them that changed the environment.

    Raises:
        ValueError: unknown rule.
    """
    if rule in ("executed", "effect"):
        done = [call for call in calls if call.ok and (call.effect or rule == "executed")]
        return len({(call.name, canonical(call.arguments or {})) for call in done})
    if rule not in MATCHES:
        raise ValueError(f"mas.workflow.correct={rule!r} is unknown; allowed: {', '.join(RULES)}")
    # A gold call without arguments comes last: it is not to take the call that another one needs.
    left, count = sorted(gold, key=lambda one: one.arguments is None), 0
    for call in calls:
        found = next((one for one in left if MATCHES[rule](call, one)), None)
        if found is not None:
            left.remove(found)
            count += 1
    return count


def unneeded_calls(calls: Sequence[Invocation], gold: Sequence[Invocation]) -> int:
    """How many calls the gold path does not need: other tools or arguments, failed calls, repetitions."""
    return len(calls) - correct_calls("gold_path", calls, gold)


def charged(success: float, calls: Sequence[Invocation], gold: Sequence[Invocation], price: float) -> float:
    """`success` less `price` for each unneeded call, and at least 0.

    Where success is a gold path among the calls, and a call costs nothing, calling every tool that there is would be
    best. A trajectory without success has nothing to lose, so trying is never worse than doing nothing.
    """
    return max(0.0, success - price * unneeded_calls(calls, gold))


def path_share(calls: Sequence[Invocation], gold: Sequence[Invocation], ordered: bool = True) -> float:
    """Share of the gold path that was called without an error, in [0, 1]; 1 for an empty path.

    ordered: the length of the longest common subsequence of calls and gold path, divided by the gold path's length. At
    1 the gold path is a subsequence of the calls: the "correct path" of RestBench. Otherwise each gold call counts
    once, in any order, as in API-Bank.
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
