"""Tiny models with weights that tell: large, random norms and biases, so that a slip shows."""

import dataclasses
from pathlib import Path
from typing import Any

import torch

from groundup.checkpoint.lazy import LoadedModel
from groundup.models import build_model
from groundup.models.init import initialise
from groundup.tokens.tokenizer.bpe import ByteLevelBpe, ByteLevelTokenizer, byte_characters
from tests.instances import MODELS

END = "<|endoftext|>"
NANOGPT: dict[str, Any] = {"activation": "gelu", "ffn_size": 128}
"""Changes to "gpt2" of ``MODELS`` that make it one of nanoGPT's models."""


def tiny_tokenizer() -> ByteLevelTokenizer:
    """300 ids, as many as the models have: all bytes, 43 merges, the end of a document."""
    letters = "abcdefghijklmnopqrstuvwxyz"
    merges = [("Ġ", letter) for letter in letters] + [("e", letter) for letter in letters[:17]]
    tokens = [*byte_characters(), *(left + right for left, right in merges)]
    vocab = {token: number for number, token in enumerate(tokens)}
    bpe = ByteLevelBpe(vocab=vocab, merges=merges, specials={END: len(vocab)})
    return ByteLevelTokenizer(bpe, end_of_document=END)


def tiny_model(name: str, *, seed: int = 0, **changes: Any) -> LoadedModel:
    """One of ``MODELS`` with random weights, perhaps with some settings changed."""
    config = dataclasses.replace(MODELS[name], **{"init_std": 0.3, **changes})
    model = build_model(config)
    initialise(model, config, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
    return LoadedModel(config=config, model=model.eval(), tokenizer=tiny_tokenizer(), source=Path("tiny"))


def spelling_model(text: str, *, ends: bool = False) -> LoadedModel:
    """A model that goes on with a text's next token, in a circle or to its end; its tokens all differ."""
    loaded = tiny_model("gpt2", tied_embedding=False)
    ids = loaded.tokenizer.encode(text)
    assert len(set(ids)) == len(ids)
    following = [*ids[1:], loaded.tokenizer.end_of_document_id if ends else ids[0]]
    model: Any = loaded.model
    with torch.no_grad():
        for parameter in model.layers.parameters():
            parameter.zero_()
        model.embed.positions.weight.zero_()
        model.norm.weight.fill_(1)
        model.norm.bias.zero_()
        model.head.weight.zero_()
        model.head.weight[following] = 10 * model.norm(model.embed.tokens.weight[ids])
    return loaded
