"""Hugging Face folders: GPT-2, Llama, Mistral and Qwen2, as ``transformers`` saves and loads them."""
