"""Retrieval: corpora, indexes (BM25, dense), a client of the retrieval server, and the agents' search tool.

open_retriever(config)          index folder | corpus.jsonl | http://host:port | mapping -> Retriever
build_index(corpus, folder)     build and save an index; load_index opens it
SearchTool                      the tool of agents
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
