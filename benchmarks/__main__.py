"""`python -m benchmarks NAME` runs the missing parts of a benchmark, then writes its table."""

import sys

try:
    from benchmarks.command import main
except ModuleNotFoundError as error:
    sys.exit(f"{error}: make .venv/installed, then activate the environment: . .venv/bin/activate")

main()
