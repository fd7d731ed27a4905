"""Demonstrations of DeepAgent.

demonstrations   in tiny worlds, with bad habits: for recipe/cold_start/train.py
gold             on API-Bank, by rule from its gold calls: for +sft=gold
"""
