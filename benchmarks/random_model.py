"""The GPT-2 of 124M parameters with random weights, in memory."""

from pathlib import Path

from groundup.checkpoint.lazy import LoadedModel
from groundup.models import build_model
from groundup.models.gpt2 import GPT2Config
from groundup.models.init import initialise
from groundup.tokens.tokenizer.bpe import ByteLevelBpe, ByteLevelTokenizer, byte_characters

END = "<|endoftext|>"


def model_of_124m() -> LoadedModel:
    """The model; its tokenizer has as many ids, of which only the number matters."""
    config = GPT2Config(
        vocab_size=50257,
        max_sequence_length=1024,
        num_layers=12,
        hidden_size=768,
        num_heads=12,
        ffn_size=3072,
    )
    model = build_model(config)
    initialise(model, config, seed=0)
    tokens = [*byte_characters(), *(f"w{number}" for number in range(50000))]
    bpe = ByteLevelBpe(
        vocab={token: number for number, token in enumerate(tokens)}, merges=[], specials={END: 50256}
    )
    tokenizer = ByteLevelTokenizer(bpe, end_of_document=END)
    return LoadedModel(config=config, model=model.eval(), tokenizer=tokenizer, source=Path("random"))
