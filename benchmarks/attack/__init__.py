"""The attack: fuzzed inputs, damaged files, killed processes, and long runs."""
