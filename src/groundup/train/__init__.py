"""Training: one loop, and the parts that it reads by name."""
