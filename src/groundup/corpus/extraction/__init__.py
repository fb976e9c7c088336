"""From web pages as served to their main text."""
