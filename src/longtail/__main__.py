"""`python -m longtail`, as torchrun starts it."""

from longtail.cli import main

main()
