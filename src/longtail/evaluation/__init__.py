"""Accuracy by split, the choice of alpha, and the result of a run."""
