"""Starts the ranks of a run, watches their progress, and names the first failure; imports no torch."""
