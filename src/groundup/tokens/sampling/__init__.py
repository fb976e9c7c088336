"""From tokens to samples: splits, blends, orders, packing; and back from a sample to its documents."""
