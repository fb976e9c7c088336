"""Checks of runs and conversions: measured deviations, and the range in which they are accepted."""
