"""groundup: pretrain GPT-class language models from the ground up."""

__version__ = "0.1.0"
