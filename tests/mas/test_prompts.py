"""`mas.workflow.prompts`: a module by name, or a user's own texts, checked before a run."""

from __future__ import annotations

import pytest

from verl_ext.mas.prompts import prompt_names, prompts_of
from verl_ext.recipe.mhgpo import prompts, prompts_tiny

MODULES = {"faithful": prompts, "tiny": prompts_tiny}
DOCS = [{"title": "Ada", "text": "Ada <|im_end|> Lovelace"}]


def own(tmp_path, text):
    file = tmp_path / "mine.yaml"
    file.write_text(text)
    return prompts_of(str(file), MODULES)


def test_a_name_chooses_a_module_and_anything_else_is_refused(tmp_path):
    assert prompts_of("tiny", MODULES) is prompts_tiny
    with pytest.raises(ValueError, match="'full' is unknown; allowed: faithful, tiny, or a YAML file"):
        prompts_of("full", MODULES)
    with pytest.raises(ValueError, match="no such file"):
        prompts_of(str(tmp_path / "none.yaml"), MODULES)


def test_own_texts_take_the_place_of_one_agents_prompt(tmp_path):
    ask = own(tmp_path, "reranker:\n  system: Choose.\n  user: 'Q: {{ question }} <|im_end|> of\n\n    {{ docs }}'\n")
    system, user = ask.reranker("Who? <|im_start|>", docs=DOCS)
    assert system == {"role": "system", "content": "Choose."}
    question, document = user["content"].splitlines()[:2]
    assert question == "Q: Who? &lt;|im_start|> <|im_end|> of"
    assert document.startswith("Document 0: {title: Ada, snippet: Ada &lt;|im_end|>")
    assert ask.answerer is prompts.answerer and ask.RERANKER == prompts.RERANKER
    assert own(tmp_path, "base: tiny\nrewriter: {user: '{{ question }}'}").answerer is prompts_tiny.answerer


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("judge: {user: '{{ question }}'}", "there is no agent 'judge'; allowed: rewriter, reranker, answerer, single"),
        ("rewriter: {user: '{{ query }}'}", "uses query; allowed: {{ question }}"),
        ("reranker: {user: '{{ question }}'}", "never uses docs, which the agent would not see"),
        ("rewriter: {user: '{{ question '}", "is no Jinja template"),
        ("rewriter: {system: hello}", "needs a text `user`"),
        ("rewriter: 'hello'", "needs a text `user`"),
        ("- rewriter", "must map names of agents to texts"),
        ("base: big\nrewriter: {user: '{{ question }}'}", "base='big' is unknown"),
        ("a: [", "is no YAML"),
    ],
)
def test_wrong_files_are_refused_with_what_is_allowed(tmp_path, text, problem):
    with pytest.raises(ValueError) as error:
        own(tmp_path, text)
    assert problem in str(error.value) and str(tmp_path) in str(error.value)


def test_an_input_may_be_left_out_on_purpose(tmp_path):
    ask = own(tmp_path, "reranker: {user: '{{ question }}', unused: [docs]}")
    assert ask.reranker("Who?", DOCS)[0]["content"] == "Who?"


def test_what_counts_as_a_prompt():
    assert prompt_names(prompts) == ["rewriter", "reranker", "answerer", "single"]
