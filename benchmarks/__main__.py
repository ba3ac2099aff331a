"""`python -m benchmarks NAME`: run what is missing of a benchmark, then write its table."""

from benchmarks.command import main

main()
