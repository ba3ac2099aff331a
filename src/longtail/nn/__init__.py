"""Heads, backbones and losses: plain modules and functions that any training loop can use."""
