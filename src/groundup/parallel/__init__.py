"""Parallelism over ranks, of which models know nothing."""
