"""The demonstrations that cold starts of the search system train on.

demonstrations   in tiny worlds, with bad habits: for recipe/cold_start/train.py, which makes the shipped tiny model
questions        on real questions, by rule from the gold answers: for +sft=mhgpo_real
single           the single agent on real questions, by the same rule: for +sft=gold
"""
