"""Trainings of variants of the frontier recipe, and its page."""
