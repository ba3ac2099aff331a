"""Triton kernels, each kept because it makes the detector measurably faster."""
