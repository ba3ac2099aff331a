"""Benchmarks of time: steps, trainings, predictions and input pipelines."""
