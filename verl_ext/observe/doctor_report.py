"""What the doctor found in a run, in words: from the metrics of its steps (docs/metrics.md, doctor/*)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

Entries = Sequence[Mapping[str, Any]]
# KL of rollout engine and trainer under the same weights above which their arithmetic differs too much.
NUMERICAL = 1e-3
# Share of the tokens above which questions that are cut waste much; number of them below which nothing is said of them.
WASTED, FEW = 0.25, 10
# Share of an agent's outputs with a fault above which it is said; KL per token of older weights, likewise.
MOST, STALE = 0.5, 0.1


def report(name: str, entries: Entries) -> str:
    """The page of a run.

    Args:
        name: of the run.
        entries: its log of training steps, `{"step", "metrics"}` each.
    """
    lines = [f"{name}: {len(entries)} training steps, {entries[0]['step']} to {entries[-1]['step']}", ""]
    policies = of_policies(entries)
    for title, tell in SECTIONS.items():
        if (not policies or title not in (*OF_A_POLICY, "Adapters")) and (words := tell(entries)):
            lines.append(f"{title:<15}{words}")
    concerns = list(_concerns(entries))
    for policy, own in policies.items():
        lines += ["", f"Policy {policy}: trained in {len(own)} of {len(entries)} steps{_without(own)}"]
        titles = [*OF_A_POLICY, *(["Adapters"] if _values(own, "doctor/unknown_adapter") else [])]
        lines += [f"{title:<15}{words}" for title in titles if (words := SECTIONS[title](own))] if own else []
        concerns += [f"{policy}: {one}" for one in _concerns(own)] if own else []
    lines += ["", "To look at"] + [f"  - {one}" for one in concerns] if concerns else ["", "Nothing to look at."]
    return "\n".join(lines)


def of_policies(entries: Entries) -> dict[str, Entries]:
    """Of a run with several policies, the steps in which each trained, with its metrics under the names of a run's."""
    names = dict.fromkeys(key.split("/")[1] for one in entries for key in one["metrics"] if key.startswith("policies/"))
    found: dict[str, Entries] = {}
    for name in names:
        prefix = f"policies/{name}/"
        steps = [{"step": one["step"], "metrics": _under(prefix, one["metrics"])} for one in entries]
        found[name] = [one for one in steps if not one["metrics"].get("update/rests")]
    return found


def _under(prefix: str, metrics: Mapping[str, Any]) -> dict[str, Any]:
    return {name.removeprefix(prefix): value for name, value in metrics.items() if name.startswith(prefix)}


def taught_nothing(metrics: Mapping[str, Any]) -> str:
    """Why a step taught nothing, in words; empty if some row had an advantage, or a policy head learned."""
    if any(value for name, value in metrics.items() if name.startswith("head/") and name.endswith("/grad_norm")):
        return ""
    if metrics.get("update/optimiser_steps") == 0 or metrics.get("doctor/without_advantage") == 1.0:
        if metrics.get("groups/single") == 1.0:
            return "every group has a single member, so nothing is compared (mas.sampling.group_size)"
        return "in every group all rewards are equal"
    return ""


def untaught(entry: Mapping[str, Any]) -> list[str]:
    """A sentence for a step that taught nothing, or for each of several policies that it trained and taught nothing."""
    metrics, step = entry["metrics"], f"step {entry['step']} taught"
    policies, run = of_policies([entry]), {name: value for name, value in metrics.items() if name.startswith("groups/")}
    parts = {f"policy {name} ": {**run, **one["metrics"]} for name, own in policies.items() for one in own}
    found = {name: why for name, own in (parts if policies else {"": metrics}).items() if (why := taught_nothing(own))}
    return [f"{step} {name}nothing: {why}" for name, why in found.items()]


def _values(entries: Entries, name: str) -> list[float]:
    return [entry["metrics"][name] for entry in entries if entry["metrics"].get(name) is not None]


def _tokens(entries: Entries) -> str:
    rows = _values(entries, "update/rows")
    compared, checked = sum(_values(entries, "doctor/tokens_checked")), _values(entries, "doctor/mask_coverage")
    if not compared or not checked:
        return "not checked: no update, or verl rejects sampled tokens (rollout_rs)"
    others = "; the others are observations and forced tokens" if min(checked) < 1 else ""
    share = f"{fmean(checked):.0%} of the response tokens train{others}"
    steps = "every step" if compared == len(entries) else f"{compared:.0f} of {len(entries)} steps"
    return f"{steps} trained exactly the tokens that were sampled ({min(rows):.0f} to {max(rows):.0f} rows); {share}"


def _weights(entries: Entries) -> str:
    lag = _values(entries, "doctor/version_lag")
    unknown = _values(entries, "doctor/unknown_version")
    if not lag:
        return "the engine did not say which weights sampled the rows"
    largest = max(_values(entries, "doctor/version_lag_max"))
    fresh = "every row was sampled by the weights of the step before"
    words = fresh if largest <= 0 else f"rows were {fmean(lag):.1f} updates old on average, {largest:.0f} at most"
    words += f"; unknown for {fmean(unknown):.0%}" if any(unknown) else ""
    if compared := _values(entries, "doctor/weights_compared"):
        held = "the engine held the weights that the trainer sent, bit for bit"
        if (served := min(_values(entries, "doctor/weights_served"), default=1.0)) < 1:
            held = f"the engine got all weights, bit for bit; {served:.0%} of its tensors were compared as they serve"
        only = "only the version is checked: this engine does not tell a fingerprint of its weights"
        words += f"; {held if all(compared) else only}"
    return words


def _adapters(entries: Entries) -> str:
    unknown = _values(entries, "doctor/unknown_adapter")
    if not unknown:
        return "the policy has none: all agents share its weights"
    words = "every row was sampled by the adapter of its agent, which it trains"
    return words if not any(unknown) else f"{words}; the engine did not say it of {fmean(unknown):.0%} of the rows"


def _engine(entries: Entries) -> str:
    """Nothing in a run without `mas.policies`."""
    if not (unknown := _values(entries, "doctor/unknown_policy")):
        return ""
    words = "every row was sampled by the engine of its policy"
    return words if not any(unknown) else f"{words}; the engine did not say it of {fmean(unknown):.0%} of the rows"


def _probabilities(entries: Entries) -> str:
    parts = []
    for name, words in (("numerical", "same weights"), ("stale", "older weights")):
        if values := _values(entries, f"doctor/kl_{name}"):
            furthest = max(values, key=abs)
            parts.append(
                f"{words}: {fmean(values):.1e} per token on average, {furthest:.1e} in the step furthest from 0"
            )
    return "KL between rollout engine and trainer, " + "; ".join(parts) if parts else "not measured"


def _groups(entries: Entries) -> str:
    size, same = _values(entries, "groups/size"), _values(entries, "groups/zero_variance")
    if not size:
        return "no step had groups"
    single = fmean(_values(entries, "groups/single") or [0.0])
    return (
        f"{fmean(size):.1f} members on average; all rewards equal in {fmean(same):.0%}, one member in {single:.0%}"
        f"{_without(entries)}"
    )


def _without(entries: Entries) -> str:
    """Nothing where it is not measured: several policies have one such share each."""
    shares = _values(entries, "doctor/without_advantage")
    return f"; {fmean(shares):.0%} of the rows have no advantage" if shares else ""


def _objective(entries: Entries) -> str:
    names = sorted({name for entry in entries for name in entry["metrics"] if name.startswith("doctor/weight/")})
    shares = [f"{name.rsplit('/', 1)[1]} {fmean(_values(entries, name)):.1%}" for name in names]
    return f"share of the loss: {', '.join(shares)}" if shares else "not measured"


def _left_out(entries: Entries) -> str:
    total = sum(_values(entries, "sampling/trajectories"))
    failed = sum(_values(entries, "sampling/failed_trajectories"))
    if not failed:
        return f"none of {total:,.0f} trajectories failed"
    reasons = sorted({name for entry in entries for name in entry["metrics"] if name.startswith("sampling/failed/")})
    counted = ", ".join(f"{name.rsplit('/', 1)[1]} {sum(_values(entries, name)):.0f}" for name in reasons)
    share = fmean(_values(entries, "sampling/left_out") or [0.0])
    return f"{failed:,.0f} of {total:,.0f} trajectories failed ({counted}); {share:.1%} were left out"


def _dropped(entries: Entries) -> str:
    groups, selected = (sum(_values(entries, name)) for name in ("groups/dropped_rows", "selection/dropped_rows"))
    padding = sum(_values(entries, "update/padding_rows"))
    return f"{groups:.0f} by regrouping, {selected:.0f} by the algorithm's selection; {padding:.0f} padding rows added"


def _cut(entries: Entries) -> str:
    cut, again, seconds = (sum(_values(entries, f"sampling/cut_{name}")) for name in ("questions", "again", "seconds"))
    if not cut:
        return ""
    begun = cut + sum(_values(entries, "sampling/questions"))
    return (
        f"{cut:,.0f} of {begun:,.0f} that were begun, {again / cut:.0%} of them not for the first time; wasted: "
        f"{_cut_share(entries):.0%} of the tokens, {seconds:,.0f} s of trajectories"
    )


def _cut_share(entries: Entries) -> float:
    tokens = sum(_values(entries, "sampling/generated_tokens"))
    return sum(_values(entries, "sampling/cut_tokens")) / tokens if tokens else 0.0


def _cost(entries: Entries) -> str:
    spent, steps = sum(_values(entries, "doctor/seconds")), sum(_values(entries, "timing_s/step"))
    return f"these checks took {spent / steps:.2%} of the time of the steps" if steps else "not measured"


SECTIONS: dict[str, Callable[[Entries], str]] = {
    "Tokens": _tokens,
    "Versions": _weights,
    "Engine": _engine,
    "Adapters": _adapters,
    "Probabilities": _probabilities,
    "Groups": _groups,
    "Objective": _objective,
    "Trajectories": _left_out,
    "Rows dropped": _dropped,
    "Questions cut": _cut,
    "Cost": _cost,
}


def _mostly(entries: Entries, fault: str) -> dict[str, float]:
    """The agents most of whose outputs have this fault, with the share."""
    names = sorted({name for one in entries for name in one["metrics"] if name.endswith(f"/{fault}")})
    shares = {name.split("/")[1]: fmean(_values(entries, name)) for name in names if name.startswith("agents/")}
    return {agent: share for agent, share in shares.items() if share > MOST}


# What each of several policies has of its own.
OF_A_POLICY = ("Tokens", "Versions", "Engine", "Probabilities", "Objective")


def _concerns(entries: Entries) -> Iterable[str]:
    for reason in sorted({why for entry in entries if (why := taught_nothing(entry["metrics"]))}):
        steps = [entry["step"] for entry in entries if taught_nothing(entry["metrics"]) == reason]
        yield f"{len(steps)} steps taught nothing, e.g. step {steps[0]}: {reason}"
    without = _values(entries, "doctor/without_advantage")
    if without and fmean(without) > 0.8:
        yield f"{fmean(without):.0%} of the rows have no advantage: questions too easy or too hard for the policy"
    if (kl := _values(entries, "doctor/kl_numerical")) and max(map(abs, kl)) > NUMERICAL:
        yield f"rollout engine and trainer disagree under the same weights: KL {max(kl, key=abs):.1e} per token"
    last = entries[-max(1, len(entries) // 4) :]
    for agent, share in _mostly(last, "unparsable").items():
        yield (
            f"{agent}: {share:.0%} of its last outputs could not be read: its prompt asks for what the model does not "
            "write, its parser is too strict, or max_tokens cuts them off"
        )
    for agent, share in _mostly(last, "truncated").items():
        yield f"{agent}: {share:.0%} of its last outputs were cut off: a larger mas.agents.{agent}.max_tokens"
    if (stale := _values(last, "doctor/kl_stale")) and abs(furthest := max(stale, key=abs)) > STALE:
        yield (
            f"the policy has moved far since some rows were sampled (KL {furthest:.1e} per token): fewer questions "
            "ahead, a smaller learning rate, or importance weights (docs/asynchronous.md)"
        )
    if any(_values(entries, "doctor/without_trained_tokens")):
        yield "some rows have no token that trains"
    if any(_values(entries, "doctor/unknown_version")):
        yield "the engine did not always say which weights sampled a row"
    if any(_values(entries, "doctor/unknown_policy")):
        yield "the engine did not always say which policy sampled a row"
    if independent := sum(_values(entries, "sampling/without_forks")):
        yield (
            f"{independent:.0f} trajectories were sampled independently in the place of forks: run again, the system "
            "asks something else (error.log has the first difference)"
        )
    if (share := _cut_share(entries)) > WASTED:
        yield f"{share:.0%} of the tokens were those of questions that were cut: a smaller mas.sampling.oversample"
    cut, again = (sum(_values(entries, f"sampling/cut_{name}")) for name in ("questions", "again"))
    if cut >= FEW and again > cut / 2:
        yield (
            f"{again / cut:.0%} of the questions that were cut had been cut before: always the same ones, which then "
            "train late, and on short trajectories. A smaller mas.sampling.max_cuts waits for them sooner"
        )
    worst = max(entries, key=lambda entry: entry["metrics"].get("sampling/left_out") or 0.0)
    if (share := worst["metrics"].get("sampling/left_out") or 0.0) > 0.1:
        yield f"step {worst['step']} left out {share:.0%} of its trajectories: mas.failure can give them a reward"
