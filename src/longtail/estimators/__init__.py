"""Scikit-learn classifiers around the heads, for features that exist already."""
