"""Command lines of Megatron-LM's pretrain_gpt become the config that is meant, by its rules and defaults."""

import shlex
from pathlib import Path

import pytest

from groundup.core.config import to_dict
from groundup.core.errors import ConfigError, DataError
from groundup.launch.env import RankInfo
from groundup.megatron.pretrain_gpt import read_pretrain_gpt
from tests.runs import make_data

MODEL = "--num-layers 2 --hidden-size 32 --num-attention-heads 2 --max-position-embeddings 64"
LENGTH = "--micro-batch-size 2 --global-batch-size 8 --train-iters 100 --lr 1e-3 --eval-interval 50"
BASE = f"{MODEL} --seq-length 64 {LENGTH} --save ck --data-path data_text_document"

W1 = """--num-layers 24 --hidden-size 1024 --num-attention-heads 16 --seq-length 1024
--max-position-embeddings 1024 --micro-batch-size 1 --global-batch-size 2 --lr 0.00015
--train-iters 5000 --lr-decay-iters 320000 --lr-decay-style cosine --min-lr 1.0e-5 --weight-decay 1e-2
--lr-warmup-fraction .01 --clip-grad 1.0 --fp16 --data-path data_text_document
--vocab-file data_tokenizer/vocab.json --merge-file data_tokenizer/merges.txt
--split 700,200,100 --log-interval 100 --save-interval 10000 --eval-interval 1000 --eval-iters 10
--distributed-backend nccl --save ck --load ck"""
W2 = """--model-parallel-size 2 --num-layers 24 --hidden-size 1024 --num-attention-heads 16 --batch-size 8
--seq-length 1024 --max-position-embeddings 1024 --train-iters 320000 --save ck --load ck
--train-data data_text_document --lazy-loader --tokenizer-type GPT2BPETokenizer --split 949,50,1
--distributed-backend nccl --lr 0.00015 --lr-decay-style cosine --weight-decay 1e-2 --clip-grad 1.0
--warmup .01 --checkpoint-activations --fp16 --cache-dir cache --num-workers 2"""
W3 = """--tensor-model-parallel-size 1 --pipeline-model-parallel-size 1 --num-layers 12 --hidden-size 768
--num-attention-heads 12 --seq-length 1024 --max-position-embeddings 1024 --micro-batch-size 12
--global-batch-size 192 --lr 0.0005 --train-iters 150000 --lr-decay-iters 150000 --lr-decay-style cosine
--lr-warmup-iters 2000 --weight-decay .1 --adam-beta2 .999 --fp16 --log-interval 10 --save-interval 2000
--eval-interval 200 --eval-iters 10 --vocab-file data_tokenizer/vocab.json
--merge-file data_tokenizer/merges.txt --save ck --load ck --data-path data_text_document
--tensorboard-dir tb"""
W4 = """--tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 --num-layers 32 --hidden-size 4096
--num-attention-heads 32 --ffn-hidden-size 11008 --seq-length 2048 --max-position-embeddings 2048 --swiglu
--normalization RMSNorm --norm-epsilon 1e-5 --use-rotary-position-embeddings --no-position-embedding
--untie-embeddings-and-output-weights --disable-bias-linear --attention-dropout 0.0 --hidden-dropout 0.0
--tokenizer-type Llama2Tokenizer --tokenizer-model data_tokenizer --micro-batch-size 1
--global-batch-size 16 --train-iters 1000 --lr 1e-5 --min-lr 1e-6 --lr-decay-style cosine
--lr-warmup-iters 10 --weight-decay 0.1 --adam-beta2 0.95 --clip-grad 1.0 --bf16 --use-flash-attn
--sequence-parallel --use-distributed-optimizer --recompute-granularity selective --no-load-optim
--no-load-rng --save-interval 500 --eval-iters 0 --data-path data_text_document --save ck"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("megatron")
    make_data(folder)
    return folder


@pytest.fixture(autouse=True)
def _inside(folder, monkeypatch):
    monkeypatch.chdir(folder)


def settings_of(flags: str, *, ranks: int = 1) -> dict:
    """The config as plain values, by dotted keys; one of so many ranks under torchrun."""
    rank = RankInfo(0, 0, ranks, ranks) if ranks > 1 else None
    flat: dict = {}

    def flatten(tree: dict, prefix: str) -> None:
        for key, value in tree.items():
            if isinstance(value, dict) and value:
                flatten(value, f"{prefix}{key}.")
            else:
                flat[prefix + key] = value

    flatten(to_dict(read_pretrain_gpt(shlex.split(flags), rank).config().value), "")
    return flat


WORKFLOWS = {
    "gpt2-345m": (
        W1,
        1,
        {
            "run_dir": "ck/groundup",
            "model.kind": "gpt2",
            "model.num_layers": 24,
            "model.hidden_size": 1024,
            "model.num_heads": 16,
            "model.ffn_size": 4096,
            "model.activation": "gelu_tanh",
            "model.vocab_size": 300,
            "model.dropout": 0.1,
            "model.attention_dropout": 0.1,
            "data.path": "data_text_document",
            "data.tokenizer": "data_tokenizer",
            "data.split": "700,200,100",
            "data.order": "megatron",
            "data.sequence_length": 1024,
            "num_steps": 5000,
            "micro_batch_size": 1,
            "global_batch_size": 2,
            "optimizer.kind": "adamw",
            "optimizer.lr": 0.00015,
            "optimizer.beta1": 0.9,
            "optimizer.beta2": 0.999,
            "optimizer.weight_decay": 0.01,
            "schedule.kind": "cosine",
            "schedule.min_ratio": pytest.approx(1 / 15),
            "schedule_unit": "samples",
            "schedule_steps": 320000,
            "warmup.fraction": 0.01,
            "precision": "fp16",
            "loss_scale.initial": 2.0**32,
            "loss_scale.window": 1000,
            "seed": 1234,
            "clip_grad_norm": 1.0,
            "log.interval": 100,
            "log.style": "megatron_2023",
            "validation.interval": 1000,
            "validation.num_batches": 20,  # 10 iterations of 2 micro-batches
            "checkpoint.interval": 10000,
            "checkpoint.megatron.path": "ck",
            "checkpoint.megatron.dtype": "float16",
            "start.path": None,
        },
    ),
    "gpt2-345m on 4 ranks, 2 x 2": (
        f"{W1} --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2",
        4,
        {
            "layout.dp": 1,
            "layout.tp": 2,
            "layout.pp": 2,
            "layout.pipeline.schedule": "1f1b",
            "checkpoint.megatron.tp": 2,
            "checkpoint.megatron.pp": 2,
        },
    ),
    "gpt2-345m on 4 stages": (
        f"{W1} --pipeline-model-parallel-size 4",
        4,
        {"layout.pp": 4, "layout.pipeline.schedule": "gpipe"},  # of 2 micro-batches
    ),
    "deepspeed": (
        W2,
        2,
        {
            "layout.tp": 2,
            "layout.dp": 1,
            "micro_batch_size": 8,
            "global_batch_size": 8,
            "data.path": "data_text_document",
            "data.split": "949,50,1",
            "warmup.fraction": 0.01,
            "recompute.mode": "full",
            "schedule_steps": 0,
            "schedule.min_ratio": 0.0,
            "checkpoint.interval": 320000,
            "log.style": "megatron",
        },
    ),
    "codeparrot": (
        W3,
        8,
        {
            "layout.dp": 8,
            "model.hidden_size": 768,
            "micro_batch_size": 12,
            "global_batch_size": 192,
            "num_steps": 150000,
            "warmup.steps": 2000,
            "optimizer.weight_decay": 0.1,
            "data.split": "969,30,1",
            "log.tensorboard_dir": "tb",
            "validation.num_batches": 160,
        },
    ),
    "llama-continue": (
        W4,
        8,
        {
            "model.kind": "llama",
            "model.ffn_size": 11008,
            "model.num_kv_heads": 32,
            "model.norm_eps": 1e-5,
            "model.tied_embedding": False,
            "model.dropout": 0.0,
            "layout.dp": 2,
            "layout.zero": 1,
            "precision": "bf16",
            "recompute.mode": "selective",
            "validation.interval": 0,
            "optimizer.beta2": 0.95,
            "data.order": "megatron_core",
            "log.style": "megatron_core",
            "data.tokenizer": "data_tokenizer",
        },
    ),
}
"""Name -> flags as the workflow prints them, ranks that torchrun has started, and settings."""


@pytest.mark.parametrize("name", WORKFLOWS)
def test_the_command_lines_of_the_workflows(name):
    flags, ranks, expected = WORKFLOWS[name]
    found = settings_of(flags, ranks=ranks)
    assert {key: found[key] for key in expected} == expected


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (
            "--swiglu --normalization RMSNorm --position-embedding-type rope --disable-bias-linear"
            " --group-query-attention --num-query-groups 1 --rotary-base 500000 --add-qkv-bias",
            {
                "model.kind": "llama",
                "model.num_kv_heads": 1,
                "model.rope_base": 500000.0,
                "model.qkv_bias": True,
                "model.ffn_size": 64,
                "model.tied_embedding": True,
                "checkpoint.megatron.names": "core",
            },
        ),
        ("--no-bias-gelu-fusion", {"model.activation": "gelu"}),
        ("--no-bias-gelu-fusion --openai-gelu", {"model.activation": "gelu_tanh"}),
        (
            "--ffn-hidden-size 96 --layernorm-epsilon 1e-6 --init-method-std 0.01 --hidden-dropout 0",
            {"model.ffn_size": 96, "model.norm_eps": 1e-6, "model.init_std": 0.01, "model.dropout": 0.0},
        ),
        (
            "--untie-embeddings-and-output-weights --make-vocab-size-divisible-by 64",
            {"model.tied_embedding": False, "checkpoint.megatron.vocab_multiple": 64},
        ),
        (
            "--weight-decay-incr-style cosine --start-weight-decay 0.01 --end-weight-decay 0.1",
            {
                "optimizer.weight_decay_start": 0.01,
                "optimizer.weight_decay": 0.1,
                "optimizer.weight_decay_shape": "cosine",
            },
        ),
        ("--optimizer sgd --sgd-momentum 0.5", {"optimizer.kind": "sgd", "optimizer.momentum": 0.5}),
        ("--rampup-batch-size 2 2 12", {"batch_ramp.start": 2, "batch_ramp.samples": 12}),
        ("--lr-decay-style constant", {"schedule.kind": "constant"}),
        (
            "--lr-decay-style inverse-square-root --min-lr 1e-4",
            {"schedule.kind": "inverse_sqrt", "schedule.min_ratio": 0.1},
        ),
        (
            "--lr-decay-style WSD --lr-wsd-decay-iters 20 --lr-wsd-decay-style minus_sqrt"
            " --lr-warmup-iters 20",
            {"schedule.kind": "wsd", "schedule.decay_fraction": 0.25, "schedule.shape": "sqrt"},
        ),
        (
            "--fp16 --initial-loss-scale 65536 --loss-scale-window 500 --hysteresis 4 --min-loss-scale 2",
            {
                "loss_scale.initial": 65536.0,
                "loss_scale.window": 500,
                "loss_scale.hysteresis": 4,
                "loss_scale.minimum": 2.0,
            },
        ),
        ("--fp16 --loss-scale 128", {"loss_scale.initial": 128.0, "loss_scale.minimum": 128.0}),
        (
            "--recompute-granularity full --recompute-method block --recompute-num-layers 1",
            {"recompute.mode": "full", "recompute.every": 2},
        ),
        ("--recompute-activations", {"recompute.mode": "selective"}),
        (
            "--nproc-per-node 4 --tensor-model-parallel-size 2 --context-parallel-size 2",
            {"layout.dp": 1, "layout.tp": 2, "layout.cp": 2},
        ),
        (
            "--nproc-per-node 4 --data-parallel-sharding-strategy optim_grads",
            {"layout.dp": 4, "layout.zero": 2},
        ),
        (
            "--pipeline-model-parallel-size 2 --num-layers 4 --num-layers-per-virtual-pipeline-stage 1",
            {"layout.pipeline.schedule": "interleaved", "layout.pipeline.stages_per_rank": 2},
        ),
        (
            "--dataloader-type cyclic --reset-position-ids --reset-attention-mask",
            {"data.order": "seeded", "data.mask_documents": True},
        ),
        ("--split 100,0,0", {"validation.interval": 0}),
        ("--eval-iters 3 --full-validation", {"validation.num_batches": 0}),
        (
            "--wandb-project cats --wandb-exp-name tom --wandb-entity zoo --wandb-save-dir logs",
            {"log.wandb": True, "log.project": "cats", "log.run_name": "tom"},
        ),
        ("--wandb-exp-name tom", {"log.wandb": False, "log.project": ""}),
        (
            "--async-save --save-retain-interval 50 --no-save-optim",
            {
                "checkpoint.asynchronous": True,
                "checkpoint.keep_every": 50,
                "checkpoint.megatron.moments": False,
            },
        ),
    ],
)
def test_families_of_flags(flags, expected):
    found = settings_of(f"{BASE} {flags}")
    assert {key: found[key] for key in expected} == expected


def test_lengths_in_samples():
    flags = BASE.replace("--train-iters 100", "--train-samples 805 --lr-decay-samples 1600")
    found = settings_of(f"{flags} --lr-warmup-samples 64")
    assert (found["num_steps"], found["schedule_samples"], found["warmup.samples"]) == (100, 1600, 64)
    assert found["data.planned_samples"] == 805
    assert settings_of(flags.replace(" --lr-decay-samples 1600", ""))["schedule_samples"] == 805


def test_the_global_batch_is_one_micro_batch_of_each_rank():
    flags = BASE.replace(" --global-batch-size 8", "")
    assert settings_of(flags, ranks=4)["global_batch_size"] == 8


def test_blends():
    flags = BASE.replace(
        "--data-path data_text_document", "--data-path 0.3 data_text_document 0.7 data_text_document"
    )
    config = read_pretrain_gpt(flags.split(), None).config().value
    assert {name: (str(one.path), one.weight) for name, one in config.data.sources.items()} == {
        "data_text_document": ("data_text_document", 0.3),
        "data_text_document_2": ("data_text_document", 0.7),
    }


def test_a_blend_without_weights_is_of_the_newer_order():
    flags = BASE.replace("--data-path", "--data-path data_text_document")
    found = settings_of(flags)
    assert (found["data.order"], found["log.style"]) == ("megatron_core", "megatron_2023")
    assert found["data.sources.data_text_document.weight"] == "proportional"


def test_the_generation_can_be_named():
    found = settings_of(f"{BASE} --megatron-version 2026")
    assert (found["data.order"], found["log.style"]) == ("megatron_core", "megatron_core")


def test_data_of_each_split():
    parts = " ".join(f"--{part}-data-path data_text_document" for part in ("train", "valid", "test"))
    flags = BASE.replace("--data-path data_text_document", parts)
    config = read_pretrain_gpt(flags.split(), None).config().value
    assert config.data.split == "1,0,0"
    assert config.validation.interval == 50
    assert [list(part) for part in (config.data.validation, config.data.test)] == [["data_text_document"]] * 2


def test_a_file_with_the_words_of_the_data(tmp_path):
    (tmp_path / "words").write_text("data_text_document\n")
    flags = BASE.replace("--data-path data_text_document", f"--data-args-path {tmp_path / 'words'}")
    assert settings_of(flags)["data.path"] == "data_text_document"


def test_two_files_of_a_tokenizer_in_no_folder_of_their_own(tmp_path):
    for name in ("vocab", "merges"):
        beside = next(Path("data_tokenizer").glob(f"{name}.*"))
        (tmp_path / f"odd-{beside.name}").write_bytes(beside.read_bytes())
    flags = f"{MODEL} --seq-length 64 {LENGTH} --save {tmp_path / 'ck'} --data-path data_text_document"
    files = f"--vocab-file {tmp_path}/odd-vocab.json --merge-file {tmp_path}/odd-merges.txt"
    assert settings_of(f"{flags} {files}")["data.tokenizer"] == str(tmp_path / "ck" / "tokenizer")
    assert (tmp_path / "ck" / "tokenizer" / "tokenizer.json").is_file()
    assert settings_of(f"{flags} {files}")["model.vocab_size"] == 300


@pytest.mark.parametrize("flags", ["--fp8-format hybrid", "--fp8-hybrid --fp8-recipe tensorwise"])
def test_the_hybrid_format_is_fp8(flags):
    assert settings_of(f"{BASE} --bf16 {flags}")["precision"] == "fp8"


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ("--global-batch-size 3", "--global-batch-size 3 is not a multiple of 2 (--micro-batch-size)"),
        ("--train-samples 9", "both of --train-iters and --train-samples given"),
        ("--lr-decay-samples 9", "--train-iters with --lr-decay-samples 9"),
        ("--lr-warmup-fraction 0.1 --lr-warmup-iters 3", "the warm-up is given twice"),
        ("--lr-decay-style exponential", "of 2019"),
        ("--lr-decay-style WSD", "wants --lr-wsd-decay-iters"),
        ("--fp16 --bf16", "--fp16 and --bf16 are both given"),
        ("--bf16 --fp8-format e4m3", "gradients here are e5m2"),
        ("--fp8-format hybrid", "what is not in fp8 is in bf16 here"),
        ("--bf16 --fp8-hybrid --fp8-recipe mxfp8", "a tensor has one scale here"),
        ("--bf16 --fp8-hybrid --tensor-model-parallel-size 2 --nproc-per-node 2", "fp8 needs layout.tp 1"),
        ("--rampup-batch-size 2 2", "It takes start, increment and samples"),
        ("--rampup-batch-size 2 4 10", "leads from 2 past global_batch_size 8"),
        ("--start-weight-decay 0.1", "without --weight-decay-incr-style"),
        ("--vocab-file a", "--vocab-file and --merge-file go together"),
        ("--reset-position-ids", "go together here"),
        ("--tensor-model-parallel-size 2 --nproc-per-node 3", "3 ranks do not divide by tensor 2"),
        ("--train-data-path x", "--data-path and paths of single splits"),
        ("--finetune --load", "--load: expected one argument"),
        ("--disable-bias-linear", "a GPT-2 has biases in its linear layers"),
        ("--qk-layernorm", "qk_layernorm = True is not supported"),
        ("--normalization RMSNorm", "no model of these flags:"),
        ("--seq-length 128", "data.sequence_length 128 is longer than model.max_sequence_length 64"),
        ("--lr-warmup-iters 100", "lower warmup.steps or raise num_steps"),
        ("--adam-beta2 1.5", "--adam-beta2 1.5: optimizer.beta2 = 1.5"),
        ("--optimizer sgd --weight-decay 0.1", "SGD here has none"),
    ],
)
def test_contradictions_are_told_by_the_flags(flags, told):
    with pytest.raises(ConfigError) as found:
        settings_of(f"{BASE} {flags}")
    assert told in str(found.value)


@pytest.mark.parametrize(
    "flag", ["--save ck", "--lr 1e-3", "--micro-batch-size 2", "--num-layers 2", "--seq-length 64"]
)
def test_what_is_missing_is_named(flag):
    with pytest.raises(ConfigError, match=flag.split()[0]):
        settings_of(BASE.replace(flag, ""))


def test_data_that_others_wrote_needs_a_tokenizer_which_is_asked_for_by_flags(tmp_path):
    for ending in ("bin", "idx"):
        (tmp_path / f"data.{ending}").write_bytes(Path(f"data_text_document.{ending}").read_bytes())
    flags = BASE.replace("--data-path data_text_document", f"--data-path {tmp_path}/data")
    with pytest.raises(DataError, match="Name the tokenizer: --vocab-file and --merge-file"):
        settings_of(f"{flags} --tokenizer-type GPT2BPETokenizer")
    assert settings_of(f"{flags} --tokenizer-model data_tokenizer")["model.vocab_size"] == 300
    bare = f"{flags} --tokenizer-type NullTokenizer"
    assert settings_of(f"{bare} --vocab-size 299")["data.tokenizer"] == "none:300"
    assert settings_of(f"{bare} --vocab-size 300 --megatron-version 2026")["model.vocab_size"] == 300
    with pytest.raises(ConfigError, match="NullTokenizer wants --vocab-size"):
        settings_of(bare)


def test_ranks_that_torchrun_started_are_not_started_again():
    with pytest.raises(ConfigError, match="torchrun or srun has started 2 here"):
        settings_of(f"{BASE} --nproc-per-node 4", ranks=2)
