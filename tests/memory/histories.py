"""Histories of a memory: random steps, and Algorithm 1 written down naively, one memory and one float at a time."""

from __future__ import annotations

import hashlib
import math
import random
from collections import defaultdict
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from verl_ext.memory import Episode, Memory, Rules, Use, View
from verl_ext.memory.evolution import bounds

AGENTS, QUERIES = ("master", "math", "expert"), tuple(f"query {number}" for number in range(12))
PLANS = ((), ("search",), ("search", "expert"), ("math",))
OUTPUTS = ("", *(f"output {number}" for number in range(19)))


@lru_cache(maxsize=1000)
def _halves(text: str) -> np.ndarray:
    vector, (signs, place) = np.zeros(8, dtype=np.float32), hashlib.blake2b(text.encode(), digest_size=2).digest()
    if text.strip():
        vector[4 * (place % 2) : 4 * (place % 2) + 4] = [0.5 if signs >> bit & 1 else -0.5 for bit in range(4)]
    return vector


@dataclass(frozen=True)
class Halves:
    """A similarity whose cosines are exact in any order of summation: unit vectors of four entries ±0.5."""

    name: str = "halves"
    width: int = 8

    def encode(self, texts):
        vectors = [_halves(text) for text in texts]
        return np.stack(vectors) if vectors else np.empty((0, self.width), dtype=np.float32)

    def cosine(self, left: str, right: str) -> float:
        """As a sum of Python floats."""
        return float(sum(float(a) * float(b) for a, b in zip(*self.encode([left, right]), strict=True)))


@dataclass
class Naive:
    """The literal algorithm: a dict of memories, loops, no vectors, no database."""

    rules: Rules
    similarity: Halves = field(default_factory=Halves)
    memories: dict[int, dict] = field(default_factory=dict)
    next_id: int = 1

    def recall(self, agent: str, query: str, k: int) -> list[int]:
        if not query.strip():
            return []
        cosines = {
            number: self.similarity.cosine(query, memory["query"])
            for number, memory in self.memories.items()
            if memory["agent"] == agent
        }
        return sorted(cosines, key=lambda number: (-cosines[number], number))[:k]

    def apply(self, t: int, episodes: list[Episode]) -> None:
        rewards = defaultdict(list)
        for episode in episodes:
            rewards[episode.question].append(episode.accuracy + episode.format)
        ordered = sorted(episodes, key=lambda episode: (episode.question, episode.name))
        recalled_by_any, new = set(), []
        for agent in sorted({memory["agent"] for memory in self.memories.values()} | set(AGENTS)):
            for episode in ordered:
                lower, upper = bounds(rewards[episode.question])
                for use in episode.uses:
                    if use.agent == agent:
                        ids = [number for number in use.recalled if number in self.memories]
                        recalled_by_any |= set(ids)
                        new += self._algorithm_1(t, use, ids, episode.accuracy + episode.format, lower, upper)
        for number, memory in self.memories.items():
            if number not in recalled_by_any:
                memory["score"] += self.rules.alpha * -abs(t - memory["time"])
        for memory in dict.fromkeys(new):
            fields = dict(zip(("agent", "query", "plan", "output", "score"), memory, strict=True))
            self.memories[self.next_id] = {**fields, "time": t}
            self.next_id += 1
        self._overflow()

    def _algorithm_1(self, t: int, use: Use, ids: list[int], reward: float, lower: float, upper: float) -> list[tuple]:
        answered = reward > upper and use.output.strip()
        new = [(use.agent, use.query, use.plan, use.output, reward)] if answered else []  # lines 1 to 3
        sims = []
        for number in ids:  # lines 4 to 6
            memory = self.memories[number]
            if use.plan:
                sims.append(self.similarity.cosine(" ".join(use.plan), " ".join(memory["plan"])))
            else:
                sims.append(self.similarity.cosine(use.output, memory["output"]))
        weights = [math.exp(sim - max(sims)) for sim in sims]  # line 7
        shares = [weight / math.fsum(weights) for weight in weights]
        for number, share in zip(ids, shares, strict=True):  # lines 8 to 16
            memory = self.memories[number]
            if reward > upper:
                memory["time"] = t
                delta_t, delta_s = -abs(t - memory["time"]), share * abs(reward - upper)
            elif reward < lower:
                delta_t, delta_s = -abs(t - memory["time"]), -share * abs(reward - lower)
            else:
                continue
            memory["score"] = memory["score"] + self.rules.alpha * delta_t + self.rules.beta * delta_s
        return new

    def _overflow(self) -> None:
        self.memories = {n: memory for n, memory in self.memories.items() if memory["score"] >= self.rules.threshold}
        for agent in {memory["agent"] for memory in self.memories.values()}:
            own = [n for n, memory in self.memories.items() if memory["agent"] == agent]
            own.sort(key=lambda n: (self.memories[n]["score"], self.memories[n]["time"], n), reverse=True)
            for number in own[self.rules.capacity :]:
                del self.memories[number]

    def all(self) -> list[Memory]:
        """As `everything` lists them."""
        return [Memory(id=number, **memory) for number, memory in sorted(self.memories.items())]


def everything(view: View) -> list[Memory]:
    """All memories of a view by id."""
    return sorted((m for agent in view.shelves for m in view.memories(agent)), key=lambda memory: memory.id)


def episodes(rng: random.Random, view: View, step: int, questions: int = 3, size: int = 6, k: int = 3) -> list[Episode]:
    """Random trajectories of a step that recall from `view`; most rewards are alike, so that some stand out."""
    made = []
    for question in range(questions):
        usual = rng.choice([0.0, 1.0, 1.5])
        odd, unusual = rng.randrange(size), rng.choice([0.0, 1.0, 2.0, 4.0, 7.3])
        for number in range(size):
            uses = []
            for agent in rng.sample(AGENTS, rng.randint(0, len(AGENTS))):
                query = rng.choice(QUERIES)
                recalled = tuple(memory.id for memory in view.recall(agent, query, k))
                uses.append(Use(agent, query, rng.choice(PLANS), rng.choice(OUTPUTS), recalled))
            accuracy = unusual if number == odd else usual
            made.append(
                Episode(f"question {question}", f"{step}.{number}", accuracy, rng.choice([0.0, 0.1]), tuple(uses))
            )
    rng.shuffle(made)
    return made
