"""Models on disk: groundup's own checkpoints, and the formats of others."""
