"""Benchmarks of detectors: recipes, speed, and steps at the full size of LVIS."""
