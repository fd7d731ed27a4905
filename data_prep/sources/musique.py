"""MuSiQue: questions of two to four hops (https://github.com/StonyBrookNLP/musique, CC BY 4.0; hub:
dgslibisey/MuSiQue, the answerable set).

    python data_prep/qa.py musique --output_dir data/musique

One row of musique_ans_v1.0_train.jsonl, shortened:
    {"id": "4hop1__709382_146811_31223_91015", "question": "How many Publix stores are in the state that borders the
     east of the state where Hello Love's performer lived in when he died?", "answer": "35", "answer_aliases": [],
     "answerable": true, "paragraphs": [{"idx": 0, "title": "Publix", "paragraph_text": "Publix stands as one of ...",
     "is_supporting": false}, ...], "question_decomposition": [...]}
Its quirk: answers have aliases, and "musique_full" repeats every question in an unanswerable form; those rows have no
accepted answer and are refused.
"""

from typing import Any

from verl_ext.data_prep.qa_rows import QARow, QASet, make_row, paragraphs_of
from verl_ext.data_prep.rows import list_field, text_field


def parse(row: dict[str, Any], where: str) -> QARow | None:
    """The authors' layout, see above. None for an unanswerable row. Raises ValueError."""
    if row.get("answerable") is False:
        return None
    paragraphs = paragraphs_of(row, "paragraph_text", where)
    supporting = [bool(item.get("is_supporting")) for item in list_field(row, "paragraphs", where, optional=True)]
    titles = [title for (title, _), gold in zip(paragraphs, supporting, strict=True) if gold]
    answers = [text_field(row, "answer", where), *list_field(row, "answer_aliases", where, optional=True)]
    return make_row(row, where, answers, titles, paragraphs, row.get("id"))


SOURCE = QASet("musique", hub="dgslibisey/MuSiQue", hub_config=None, parse=parse, exclude="musique_full|singlehop")
