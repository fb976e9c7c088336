"""What follows pretraining: other data, another loss and other trainable parameters for the same loop."""
