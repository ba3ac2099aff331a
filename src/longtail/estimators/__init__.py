"""Scikit-learn classifiers that train a head on given features."""
