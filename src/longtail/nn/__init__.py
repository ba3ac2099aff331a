"""Heads, backbones and losses: plain modules and functions for any training loop."""
