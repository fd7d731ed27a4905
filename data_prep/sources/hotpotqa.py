"""HotpotQA: two-hop questions over Wikipedia (https://hotpotqa.github.io, CC BY-SA 4.0; hub: hotpotqa/hotpot_qa).

    python data_prep/qa.py hotpotqa --output_dir data/hotpotqa
    python data_prep/qa.py hotpotqa --output_dir data/hotpotqa --local_dataset_path hotpot_dev_distractor_v1.json
    python data_prep/qa.py hotpotqa --output_dir data/hotpotqa_levels --split train --per_level 100

One row of the hub's layout, shortened:
    {"id": "5a7613c15542994ccc9186bf", "question": "VIVA Media AG changed it's name in 2004. What does their new acronym
     stand for?", "answer": "Gesellschaft mit beschränkter Haftung", "type": "bridge", "level": "hard",
     "supporting_facts": {"title": ["VIVA Media", "Gesellschaft mit beschränkter Haftung"], "sent_id": [0, 0]},
     "context": {"title": ["Constantin Medien", ...], "sentences": [["Constantin Medien AG (formerly ...) ..."], ...]}}
Its quirk: many answers are "yes" or "no", which the official F1 treats apart (verl_ext/rewards/qa.py); and
sentences begin with a space. The authors' hotpot_train_v1.1.json has "_id" and context [[title, [sentence]]].
The "distractor" configuration is read: 90,447 training and 7,405 validation questions with ten paragraphs each. Level
and type are kept in extra_info. All validation questions are hard, so that a test by level takes training questions
(Smurfs reports 100 of each level, and calls them dev questions).
"""

from verl_ext.data_prep.qa_rows import QASet, parse_hotpot_layout

SOURCE = QASet(
    name="hotpotqa",
    hub="hotpotqa/hotpot_qa",
    hub_config="distractor",
    parse=parse_hotpot_layout,
    exclude="fullwiki",  # the same questions without their gold paragraphs
)
