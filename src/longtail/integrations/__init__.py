"""Thin bridges to other trainers; each module imports its framework only when used."""
