"""Check types with mypy (`make lint`): no error in the rooms of CLEAN, and elsewhere no more than ALLOWED."""

import subprocess
import sys

ROOMS = ("algorithms/", "mas/", "rewards/", "sampling/", "settings.py", "storage/")
CLEAN = tuple(f"verl_ext/{room}" for room in ROOMS)
ALLOWED = 139


def main() -> int:
    """Run mypy and compare; the exit status is 1 if a clean room has errors, or if there are more than allowed."""
    mypy = subprocess.run([sys.executable, "-m", "mypy"], capture_output=True, text=True)
    if mypy.returncode not in (0, 1):  # mypy itself failed: its number of errors means nothing
        sys.exit(mypy.stdout + mypy.stderr)
    errors = [line for line in mypy.stdout.splitlines() if ": error: " in line]
    unclean = [line for line in errors if line.startswith(CLEAN)]
    print(*unclean, f"mypy: {len(errors)} errors (allowed: {ALLOWED}); `mypy` lists them", sep="\n")
    return int(bool(unclean) or len(errors) > ALLOWED)


if __name__ == "__main__":
    sys.exit(main())
