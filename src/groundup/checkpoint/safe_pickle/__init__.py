"""Reads files of ``torch.save`` without running anything that they name."""
