"""groundup's own checkpoints: atomic, verified folders of logical tensors in safetensors files."""
