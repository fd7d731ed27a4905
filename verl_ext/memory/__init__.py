"""Memory that evolves with training (JoyAgents-R1, Section 3.3). Neither torch nor verl.

MemoryStore(folder)             opens or begins a memory; apply(step, episodes), view(), snapshot, restore
read_snapshot(folder)           the view in a checkpoint
View.recall(agent, query, k)    the memories most similar to a query, as of one step; can be sent to other processes
format_memories(memories)       what stands between <memory> and </memory>

evolution.py is Algorithm 1, docs/memory.md explains it and what the paper leaves open.
"""

from verl_ext.memory.evolution import Rules
from verl_ext.memory.prompt import format_memories
from verl_ext.memory.records import Episode, Memory, Use
from verl_ext.memory.similarity import EncoderSimilarity, HashingSimilarity, Similarity
from verl_ext.memory.store import MemoryStore, read_snapshot
from verl_ext.memory.view import View

__all__ = [
    "EncoderSimilarity",
    "Episode",
    "HashingSimilarity",
    "Memory",
    "MemoryStore",
    "Rules",
    "Similarity",
    "Use",
    "View",
    "format_memories",
    "read_snapshot",
]
