"""What runs in processes of its own: a server that is locked in, and the programs that it forks.

server.py     takes programs from the trainer, forks, counts, kills, cleans up
program.py    a forked process, until it ends: limits, locks, then the program itself
confine.py    what server and programs are locked with; landlock.py files, seccomp.py system calls, kernel.py the rest

These modules import the standard library and each other alone: the server runs without site-packages.
"""
