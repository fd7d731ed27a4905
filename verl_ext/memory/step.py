"""One training step of the memory: a view and the step's episodes give the next view. No side effects."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from verl_ext.memory.evolution import Bounds, Rules, Trial, bounds, outside, rescore, softmax, survivors
from verl_ext.memory.records import Episode, Memory, Use
from verl_ext.memory.similarity import Similarity, inner
from verl_ext.memory.view import Shelf, Text, View

COUNTS = (
    "episodes", "above", "below", "recalled", "stale", "inserted", "deleted_low", "deleted_full", "memories",
)  # fmt: skip


@dataclass
class Changes:
    """The changes of the stored rows in a step.

    Attributes:
        inserted: new memories, each with its query's vector.
        scored: (time, score, id) of older memories that changed.
        deleted: ids of older memories.
    """

    inserted: list[tuple[Memory, np.ndarray]] = field(default_factory=list)
    scored: list[tuple[int, float, int]] = field(default_factory=list)
    deleted: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Part:
    """One agent's part in one trajectory, with the reward of the trajectory and the bounds of its question."""

    use: Use
    reward: float
    limits: Bounds

    @property
    def side(self) -> int:
        """1: the reward is above U; -1: below L; 0: between."""
        return outside(self.reward, self.limits)


def evolve(view: View, step: int, episodes: Sequence[Episode], rules: Rules) -> tuple[View, Changes, dict[str, int]]:
    """Algorithm 1 for all agents and all trajectories of a step, then the decay, then the overflow handling.

    Trajectories take effect in the order of (question, name), not in that of `episodes`.

    Returns:
        The view after `step`; its changes from `view`; counts of this step, by COUNTS: episodes, those above U, those
        below L; distinct memories recalled, recalled memories that no longer exist (stale); inserted and deleted
        memories (score below D, beyond the capacity); memories after the step.

    Raises:
        ValueError: step does not follow the view's, an episode is given twice, or a memory was recalled that this
            agent never had.
    """
    if isinstance(step, bool) or not isinstance(step, int) or step <= view.version:
        raise ValueError(
            f"the memory is at step {view.version}, given step {step!r}; steps are integers that grow. A run that goes "
            "back to an earlier step restores that step's snapshot first."
        )
    judged = _judged(episodes)
    sides = [outside(episode.reward, limits) for episode, limits in judged]
    counts = dict.fromkeys(COUNTS, 0)
    counts |= {"episodes": len(judged), "above": sides.count(1), "below": sides.count(-1)}
    parts = defaultdict(list)
    for episode, limits in judged:
        for use in episode.uses:
            parts[use.agent].append(Part(use, episode.reward, limits))
    shelves, changes, next_id = {}, Changes(), view.next_id
    for agent in sorted({*view.shelves, *parts}):
        _check_recalled(view, agent, parts[agent])
        shelf = view.shelves.get(agent) or Shelf.empty(view.similarity.width)
        trials = _trials(shelf, parts[agent], view.similarity)
        _count_recalled(counts, parts[agent], trials)
        scored = rescore(shelf.times, shelf.scores, step, trials, rules)
        new = _new_memories(agent, parts[agent], step, next_id)
        next_id += len(new)
        shelves[agent] = _next_shelf(shelf, scored, new, view.similarity, rules, changes, counts)
    counts["memories"] = sum(map(len, shelves.values()))
    return View(step, view.similarity, shelves, next_id), changes, counts


def _judged(episodes: Sequence[Episode]) -> list[tuple[Episode, Bounds]]:
    """Episodes in the order in which they take effect, with the bounds of their questions."""
    names = [(episode.question, episode.name) for episode in episodes]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(
            f"two episodes of one step are called {twice!r:.200} (question, name); give each its own name."
        )
    rewards = defaultdict(list)
    for episode in episodes:
        rewards[episode.question].append(episode.reward)
    limits = {question: bounds(values) for question, values in rewards.items()}
    ordered = sorted(episodes, key=lambda episode: (episode.question, episode.name))
    return [(episode, limits[episode.question]) for episode in ordered]


def _check_recalled(view: View, agent: str, parts: Sequence[Part]) -> None:
    """Refuse ids of other agents. Ids of deleted memories are valid: a trajectory may have begun on an old version."""
    ids = sorted({number for part in parts for number in part.use.recalled})
    foreign = [number for number in ids if not 0 < number < view.next_id]
    for other, shelf in view.shelves.items():
        if other != agent and ids:
            foreign += [number for number, row in zip(ids, shelf.rows_of(ids), strict=True) if row >= 0]
    if foreign:
        raise ValueError(
            f"agent {agent!r} is said to have recalled {foreign[:5]}, which are not memories of its own; "
            "`Use.recalled` takes the ids that `recall` gave for the same agent."
        )


def _count_recalled(counts: dict[str, int], parts: Sequence[Part], trials: Sequence[Trial]) -> None:
    there = [row for trial in trials for row in trial.rows.tolist()]
    counts["recalled"] += len(set(there))
    counts["stale"] += sum(len(part.use.recalled) for part in parts) - len(there)


def _texts(shelf: Shelf, use: Use, rows: np.ndarray) -> list[str]:
    """The texts that line 5 compares: the trajectory's, then those of the memories.

    If the agent called something (tool-call mode), plans are compared, else outputs.
    """
    if use.plan:
        return [" ".join(plan) for plan in (use.plan, *(shelf.texts[row][1] for row in rows))]
    return [use.output, *(shelf.texts[row][2] for row in rows)]


def _trials(shelf: Shelf, parts: Sequence[Part], similarity: Similarity) -> list[Trial]:
    """Lines 4 to 7 for each part."""
    rows = [found[found >= 0] for found in (shelf.rows_of(part.use.recalled) for part in parts)]
    # The part's own text, then those of the memories it recalled; no texts for parts that change nothing.
    texts = [_texts(shelf, part.use, found) if part.side else [] for part, found in zip(parts, rows, strict=True)]
    distinct = list(dict.fromkeys(text for group in texts for text in group))
    vectors = dict(zip(distinct, similarity.encode(distinct), strict=True))
    trials = []
    for part, found, group in zip(parts, rows, texts, strict=True):
        own, others = [vectors[text] for text in group[:1]], [vectors[text] for text in group[1:]]
        cosines = inner(np.stack(others), own[0]).tolist() if others else []
        trials.append(Trial(part.reward, part.limits, found, softmax(cosines)))
    return trials


def _new_memories(agent: str, parts: Sequence[Part], step: int, next_id: int) -> list[Memory]:
    """Lines 1 to 3. Memories are a set of (q, t, P, O, R_M): calls that trajectories share before a fork count once.

    Blank answers are not inserted.
    """
    found: dict[tuple[str, tuple[str, ...], str, float], None] = {}
    for part in parts:
        if part.side > 0 and part.use.output.strip():
            found[(part.use.query, part.use.plan, part.use.output, part.reward)] = None
    return [
        Memory(next_id + number, agent, query, plan, output, step, reward)
        for number, (query, plan, output, reward) in enumerate(found)
    ]


def _next_shelf(
    shelf: Shelf,
    scored: tuple[np.ndarray, np.ndarray],
    new: list[Memory],
    similarity: Similarity,
    rules: Rules,
    changes: Changes,
    counts: dict[str, int],
) -> Shelf:
    """The surviving memories, old and new, with new times and scores. Adds to `changes` and `counts`."""
    old, (times, scores) = len(shelf), scored
    ids = np.concatenate([shelf.ids, np.array([memory.id for memory in new], dtype=np.int64)])
    all_times = np.concatenate([times, np.array([memory.time for memory in new], dtype=np.int64)])
    all_scores = np.concatenate([scores, np.array([memory.score for memory in new])])
    stays, low, surplus = survivors(ids, all_times, all_scores, rules)
    kept = [memory for memory, stay in zip(new, stays[old:], strict=True) if stay]
    vectors = similarity.encode([memory.query for memory in kept])
    changed = stays[:old] & ((times != shelf.times) | (scores != shelf.scores))
    rows = (times[changed].tolist(), scores[changed].tolist(), shelf.ids[changed].tolist())
    changes.scored += zip(*rows, strict=True)
    changes.deleted += shelf.ids[~stays[:old]].tolist()
    changes.inserted += zip(kept, vectors, strict=True)
    counts["inserted"] += len(new)
    counts["deleted_low"] += low
    counts["deleted_full"] += surplus
    if stays[:old].all() and not kept:
        return Shelf(shelf.ids, times, scores, shelf.vectors, shelf.texts)
    texts: list[Text] = [text for text, stay in zip(shelf.texts, stays, strict=False) if stay]
    texts += [(memory.query, memory.plan, memory.output) for memory in kept]
    columns = _kept_columns(shelf.vectors, stays[:old], vectors)
    return Shelf(ids[stays], all_times[stays], all_scores[stays], columns, texts)


def _kept_columns(vectors: np.ndarray, stays: np.ndarray, added: np.ndarray) -> np.ndarray:
    """(width, n') the columns that stay, then the rows of `added`; copied in runs, because few are removed."""
    count = int(stays.sum())
    result = np.empty((len(vectors), count + len(added)), dtype=np.float32)
    edges = np.flatnonzero(np.diff(stays, prepend=False, append=False)).reshape(-1, 2)
    at = 0
    for start, end in edges:
        result[:, at : at + end - start] = vectors[:, start:end]
        at += end - start
    result[:, count:] = added.T
    return result
