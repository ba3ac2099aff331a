"""The command line: each command is a dataclass of its options."""
