"""Measuring what a model knows."""
