"""From tokens to samples: splits, mixtures, orders, packing; and back from a sample to its documents."""
