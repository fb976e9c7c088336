"""Evaluation: loss and perplexity on tokens, and tasks with published definitions."""
