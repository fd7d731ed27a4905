"""Capitals of invented countries: a reader looks one up in an atlas, a checker confirms it.

workflow    Capitals: the agents, the tool, the reward
data        ensure: makes the questions
configs/recipe/capitals.yaml    the recipe: +recipe=capitals
"""
