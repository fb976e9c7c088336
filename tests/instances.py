"""Instances of every member of every union: contract tests run over them, and fail where one is missing."""

import itertools
from typing import Any

from groundup.corpus.clean import Clean
from groundup.corpus.decontaminate import Decontaminate
from groundup.corpus.dedup.exact import ExactDedup
from groundup.corpus.dedup.near import NearDedup
from groundup.corpus.filters import (
    C4Quality,
    FineWebQuality,
    FixUnicode,
    GopherQuality,
    GopherRepetition,
    Language,
    Length,
    MaskPii,
    NormalizeWhitespace,
    RemoveNotices,
    UrlRules,
)
from groundup.corpus.import_sources import Import
from groundup.corpus.shuffle import Shuffle
from groundup.eval.tasks import (
    ArcChallenge,
    ArcEasy,
    BoolQ,
    HellaSwag,
    Lambada,
    Mmlu,
    OpenBookQa,
    PerplexityTask,
    Piqa,
    SciQ,
    StoryCloze,
    WikiText,
    WinoGrande,
)
from groundup.finetune.dpo import Dpo
from groundup.finetune.grpo import Grpo
from groundup.finetune.pretrain import Pretrain
from groundup.finetune.sft import Sft
from groundup.models import ModelConfig
from groundup.models.gpt2 import GPT2Config
from groundup.models.llama import LlamaConfig
from groundup.models.rope import LinearRopeScaling, Llama3RopeScaling, NoRopeScaling
from groundup.models.stablelm import StableLMConfig
from groundup.train.optim import AdamW, Muon, Sgd
from groundup.train.schedules.constant import Constant
from groundup.train.schedules.cosine import Cosine
from groundup.train.schedules.inverse_sqrt import InverseSqrt
from groundup.train.schedules.linear import Linear
from groundup.train.schedules.warmup import Fraction, Samples, Steps, Tokens
from groundup.train.schedules.wsd import Wsd
from groundup.train.stability.spike_guard import NoSpikeGuard, RollbackGuard, SkipGuard

_SIZES = {"vocab_size": 300, "max_sequence_length": 64, "num_layers": 2, "hidden_size": 32, "ffn_size": 48}

MODELS: dict[str, ModelConfig] = {
    "gpt2": GPT2Config(num_heads=4, **_SIZES),
    "gpt2-erf-untied-biasless": GPT2Config(
        num_heads=4, activation="gelu", tied_embedding=False, bias=False, **_SIZES
    ),
    "llama": LlamaConfig(num_heads=4, num_kv_heads=4, **_SIZES),
    "llama-grouped-tied": LlamaConfig(num_heads=4, num_kv_heads=2, tied_embedding=True, **_SIZES),
    "qwen2-grouped-tied": LlamaConfig(
        num_heads=4,
        num_kv_heads=2,
        tied_embedding=True,
        qkv_bias=True,
        rope_scaling=LinearRopeScaling(factor=4),
        **_SIZES,
    ),
    "stablelm": StableLMConfig(num_heads=4, num_kv_heads=2, rotary_fraction=0.5, linear_bias="qkv", **_SIZES),
}

SCHEDULES = [
    Cosine(min_ratio=0.1),
    Linear(min_ratio=0.0),
    Constant(),
    Wsd(decay_fraction=0.25, min_ratio=0.05),
    Wsd(shape="sqrt"),
    Wsd(shape="cosine", min_ratio=0.1),
    Wsd(shape="exponential"),
    InverseSqrt(min_ratio=0.4),
]
OPTIMIZERS = [AdamW(), AdamW(state_dtype="bf16"), Muon(), Sgd(), Sgd(momentum=0.9)]
FILTERS = [
    *(FixUnicode(), NormalizeWhitespace(), RemoveNotices(), MaskPii(phone=True)),
    *(UrlRules(blocked_domains=("example.com",)), Language(), Language(keep=())),
    *(Length(min_characters=3), Length(min_words=5, max_words=9)),
    *(GopherQuality(), GopherQuality(min_words=2, min_stop_words=0), GopherRepetition()),
    *(C4Quality(), C4Quality(min_sentences=0, terminal_punctuation=False), FineWebQuality()),
]

_OTHERS = [
    *(NoRopeScaling(), LinearRopeScaling(factor=2.0), Llama3RopeScaling(factor=8.0)),
    *(NoSpikeGuard(), SkipGuard(), RollbackGuard()),
    *(Steps(steps=10), Fraction(fraction=0.1), Tokens(tokens=1000), Samples(samples=10)),
    *(PerplexityTask(), PerplexityTask(max_tokens=9, batch_size=2), Lambada(), Lambada(limit=2)),
    *(Import(python_library=True), Clean(filters=tuple(FILTERS)), ExactDedup(), Shuffle(seed=3)),
    *(NearDedup(keep="longest"), Decontaminate(against=("items.jsonl",), report_only=True)),
    *(WikiText(), WikiText(stride=0, max_tokens=9), HellaSwag(), HellaSwag(prompt="plain", batch_size=2)),
    *(Pretrain(), Sft(), Sft(template="chatml", answers="last"), Dpo(), Dpo(loss="ipo", beta=0.5)),
    *(Grpo(reward="exact"), Grpo(reward=("exact", "number"), reward_weights=(1.0, 0.5), group_size=4)),
    *(StoryCloze(), Piqa(), ArcEasy(), ArcChallenge(), OpenBookQa(), BoolQ(), SciQ(), WinoGrande(), Mmlu()),
]

INSTANCES: dict[type, list[Any]] = {}
"""Class -> its instances."""
for _instance in itertools.chain(MODELS.values(), SCHEDULES, OPTIMIZERS, FILTERS, _OTHERS):
    INSTANCES.setdefault(type(_instance), []).append(_instance)
