"""Megatron-LM's checkpoints: read whatever it wrote, write what it reads, without its code."""
