"""Kinds of tokenizers, one module each, and what their files look like."""
