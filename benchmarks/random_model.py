"""Models of known shapes with random weights, in memory."""

from pathlib import Path

from groundup.checkpoint.lazy import LoadedModel
from groundup.models import ModelConfig, build_model
from groundup.models.gpt2 import GPT2Config
from groundup.models.init import initialise
from groundup.models.llama import LlamaConfig
from groundup.tokens.tokenizer.bpe import ByteLevelBpe, ByteLevelTokenizer, byte_characters

END = "<|endoftext|>"


_GPT2 = {"vocab_size": 50257, "max_sequence_length": 1024}
SHAPES: dict[str, ModelConfig] = {
    "gpt2-124m": GPT2Config(num_layers=12, hidden_size=768, num_heads=12, ffn_size=3072, **_GPT2),
    "gpt2-345m": GPT2Config(num_layers=24, hidden_size=1024, num_heads=16, ffn_size=4096, **_GPT2),
    "llama-1b": LlamaConfig(
        vocab_size=128256,
        max_sequence_length=4096,
        num_layers=16,
        hidden_size=2048,
        num_heads=32,
        num_kv_heads=8,
        ffn_size=8192,
        rope_base=500000.0,
        tied_embedding=True,
    ),
}


def random_model(name: str) -> LoadedModel:
    """A model of ``SHAPES``; its tokenizer has as many ids, of which only the number matters."""
    config = SHAPES[name]
    model = build_model(config)
    initialise(model, config, seed=0)
    tokens = [*byte_characters(), *(f"w{number}" for number in range(config.vocab_size - 257))]
    bpe = ByteLevelBpe(
        vocab={token: number for number, token in enumerate(tokens)},
        merges=[],
        specials={END: config.vocab_size - 1},
    )
    tokenizer = ByteLevelTokenizer(bpe, end_of_document=END)
    return LoadedModel(config=config, model=model.eval(), tokenizer=tokenizer, source=Path("random"))


def model_of_124m() -> LoadedModel:
    """The GPT-2 of 124M parameters."""
    return random_model("gpt2-124m")
