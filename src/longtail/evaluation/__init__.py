"""Accuracy by split and other metrics, the choice of alpha, calibration, and results of runs."""
