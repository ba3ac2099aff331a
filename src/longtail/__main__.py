"""`python -m longtail`, as torchrun starts it."""

from longtail.cli.parser import main

main()
