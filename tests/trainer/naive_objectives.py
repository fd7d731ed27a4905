"""The papers' objectives, naively: from calls to the gradient of every token, in plain Python numbers (float64)."""

from __future__ import annotations

import math
import random
from collections import Counter, defaultdict
from statistics import fmean, stdev

import numpy as np

from tests.trainer.naive_sampling import groups, rewards

CLIP, DUAL_CLIP, BETA, GAMMA, LAM = 0.2, 3.0, 0.3, 0.97, 0.9


def token_noise(kind: str, *where) -> float:
    """A number for a token that rows and reference both find without each other."""
    return random.Random(repr((kind, *where))).gauss(0.0, 0.6)


def reference(questions, case, mini_batch):
    """(question, trajectory, (place in the trajectory, token)) -> its gradient by the equations.

    The rows of a step are dealt to optimiser steps; each one's gradient is its rows' share of the whole, scaled up.

    Args:
        mini_batch: the same keys -> number of the optimiser step that the token is in.
    """
    parts = len(set(mini_batch.values()))
    estimator, strategy, weights, mode = case
    units = [unit for question in questions for unit in _units(question, estimator, strategy)]
    if estimator == "joyagents":
        units = _top_nodes(units)
    if estimator in ALONE or estimator == "grpo":
        units = [unit for unit in units if len({other.where[1] for other in units if other.uid == unit.uid}) > 1]
    advantages = ADVANTAGES.get(estimator, _mhgpo)(units) if units else []
    agents = {unit.agent for unit in units}
    tokens = Counter(mini_batch[where] for unit in units for where in unit.places)
    found = {}
    for unit, own in zip(units, advantages, strict=True):
        if mode == "token-mean":  # of the mini-batch
            weight = 1 / tokens[mini_batch[unit.places[0]]]
        elif estimator in ("puppeteer", "toolpo"):
            weight = parts / len({other.where[:2] for other in units})
        elif weights == "batch":
            weight = parts / len(agents) / sum(other.agent == unit.agent for other in units) / len(unit.trained)
        elif weights == "question":
            same = [other for other in units if other.where[0] == unit.where[0]]
            rollouts = sum(other.agent == unit.agent for other in same)
            weight = (
                parts
                / len({other.uid for other in units})
                / len({other.agent for other in same})
                / rollouts
                / len(unit.trained)
            )
        else:
            weight = parts / len(units) / len(unit.trained)
        for (position, place, old, _), advantage in zip(unit.trained, own, strict=True):
            where = (*unit.where[:2], (position, place))
            new = old + token_noise("new", *where)
            found[where] = -weight * _slope(new, old, old + token_noise("ref", *where), advantage)
    return found


def _slope(new: float, old: float, ref: float, advantage: float) -> float:
    """d/d(new) of min(r A, clip(r) A) − β k3, k3 = exp(ref − new) − (ref − new) − 1.

    Two bounds of verl that the papers do not have: where A < 0 the surrogate is at least c A (`clip_ratio_c`), so there
    is no gradient beyond r = c; and k3 is at most 10, so there is none of it beyond ref − new = 2.6.
    """
    ratio = math.exp(new - old)
    clipped = min(max(ratio, 1 - CLIP), 1 + CLIP)
    surrogate = ratio * advantage if ratio * advantage <= clipped * advantage else 0.0
    if advantage < 0 and ratio > DUAL_CLIP:
        surrogate = 0.0
    k3 = math.exp(ref - new) - (ref - new) - 1
    return surrogate - BETA * (1 - math.exp(ref - new)) * (k3 < 10)


class Unit:
    """What has one reward: a call, or the calls of one stream between two forks."""

    def __init__(self, question, number, calls, group, reward):
        self.uid, self.where, self.group = question.uid, (question.uid, number, calls[0][0]), group
        self.agent, self.trajectory = calls[0][1].agent, question.trajectories[number]
        self.decides = any(call.decides for _, call in calls)
        self.reward = reward[calls[-1][1]] + sum(call.reward_specific for _, call in calls[:-1])
        self.length = sum(
            len(call.generation.token_ids) + (call.observed if i else 0) for i, (_, call) in enumerate(calls)
        )
        # (position, token, log-probability as stored, action) of the tokens that were sampled among several.
        self.trained = [
            (position, place, float(np.float32(log_prob)), any(a <= place < b for a, b in call.actions))
            for position, call in calls
            for place, log_prob in enumerate(call.generation.log_probs)
            if not call.generation.allowed or len(call.generation.allowed[place]) > 1
        ]
        self.places = [(question.uid, number, (position, place)) for position, place, *_ in self.trained]


def _units(question, estimator, strategy):
    """The calls that train, each once, in the first trajectory that has it; cut where a trajectory was forked."""
    reward, group_of = rewards(question, estimator), groups(question, strategy)
    forked = {question.paths[n][place] for base, fork, place in question.forks() for n in (base, fork)}
    seen, units = set(), []
    for number in question.scored:
        chains = []
        for position, call in enumerate(question.paths[number]):
            if call not in group_of or call in seen:
                continue
            seen.add(call)
            chain = next((chain for chain in chains if chain[-1][1] is call.continues), None)
            if chain is None or call in forked:
                chains.append([(position, call)])
            else:
                chain.append((position, call))
        units += [Unit(question, number, chain, group_of[chain[0][1]], reward) for chain in chains]
    return units


def _relative(values, groups, by_std):
    members = defaultdict(list)
    for value, group in zip(values, groups, strict=True):
        members[group].append(value)
    found = []
    for value, group in zip(values, groups, strict=True):
        same = members[group]
        if len(set(same)) == 1:
            found.append(0.0)
        else:
            found.append((value - fmean(same)) / ((stdev(same) + 1e-6) if by_std else 1.0))
    return found


def _mhgpo(units):
    relative = _relative([unit.reward for unit in units], [unit.group for unit in units], True)
    return [[value] * len(unit.trained) for unit, value in zip(units, relative, strict=True)]


def _puppeteer(units):
    found = _mhgpo(units)
    deciding = [number for number, unit in enumerate(units) if unit.decides]
    own = _relative([units[n].reward for n in deciding], [units[n].group for n in deciding], False)
    for number, value in zip(deciding, own, strict=True):
        found[number] = [value] * len(units[number].trained)
    return found


def _top_nodes(units, k=5):
    members = defaultdict(list)
    for unit in units:
        members[unit.group].append(unit)
    kept = set()
    for uid in {unit.uid for unit in units}:
        nodes = [group for group in members if members[group][0].uid == uid]
        spread = {g: len({u.reward for u in members[g]}) > 1 and np.var([u.reward for u in members[g]]) for g in nodes}
        kept |= set(sorted((g for g in nodes if spread[g]), key=lambda g: -round(spread[g], 12))[:k])
    return [unit for unit in units if unit.group in kept]


def _grpo(units):
    """A trajectory's last row is compared with those of the question's other trajectories; all its rows get that."""
    last = {}
    for unit in units:
        if unit.where[:2] not in last or last[unit.where[:2]].where[2] < unit.where[2]:
            last[unit.where[:2]] = unit
    relative = _relative([unit.reward for unit in last.values()], [where[0] for where in last], True)
    own = dict(zip(last, relative, strict=True))
    return [[own[unit.where[:2]]] * len(unit.trained) for unit in units]


def _toolpo(units):
    """Eqs. 5 to 7, λ1 = λ2 = 1. A failed trajectory has no correct call, and has not folded."""
    trajectories = {unit.where[:2]: unit.trajectory for unit in units}
    questions = [where[0] for where in trajectories]
    acting = {unit.agent for unit in units if any(acts for *_, acts in unit.trained)}
    length = {w: sum(u.length for u in units if u.where[:2] == w and u.agent in acting) for w in trajectories}
    folded = {where for where, trajectory in trajectories.items() if trajectory.metrics.get("folds", 0) > 0}
    preference = {}
    for where in trajectories:
        direct = [length[other] for other in trajectories if other[0] == where[0] and other not in folded]
        own, other = length[where], fmean(direct) if direct else 0.0
        preference[where] = (other - own) / (other + own) if where in folded and direct and other + own else 0.0
    action = [t.metrics.get("correct_calls", 0.0) + preference[where] for where, t in trajectories.items()]
    success = _relative([t.reward for t in trajectories.values()], questions, False)
    of = dict(zip(trajectories, zip(success, _relative(action, questions, False), strict=True), strict=True))
    return [[of[unit.where[:2]][0] + acts * of[unit.where[:2]][1] for *_, acts in unit.trained] for unit in units]


def _whiten(rows):
    flat = [value for row in rows for value in row]
    mean, spread = fmean(flat), math.sqrt(sum((v - fmean(flat)) ** 2 for v in flat) / (len(flat) - 1) + 1e-8)
    return [[(value - mean) / spread for value in row] for row in rows]


def _plus_plus(units):
    return _whiten(
        [[unit.reward * GAMMA ** (len(unit.trained) - 1 - t) for t in range(len(unit.trained))] for unit in units]
    )


def _gae(units):
    rows = []
    for unit in units:
        values = [token_noise("value", *unit.where[:2], (position, place)) for position, place, *_ in unit.trained]
        ahead, row = 0.0, []
        for t in reversed(range(len(values))):
            follows, reward = (values[t + 1], 0.0) if t + 1 < len(values) else (0.0, unit.reward)
            ahead = reward + GAMMA * follows - values[t] + GAMMA * LAM * ahead
            row.append(ahead)
        rows.append(row[::-1])
    return _whiten(rows)


def _same(units, values):
    return [[value] * len(unit.trained) for unit, value in zip(units, values, strict=True)]


def _rloo(units):
    """R − the mean of the others'; every row of the question's one agent is a sample."""
    others = [[other.reward for other in units if other.uid == unit.uid and other is not unit] for unit in units]
    return _same(units, [unit.reward - fmean(rest) for unit, rest in zip(units, others, strict=True)])


def _opo(units):
    """R − the mean weighted by length, which minimises the variance if a gradient's norm is its length."""
    found = []
    for unit in units:
        same = [other for other in units if other.uid == unit.uid]
        tokens = sum(len(other.trained) for other in same)
        found.append(unit.reward - sum(len(other.trained) * other.reward for other in same) / tokens)
    return _same(units, found)


def _by_question(by_std):
    return lambda units: _same(units, _relative([unit.reward for unit in units], [u.uid for u in units], by_std))


# Verl's, for systems of one agent.
ALONE = {
    "rloo": _rloo,
    "rloo_vectorized": _rloo,
    "opo": _opo,
    "grpo_vectorized": _by_question(True),
    "reinforce_plus_plus_baseline": lambda units: _whiten(_by_question(False)(units)),
}
ADVANTAGES = ALONE | {
    "gae": _gae, "reinforce_plus_plus": _plus_plus, "grpo": _grpo, "toolpo": _toolpo, "puppeteer": _puppeteer
}  # fmt: skip
