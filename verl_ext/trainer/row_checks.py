"""What the doctor asserts of the rows of a step. An assertion that fails ends the run."""

from __future__ import annotations

from collections.abc import Sequence

from verl_ext.trainer.row import Tag

# Relative error of the sum of the rows' weights, which are float32 in the loss.
TOLERANCE = 1e-5


def check_adapters(tags: list[Tag], adapters: Sequence[str] | None, step: int) -> dict[str, float]:
    """Check that each row was sampled by the adapter that it trains, which is its agent's.

    Args:
        tags: of the rows that train.
        adapters: names by number; None: the policy has none.

    Returns:
        The share of the rows of which the engine did not say it; nothing if the policy has no adapters.

    Raises:
        RuntimeError: a row was sampled by another one, or would train another one.
    """
    wrong = []
    for tag in tags:
        own = set() if adapters is None else {tag["agent"]}
        trains = {adapters[tag["adapter"]]} if adapters is not None else set()
        if trains != own or set(tag["sampled_by"]) - own:
            wrong.append((tag, trains))
    if wrong:
        tag, trains = wrong[0]
        raise RuntimeError(
            f"step {step}: {len(wrong)} rows were not sampled by the adapter of their agent, or would train another "
            f"one; the first: {tag['agent']!r} (trajectory {tag['trajectory']}), sampled by {tag['sampled_by']}, would "
            f"train {sorted(trains)}. This is a defect of verl_ext or verl, not of your system: please report it"
        )
    return {} if adapters is None else {"doctor/unknown_adapter": sum(not t["sampled_by"] for t in tags) / len(tags)}


def check_policy_rows(tags: list[Tag], policy: str, step: int) -> dict[str, float]:
    """Check that the rows that a policy is to train are of its agents, and were sampled by its engine.

    Args:
        tags: of the rows that train.
        policy: its name; "" in a run with one.

    Returns:
        The share of the rows of which the engine did not say it; nothing in a run with one policy.

    Raises:
        RuntimeError: a row is another policy's, or was sampled by another one's engine.
    """
    if not policy:
        return {}
    wrong = [tag for tag in tags if tag["policy"] != policy or set(tag["served_by"]) - {policy}]
    if wrong:
        raise RuntimeError(
            f"step {step}: {len(wrong)} rows would train the policy {policy!r} that are another one's; the first: "
            f"agent {wrong[0]['agent']!r} of policy {wrong[0]['policy']!r} (trajectory {wrong[0]['trajectory']}), "
            f"sampled by {wrong[0]['served_by']}. This is a defect of verl_ext or verl, not of your system: please "
            "report it"
        )
    return {"doctor/unknown_policy": sum(not tag["served_by"] for tag in tags) / len(tags)}


def check_weights(total: float, expected: float, step: int) -> None:
    """Compare the sum of the rows' weights with what the objective implies.

    Raises:
        RuntimeError: they differ.
    """
    if abs(total / expected - 1) > TOLERANCE:
        raise RuntimeError(
            f"step {step}: the weights of the rows in the loss sum to {total:.6g}, but in the objective that "
            f"mas.loss.agent_weights states they sum to {expected:.6g}"
        )


def check_tokens(tags: list[Tag], trained: float, step: int) -> None:
    """Compare the checksum of the sampled tokens with what the training processes saw in their loss.

    Args:
        tags: of the rows that train.
        trained: the sum of the checksums that the training processes computed.

    Raises:
        RuntimeError: they differ.
    """
    sampled = sum(tag["checksum"] for tag in tags)
    if round(trained) != sampled:
        raise RuntimeError(
            f"step {step}: the tokens of the update are not the tokens that were sampled (checksum {trained:.0f}, "
            f"sampled {sampled}): a row was lost, doubled or changed between rollout and update. This is a defect of "
            "verl_ext or verl, not of your system: please report it with the run's folder"
        )


def check_assigned(assigned: int, trained: float, step: int) -> None:
    """Compare weight, advantages and adapter of each row, as they were assigned, with those in the loss.

    Args:
        assigned: the sum of the rows' `of_assignment`.
        trained: the same sum, of what the training processes got.

    Raises:
        RuntimeError: they differ.
    """
    if round(trained) != assigned:
        raise RuntimeError(
            f"step {step}: a row did not train with the weight, the advantages and the adapter that it was assigned "
            f"(checksum {trained:.0f}, assigned {assigned}). This is a defect of verl_ext or verl, not of your system: "
            "please report it with the run's folder"
        )
