"""Documents to memory-mapped tokens: tokenizers, Megatron's .bin/.idx, and samples in a seeded order."""
