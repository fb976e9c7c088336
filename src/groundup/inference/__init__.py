"""Generating text with a model on one device."""
