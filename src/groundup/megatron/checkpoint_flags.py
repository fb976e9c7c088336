"""The flags of scripts that use a trained model: the server, the evaluation, the converter."""

import argparse
import contextlib
import json
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

from groundup.core.errors import ConfigError, DataError
from groundup.megatron.flag_table import flag_table
from groundup.megatron.script_arguments import ScriptParser
from groundup.megatron.token_files import OF_BARE_IDS, add_tokenizer_flags, named_tokenizer
from groundup.models import ModelConfig

_SHAPE = {
    "num_layers": "num_layers",
    "hidden_size": "hidden_size",
    "ffn_hidden_size": "ffn_size",
    "num_attention_heads": "num_heads",
    "max_position_embeddings": "max_sequence_length",
}
"""Megatron-LM's name -> the model config's."""
BARE_IDS = Path("none")
"""Stands for the tokenizer of a checkpoint whose ids are no text."""
_OF_REQUESTS = ("--out-seq-length", "--temperature", "--top_p", "--top_k")
"""Flags of the original's server that only its requests decide."""
_OF_TASKS = ("--epochs", "--eval-batch-size", "--eval-micro-batch-size", "--activations-checkpoint-method")


def add_model_flags(parser: ScriptParser) -> None:
    """Adds the flags that say which model and where; the checkpoint itself knows the rest."""
    parser.add_argument(
        "--load",
        type=Path,
        required=True,
        help="checkpoints of Megatron-LM or groundup, or a Hugging Face folder",
    )
    parser.add_argument(
        "--tensor-model-parallel-size",
        type=int,
        default=1,
        metavar="N",
        help="whatever the checkpoint has (1)",
    )
    parser.add_argument(
        "--pipeline-model-parallel-size",
        type=int,
        default=1,
        metavar="N",
        help="whatever the checkpoint has (1)",
    )
    add_tokenizer_flags(parser)
    for name in _SHAPE:
        flag = f"--{name.replace('_', '-')}"
        parser.add_argument(flag, type=int, metavar="N", help="may be left out; must be the checkpoint's")
    parser.add_argument("--seq-length", type=int, metavar="N", help="may be left out")
    formats = parser.add_mutually_exclusive_group()
    formats.add_argument("--fp16", action="store_true", help="compute in fp16")
    formats.add_argument("--bf16", action="store_true", help="compute in bf16")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto", help="where to compute")
    parser.add_harmless(*_OF_REQUESTS, *_OF_TASKS)
    _add_training_flags(parser)


def _add_training_flags(parser: ScriptParser) -> None:
    """Takes what the original takes in every script, and refuses what the model cannot be."""
    nargs: dict[str, int | str] = {"set": 0, "unset": 0, "words": "*", "ignored": "?"}
    for name, flag in flag_table().items():
        if flag.refused and flag.unless is None:
            parser.add_refused(name, flag.refused)
        elif not parser.knows(name):
            parser.add_harmless(name, nargs=nargs.get(flag.type, 1))


def layout_settings(given: argparse.Namespace) -> list[str]:
    """Returns the layout as settings of ours."""
    return [
        f"layout.tp={given.tensor_model_parallel_size}",
        f"layout.pp={given.pipeline_model_parallel_size}",
    ]


def precision_of(given: argparse.Namespace) -> Literal["fp32", "bf16", "fp16"]:
    """Returns the format of the matrix products."""
    return "fp16" if given.fp16 else "bf16" if given.bf16 else "fp32"


def dtype_of(given: argparse.Namespace) -> Literal["float32", "bfloat16", "float16"]:
    """Returns the type of the numbers that a server computes with."""
    return "float16" if given.fp16 else "bfloat16" if given.bf16 else "float32"


def require_shape(config: ModelConfig, given: argparse.Namespace) -> None:
    """Refuses flags that describe another model than the checkpoint's.

    Raises:
        ConfigError: Names the first.
    """
    for name, ours in _SHAPE.items():
        wanted, found = getattr(given, name), getattr(config, ours)
        if wanted not in (None, found):
            raise ConfigError(
                f"{name} value from checkpoint ({found}) is not equal to the input argument value ({wanted})",
                where=f"--{name.replace('_', '-')}",
                fix="Leave it out: the checkpoint knows.",
            )


@contextlib.contextmanager
def folder_of_tokenizer(given: argparse.Namespace) -> Iterator[Path | None]:
    """Yields a folder with the tokenizer that the flags name, while entered; None where they name none."""
    if given.tokenizer_type == OF_BARE_IDS:
        yield BARE_IDS
        return
    is_named = given.vocab_file is not None or given.tokenizer_model is not None
    named = named_tokenizer(given) if is_named else None  # else the checkpoint knows its own
    if named is None:
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="groundup-tokenizer-") as folder:
        named[0].save(Path(folder))
        yield Path(folder)


def converter_flags(arguments: Sequence[str]) -> argparse.Namespace:
    """Reads the arguments of checkpoint_util."""
    parser = ScriptParser(
        "checkpoint_util",
        "Write a checkpoint of Megatron-LM for another tensor and pipeline parallelism, and prove that it is"
        " the same model. Reads what `groundup convert` reads: any layout and version, Hugging Face folders,"
        " runs of groundup. The optimizer's state is left out, as the original does; `groundup convert` keeps"
        " it. Often it is not needed: groundup loads any checkpoint into any layout.",
        example="--model-type GPT --load-dir 4x1 --save-dir 1x1 --target-tensor-parallel-size 1"
        " --target-pipeline-parallel-size 1",
    )
    parser.add_argument("--model-type", choices=("GPT",), required=True, help="the one kind here")
    parser.add_argument("--load-dir", type=Path, required=True, help="the checkpoint")
    parser.add_argument("--save-dir", type=Path, required=True, help="the folder to write: new or empty")
    parser.add_argument(
        "--target-tensor-parallel-size", type=int, metavar="N", help="the checkpoint's if left out"
    )
    parser.add_argument(
        "--target-pipeline-parallel-size", type=int, metavar="N", help="the checkpoint's if left out"
    )
    parser.add_argument(
        "--saver",
        choices=("megatron", "core", "mcore"),
        default="megatron",
        help="names: of 2023 or of megatron.core",
    )
    parser.add_argument(
        "--true-vocab-size", type=int, metavar="N", help="ids without padding, where the tokenizer has fewer"
    )
    add_tokenizer_flags(parser)
    parser.add_harmless("--loader", "--megatron-path", "--max-queue-size", "--position-embedding-type")
    parser.add_harmless("--no-checking", nargs=0)
    given = parser.read(arguments)
    if given.vocab_file and not given.merge_file:  # there it only tells how many ids there are
        given.true_vocab_size = given.true_vocab_size or _count_ids(given.vocab_file)
        given.vocab_file = None
    return given


def _count_ids(path: Path) -> int:
    try:
        return len(json.loads(path.read_bytes()))
    except (OSError, ValueError, TypeError) as error:
        raise DataError(f"is no vocabulary ({error})", where=path, fix="Name GPT-2's vocab.json.") from None


def server_flags(arguments: Sequence[str]) -> argparse.Namespace:
    """Reads the arguments of run_text_generation_server."""
    parser = ScriptParser(
        "run_text_generation_server",
        "Serve a model to text_generation_cli: PUT /api at port 5000 of all addresses. A layout of several"
        " ranks is started here, or by torchrun. `groundup serve` is the same server, which speaks OpenAI's"
        " API too.",
        example="--load checkpoints/gpt2_345m --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2"
        " --tokenizer-type GPT2BPETokenizer --vocab-file gpt2-vocab.json --merge-file gpt2-merges.txt --fp16",
    )
    add_model_flags(parser)
    everywhere = "0.0.0.0"  # noqa: S104  # as there
    parser.add_argument("--host", default=everywhere, help="address to listen at (all of the machine's)")
    parser.add_argument("--port", type=int, default=5000, help="5000; 0 takes a free one")
    return parser.read(arguments)


def evaluation_flags(arguments: Sequence[str]) -> argparse.Namespace:
    """Reads the arguments of tasks/main.py."""
    parser = ScriptParser(
        "eval_lambada",
        "Measure a model on LAMBADA or WikiText-103 by the protocol of Megatron-LM's tasks/main.py, and show"
        " predictions beside targets. `groundup eval` knows more tasks.",
        example="--task LAMBADA --valid-data lambada_test.jsonl --strict-lambada --load checkpoints/gpt2_345m"
        " --tokenizer-type GPT2BPETokenizer --vocab-file gpt2-vocab.json --merge-file gpt2-merges.txt",
    )
    parser.add_argument("--task", choices=("LAMBADA", "WIKITEXT103"), required=True)
    parser.add_argument("--valid-data", type=Path, nargs="+", required=True, help="file of the task")
    parser.add_argument(
        "--strict-lambada", action="store_true", help="all tokens of the last word, not the last"
    )
    parser.add_argument(
        "--overlapping-eval", type=int, default=32, help="WIKITEXT103: tokens by which windows advance (32)"
    )
    parser.add_argument("--show", type=int, default=3, help="LAMBADA: items to print (3)")
    add_model_flags(parser)
    return parser.read(arguments)
