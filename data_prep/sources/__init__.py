"""The data sets, one file each: layout, licence, one row, quirks, and how a row becomes a question.

hotpotqa, musique, wiki2multihopqa         for qa.py
toolbench, restbench, api_bank, toolhop    for tools.py
questions                                  all sets of reasoning.py
"""
