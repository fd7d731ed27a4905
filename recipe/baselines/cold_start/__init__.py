"""Demonstrations of the baselines, by rule, for +sft=gold.

cot      on GSM8K, from its solutions
acting   ReAct and DFSDT on API-Bank, from its gold calls
"""
