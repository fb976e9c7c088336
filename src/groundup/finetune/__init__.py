"""Fine-tuning: other data, another loss, other trainable parameters for the one training loop."""
