"""The command line. Each command is a dataclass of its options."""
