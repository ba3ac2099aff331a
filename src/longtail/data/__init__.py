"""Data sets: counts, splits, samplers, and one door, `load.load`, to every kind of data."""
