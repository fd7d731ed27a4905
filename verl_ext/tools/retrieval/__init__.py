"""Retrieval: corpora, indexes (BM25, dense), a client of the retrieval server, and the agents' search tool.

search      SearchTool, search_tool: the tool of agents
open        open_retriever(config): index folder | corpus.jsonl | http://host:port | mapping -> Retriever
types       Passage, Hit, Retriever
corpus      reads corpora
index       build_index, load_index: an index in a folder
bm25, dense    the two backends; bm25f: BM25 over fields; vectors: embeddings on disk
batching    concurrent searches as one call of the retriever
client      the client of ../retrieval_server.py
measure     a program that measures recall, speed and cost; recall, targets: its parts
"""

from verl_ext.tools.retrieval.batching import BatchedRetriever
from verl_ext.tools.retrieval.client import HttpRetriever
from verl_ext.tools.retrieval.corpus import load_corpus
from verl_ext.tools.retrieval.index import build_index, build_retriever, load_index
from verl_ext.tools.retrieval.open import RetrieverConfig, open_retriever
from verl_ext.tools.retrieval.search import SearchTool, search_tool
from verl_ext.tools.retrieval.types import Hit, Passage, Retriever

__all__ = [
    "BatchedRetriever",
    "Hit",
    "HttpRetriever",
    "Passage",
    "Retriever",
    "RetrieverConfig",
    "SearchTool",
    "build_index",
    "build_retriever",
    "load_corpus",
    "load_index",
    "open_retriever",
    "search_tool",
]
