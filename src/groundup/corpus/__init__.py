"""Text sources -> cleaned, deduplicated, shuffled documents on disk. Imports no torch."""
