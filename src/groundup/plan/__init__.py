"""What a run will need, before it takes a GPU: counts and formulas, no tensors and no ranks."""
