"""Benchmarks of what longtail adds to other libraries' trainers."""
