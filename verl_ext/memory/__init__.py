"""Memory that evolves with training (JoyAgents-R1, Section 3.3). Imports neither torch nor verl.

store        MemoryStore opens or begins a memory; apply(step, episodes), view(), snapshot, restore
view         View: the memories after one step; recall(agent, query, k) finds the most similar ones
records      Memory; Episode and Use: the trajectories from which a step makes memories
step         one training step: a view and the step's episodes give the next view
evolution    Algorithm 1 in numbers; docs/memory.md explains it and what the paper leaves open
similarity   texts to vectors: hashed n-grams, or a sentence encoder
states       texts to vectors: the hidden states of a frozen language model
database     the SQLite file; read_snapshot reads a checkpoint's
prompt       format_memories: what stands between <memory> and </memory>
"""

from verl_ext.memory.database import read_snapshot
from verl_ext.memory.evolution import Rules
from verl_ext.memory.prompt import format_memories
from verl_ext.memory.records import Episode, Memory, Use
from verl_ext.memory.similarity import EncoderSimilarity, HashingSimilarity, Similarity
from verl_ext.memory.states import HiddenStateSimilarity
from verl_ext.memory.store import MemoryStore
from verl_ext.memory.view import View

__all__ = [
    "EncoderSimilarity",
    "Episode",
    "HashingSimilarity",
    "HiddenStateSimilarity",
    "Memory",
    "MemoryStore",
    "Rules",
    "Similarity",
    "Use",
    "View",
    "format_memories",
    "read_snapshot",
]
