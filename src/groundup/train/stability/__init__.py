"""Stability of training: loss spikes, NaN, out of memory, step dumps and their replay."""
