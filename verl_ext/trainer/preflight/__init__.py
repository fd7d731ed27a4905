"""Checks of a run before it starts. They load no model and start no Ray; an error is a `ValueError` with a remedy.

composing     composes the configuration; explains Hydra's errors by the closest known name
values        verl's own settings: are the keys known, the types right, the names known?
checks        the system and its training, tools, the judge
machine       what this machine has: packages, GPUs, logical CPUs
paths         models and the output folder
algorithm     does `algorithm.adv_estimator` fit the system and its sampling?
data          do the data files have verl's schema, and enough rows?
plan          `verl_ext check`: what a run would do, and what it lacks
fitting       do rows fit into the token limits, and models into a GPU?
gpu_memory    estimates the memory that a run needs on each GPU
"""
