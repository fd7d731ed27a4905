"""Numbers of the system calls that this package uses, for the two processors that it supports.

x86-64: arch/x86/entry/syscalls/syscall_64.tbl; ARM64: include/uapi/asm-generic/unistd.h, which lacks the older calls.
Both never change.
"""

from __future__ import annotations

import platform
import sys

_X86_64 = """
access 21, alarm 37, brk 12, capset 126, chdir 80, clock_getres 229, clock_gettime 228, clock_nanosleep 230, clone 56,
clone3 435, close 3, close_range 436, dup 32, dup2 33, dup3 292, epoll_create1 291, epoll_ctl 233, epoll_pwait 281,
epoll_wait 232, eventfd2 290, exit 60, exit_group 231, faccessat 269, faccessat2 439, fadvise64 221, fchdir 81,
fcntl 72, fdatasync 75, fstat 5, fsync 74, ftruncate 77, futex 202, getcpu 309, getcwd 79, getdents64 217,
getegid 108, geteuid 107, getgid 104, getitimer 36, getpid 39, getppid 110, getrandom 318, getrusage 98, gettid 186,
gettimeofday 96, getuid 102, ioctl 16, kill 62, landlock_add_rule 445, landlock_create_ruleset 444,
landlock_restrict_self 446, lseek 8, lstat 6, madvise 28, mkdir 83, mkdirat 258, mmap 9, mprotect 10, mremap 25,
msync 26, munmap 11, nanosleep 35, newfstatat 262, openat 257, pause 34, pipe 22, pipe2 293, poll 7, ppoll 271,
prctl 157, pread64 17, prlimit64 302, pselect6 270, pwrite64 18, read 0, readv 19, recvfrom 45, rename 82,
renameat 264, restart_syscall 219, rmdir 84, rseq 334, rt_sigaction 13, rt_sigpending 127, rt_sigprocmask 14,
rt_sigreturn 15, rt_sigsuspend 130, rt_sigtimedwait 128, sched_getaffinity 204, sched_yield 24, seccomp 317,
select 23, sendfile 40, sendto 44, set_robust_list 273, setitimer 38, shutdown 48, sigaltstack 131, socketpair 53,
stat 4, statx 332, sysinfo 99, tgkill 234, time 201, times 100, umask 95, uname 63, unlink 87, unlinkat 263, write 1,
writev 20
"""
_AARCH64 = """
brk 214, capset 91, chdir 49, clock_getres 114, clock_gettime 113, clock_nanosleep 115, clone 220, clone3 435,
close 57, close_range 436, dup 23, dup3 24, epoll_create1 20, epoll_ctl 21, epoll_pwait 22, eventfd2 19, exit 93,
exit_group 94, faccessat 48, faccessat2 439, fadvise64 223, fchdir 50, fcntl 25, fdatasync 83, fstat 80, fsync 82,
ftruncate 46, futex 98, getcpu 168, getcwd 17, getdents64 61, getegid 177, geteuid 175, getgid 176, getitimer 102,
getpid 172, getppid 173, getrandom 278, getrusage 165, gettid 178, gettimeofday 169, getuid 174, ioctl 29, kill 129,
landlock_add_rule 445, landlock_create_ruleset 444, landlock_restrict_self 446, lseek 62, madvise 233, mkdirat 34,
mmap 222, mprotect 226, mremap 216, msync 227, munmap 215, nanosleep 101, newfstatat 79, openat 56, pipe2 59,
ppoll 73, prctl 167, pread64 67, prlimit64 261, pselect6 72, pwrite64 68, read 63, readv 65, recvfrom 207,
renameat 38, restart_syscall 128, rseq 293, rt_sigaction 134, rt_sigpending 136, rt_sigprocmask 135, rt_sigreturn 139,
rt_sigsuspend 133, rt_sigtimedwait 137, sched_getaffinity 123, sched_yield 124, seccomp 277, sendfile 71, sendto 206,
set_robust_list 99, setitimer 103, shutdown 210, sigaltstack 132, socketpair 199, statx 291, sysinfo 179, tgkill 131,
times 153, umask 166, uname 160, unlinkat 35, write 64, writev 66
"""


def table(text: str) -> dict[str, int]:
    """name -> number."""
    return {name: int(number) for name, number in (entry.split() for entry in text.split(","))}


# machine -> (what seccomp calls it, AUDIT_ARCH_* of linux/audit.h; its system calls)
MACHINES = {"x86_64": (0xC000003E, table(_X86_64)), "aarch64": (0xC00000B7, table(_AARCH64))}
# Nothing is known of a 32-bit Python on these machines, whose numbers are others.
MACHINE = platform.machine() if sys.maxsize > 2**32 else "32 bits"
ARCHITECTURE, NUMBERS = MACHINES.get(MACHINE, (0, {}))
