"""Benchmarks of classifiers: recipes, their price, their trainings and their tables."""
