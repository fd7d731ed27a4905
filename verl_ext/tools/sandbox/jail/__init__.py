"""Code of the server's process, which locks itself in, and of the programs that it forks.

server.py     receives programs from the trainer, forks, counts, kills, cleans up (folders.py)
program.py    a forked process: sets limits (limits.py) and locks, then runs the program
confine.py    the server's locks; landlock.py: files, seccomp.py: system calls (syscalls.py), kernel.py: the rest

These modules import only the standard library and each other, because the server runs without site-packages.
"""
