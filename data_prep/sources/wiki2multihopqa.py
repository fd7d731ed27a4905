"""2WikiMultihopQA: two-hop and comparison questions built from Wikidata (https://github.com/Alab-NII/2wikimultihop,
Apache-2.0; hub: framolfese/2WikiMultihopQA, a parquet copy; the older copy xanhho/2WikiMultihopQA is a loading script,
which `datasets` no longer runs, but its parquet files can be given as --local_dataset_path).

    python data_prep/qa.py 2wikimultihopqa --output_dir data/2wikimultihopqa

One row of the authors' dev.json, shortened:
    {"_id": "8813f87c0bdd11eba7f7acde48001122", "type": "compositional",
     "question": "Who is the mother of the director of film Polish-Russian War (Film)?",
     "context": [["Xawery Żuławski", ["Xawery Żuławski (born 22 December 1971 in Warsaw) is a Polish film director.",
                                      "In 1995 he graduated National Film School in Łódź.", ...]], ...],
     "supporting_facts": [["Polish-Russian War (film)", 1], ["Xawery Żuławski", 2]], "answer": "Małgorzata Braunek"}
Its quirk: sentences do not begin with a space (HotpotQA's do), the test split has no answers, and some copies store
context and supporting_facts as JSON text.
"""

from verl_ext.data_prep.qa_rows import QASet, parse_hotpot_layout

SOURCE = QASet("2wikimultihopqa", hub="framolfese/2WikiMultihopQA", hub_config=None, parse=parse_hotpot_layout)
