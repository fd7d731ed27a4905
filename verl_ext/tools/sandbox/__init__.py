"""`run_python` (tool.py): runs programs that models write, in a sandbox.

tool.py        the tool: settings, cache, counts
report.py      the answer to the model
pool.py        limits how many programs run at a time; replaces a lost server
forkserver.py  the trainer's side of the server; running.py: of one program
jail/          code of the server's processes: the server, the programs, and their locks

docs/sandbox.md says against what the sandbox protects, and against what not.
"""

from verl_ext.tools.sandbox.tool import RunPython, run_python

__all__ = ["RunPython", "run_python"]
