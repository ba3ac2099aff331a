"""`python -m benchmarks NAME` runs the missing parts of a benchmark, then writes its table."""

from benchmarks.command import main

main()
