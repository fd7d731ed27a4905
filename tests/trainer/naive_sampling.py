"""What trains, for which reward and in which group, naively: from the paths that a workflow has noted while it ran.

A path is the list of a trajectory's calls, in the order in which its workflow made them. Nothing here reads what
credit, strategies or rows have worked out.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from statistics import fmean

# JoyAgents-R1's Eq. 3: the weight of R_E. Puppeteer's Eq. 6: λ, γ, φ, and the tokens that cost F = 1.
EFFICIENCY = 0.3
PRICE, DISCOUNT, STEPS, UNIT_TOKENS = 0.3, 0.9, 3, 5.0


class Question:
    """The trajectories of a question: their paths, and those that have a reward."""

    def __init__(self, number, forest, walked):
        self.uid, self.trajectories = f"u{number}", forest.trajectories
        self.paths = [walked[frozenset(trajectory.calls)] for trajectory in forest.trajectories]
        self.scored = [n for n, trajectory in enumerate(self.trajectories) if not math.isnan(trajectory.reward)]
        self.wanted = {name for name, agent in forest.workflow.agents.items() if agent.trained}

    def trains(self, call) -> bool:
        """A call of an agent that trains, which gave a text."""
        return call.agent in self.wanted and bool(call.generation.token_ids)

    def forks(self):
        """(base, fork, place) of each fork: the trajectory that it shares calls with, and the first that it has not."""
        roots = {t.stream.name: n for n, t in enumerate(self.trajectories) if t.stream.parent is None}
        for number, trajectory in enumerate(self.trajectories):
            base = roots[trajectory.stream.path[0]]
            pairs = zip(self.paths[base], self.paths[number], strict=False)
            place = next((place for place, (a, b) in enumerate(pairs) if a is not b), None)
            if number != base and place is not None:
                yield base, number, place


def rewards(question, estimator):
    """R of each call: R_shared + R_spe of MHGPO, R_A + R_F − R_E of JoyAgents-R1, R_t of Puppeteer's decisions."""
    following, found = defaultdict(set), {}
    ends = defaultdict(list)
    for number in question.scored:
        path = question.paths[number]
        for call, after in zip(path, path[1:], strict=False):
            following[call].add(after)
        ends[path[-1]].append(question.trajectories[number].reward)

    def shared(call):
        return fmean([*ends[call], *map(shared, following[call])])

    by_depth = sorted(question.scored, key=lambda n: question.trajectories[n].stream.depth)
    for number in by_depth:
        nodes = [call for call in question.paths[number] if call.agent in question.wanted]
        for call in question.paths[number]:
            if call in found:
                continue
            found[call] = shared(call)
            if estimator == "joyagents":
                k, j = len(nodes), nodes.index(call) + 1 if call in nodes else 0
                found[call] = question.trajectories[number].reward - EFFICIENCY * (k - j) / k if j else 0.0
    if estimator == "puppeteer":
        found |= _returns(question)
    return {call: reward + call.reward_specific for call, reward in found.items()}


def _returns(question):
    """Eq. 6: R_T = r − λ C_T, R_t = γ R_{t+1} − λ C_t, C_t = F_t log(1 + t/φ); of a decision: their mean."""
    found = defaultdict(list)
    for number in question.scored:
        steps = []  # [decision, tokens from it to the next one]
        for call in question.paths[number]:
            if call.decides and call.generation.token_ids:
                steps.append([call, 0])
            if steps:
                choices = call.generation.allowed  # a token that had to be is not generated
                steps[-1][1] += sum(len(some) > 1 for some in choices) or len(call.generation.token_ids)
        ahead = question.trajectories[number].reward
        for t, (call, tokens) in reversed(list(enumerate(steps, 1))):
            cost = tokens / UNIT_TOKENS * math.log(1 + t / STEPS)
            ahead = (ahead if t == len(steps) else DISCOUNT * ahead) - PRICE * cost
            found[call].append(ahead)
    return {call: fmean(values) for call, values in found.items()}


def groups(question, strategy):
    """Call -> the group that Eq. 5 compares it in, for every call that trains."""
    place_in = {}
    for path in question.paths:
        turns = Counter()
        for call in path:
            place_in[call] = (call.agent, turns[call.agent])
            turns[call.agent] += 1
    kept = {call for number in question.scored for call in question.paths[number] if question.trains(call)}
    if strategy in ("nmc", "is"):
        return _of_forks(question, strategy, place_in)
    found = {call: (question.uid, *place_in[call]) for call in kept}
    if strategy == "rr":  # Algorithm 5: groups of one are formed anew over the batch, by agent, turn and fork agent
        at = {question.paths[base][place].agent for base, _, place in question.forks()} or {"none"}
        sizes = Counter(found.values())
        found = {call: group if sizes[group] > 1 else ("batch", *place_in[call], *at) for call, group in found.items()}
    return found


def _of_forks(question, strategy, place_in):
    """The samples of each node: the base's own, and that of each fork there, of trajectories with a reward.

    `nmc` has a node at each call of its base, also where all forks have failed: its own sample is then alone.
    """
    samples = [(base, place, number) for base, number, place in question.forks()]
    samples += [(base, place, base) for base, place, _ in samples]
    if strategy == "nmc":
        base = next(n for n, trajectory in enumerate(question.trajectories) if trajectory.stream.parent is None)
        samples += [(base, place, base) for place in range(len(question.paths[base]))]
    found = {}
    for base, place, number in samples:
        call = question.paths[number][place]
        if number in question.scored and question.trains(call):
            found[call] = (question.uid, *place_in[question.paths[base][place]])
    return found
