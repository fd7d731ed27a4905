"""Agent-specific rewards R_spe (MHGPO, Appendix B, after MMOA-RAG): penalties <= 0, and quantities for metrics."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from verl_ext.settings import Settings


class Penalties(Settings):
    """Coefficients and bounds: `mas.workflow.penalties`.

    Attributes:
        too_many_queries: R_spe of a rewriter call with more than `max_queries` queries, repeated ones included.
        per_query: R_spe per query up to that bound. The paper says "proportionally" without a slope; default 0.
        bad_choice: R_spe of a reranker call with a repeated or out-of-range id or unparsable output.
        long_answer: R_spe of an answer of more than `max_answer_words` words. The paper gives no bound.
        unparsable_queries: R_spe of rewriter output without `### … ###`. Not in the paper; default 0, the recipes set
            −0.5: without it a rewriter was seen to drop its format, because the fallback (the question) retrieves well.
    """

    max_queries: int = Field(4, ge=0)
    too_many_queries: float = Field(-0.5, le=0)
    per_query: float = Field(0.0, le=0)
    bad_choice: float = Field(-0.5, le=0)
    max_answer_words: int = Field(16, ge=0)
    long_answer: float = Field(-1.0, le=0)
    unparsable_queries: float = Field(0.0, le=0)

    def rewriter(self, text: str, value: list[str], parsable: bool, /, **_: Any) -> tuple[float, dict[str, float]]:
        """Penalty by the number of queries."""
        number = len(value)
        penalty = self.too_many_queries if number > self.max_queries else self.per_query * number
        return penalty + (0.0 if parsable else self.unparsable_queries), {"queries": float(number)}

    def reranker(self, text: str, value: list[Any], parsable: bool, /, **_: Any) -> tuple[float, dict[str, float]]:
        """Penalty for a choice that is not a list of distinct ids of the candidates."""
        return (0.0 if parsable else self.bad_choice), {"chosen": float(len(value))}

    def answerer(self, text: str, value: str, parsable: bool, /, **_: Any) -> tuple[float, dict[str, float]]:
        """Penalty for an answer that is too long."""
        words = len(value.split())
        return (self.long_answer if words > self.max_answer_words else 0.0), {"words": float(words)}
