"""`verl_ext plan`: how long a step takes on N devices, and what limits it (docs/plan.md).

__main__   the command line and its tables
options    options of the command line that say what a step does
hardware   peaks of devices, by their makers; this CPU, measured
formulas   the load model: terms in seconds, from tokens, calls and a model's size
workload   what a step does, per sampling strategy, or measured from a run
jobs       from a configuration and the command line to one job per sampling strategy
fit        coefficients by least squares from measured runs; the error for a run left out
policies   a step of several policies, a row for each
steps      its seconds from those of each policy, and the best split of the devices
scale      a step on N devices, shared or split between training and rollout
report     the tables, and what limits a step in words
brief      the seconds of a step in two lines, for `verl_ext check`
"""
