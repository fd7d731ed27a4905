"""`python -m verl_ext`: the console script `verl_ext` where it is not on the PATH."""

import sys

from verl_ext.cli import main

sys.exit(main())
