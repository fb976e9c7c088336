"""Megatron-LM's scripts: their arguments as its users type them, in front of our stages."""
