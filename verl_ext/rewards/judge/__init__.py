"""A judge: a language model that scores what rules cannot, with cached answers.

judge      `Judge.ask`: one question to the model, its cache, its failures, what it cost
templates  what a judge is asked, and the answers that it may give; a user's own from a file
reading    the JSON that it answers
"""

from verl_ext.rewards.judge.judge import Judge, JudgeFailed, Spent, Verdict, spending
from verl_ext.rewards.judge.templates import TEMPLATES, Template, read_templates

__all__ = ["TEMPLATES", "Judge", "JudgeFailed", "Spent", "Template", "Verdict", "read_templates", "spending"]
