"""Is my run right? Measured deviations, and the range in which they are accepted."""
