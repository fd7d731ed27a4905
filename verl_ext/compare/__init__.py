"""`verl_ext compare`: trains several methods on the same questions, seeds and budgets, and reports them side by side.

__main__    the command line
study       a study: what is compared, read from a YAML file (configs/compare)
launcher    runs what is missing, several runs at a time
measure     from the logs of the runs to scores, costs and curves
report      report.md and results.json; figures: the pictures
overlay     the same for finished runs, wherever they lie
"""
