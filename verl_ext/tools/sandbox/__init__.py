"""Programs that models write, run in a sandbox: `run_python` (tool.py), and what it is made of.

tool.py        the tool: settings, cache, counts
report.py      what the model is told
pool.py        programs at a time; a lost server is replaced
forkserver.py  the trainer's side of the server, running.py of one program
jail/          the server, the programs, and their locks

What holds a program, and what does not, is in docs/sandbox.md.
"""

from verl_ext.tools.sandbox.tool import RunPython, run_python

__all__ = ["RunPython", "run_python"]
