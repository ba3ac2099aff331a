"""Benchmarks of the estimators: embeddings, streams and a million rows."""
