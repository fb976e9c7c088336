"""Finding documents that the corpus already holds."""
