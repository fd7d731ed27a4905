"""DeepAgent: autonomous tool search, tool calls and memory folding in one stream of reasoning."""

from verl_ext.recipe.deepagent.workflow import DeepAgent

__all__ = ["DeepAgent"]
