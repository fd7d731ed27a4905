"""Scores of final answers and of tool calls, for the rewards of several recipes. Imports neither torch nor verl.

truth          the gold answers of a row of a data set
numbers        numbers in answers, and PAL's tolerance
qa             exact match, token F1, accuracy (gold contained in the answer)
calls          Invocation, a tool call that was made; the gold calls of a task
correctness    which tool calls are correct
gaia           the quasi exact match of GAIA
mathematics    whether two mathematical answers are the same
judge/         a language model that scores what rules cannot; judged: ToolBench's rates and other scores by it
toolbench      the columns of ToolBench's static evaluation
"""
