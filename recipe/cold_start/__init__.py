"""Trains the tiny models of the CPU recipes, recipe/*/assets/tiny_model. Not part of the installed package.

gold        demonstrations by rule from a benchmark's gold, for small real models (+sft=gold)
gsm8k       GSM8K's solutions, for such rules

train       the command: tokenizer, then demonstrations without and with habits
registry    the worlds of train: their words, demonstrations, and the system that evaluates the model
teacher     Teacher makes demonstrations; Shares: which share of them is wrong, by kind of error
evaluate    runs a system with a tiny model, without verl
"""
