"""Demonstrations of the puppeteer.

demonstrations   in tiny worlds, with bad habits: for recipe/cold_start/train.py
gold             on GSM8K, by rule from its solutions: for +sft=gold
"""
