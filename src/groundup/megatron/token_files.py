"""``preprocess_data.py`` and ``merge_datasets.py``: JSON lines -> .bin and .idx, the same bytes as theirs."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from groundup.core.errors import ConfigError
from groundup.megatron.script_arguments import ScriptParser, policy_of
from groundup.tokens.dataset.merge import merge_tokens
from groundup.tokens.tokenize import build_tokens
from groundup.tokens.tokenizer.base import Tokenizer
from groundup.tokens.tokenizer.huggingface import bos_ids
from groundup.tokens.tokenizer.load_tokenizer import load_gpt2_files, load_tokenizer, tokenizer_folder

_OF_GPT2 = "GPT2BPETokenizer"
OF_BARE_IDS = "NullTokenizer"
_OF_MODEL = ("GPTSentencePieceTokenizer", "Llama2Tokenizer", "HuggingFaceTokenizer", "PretrainedFromHF")
_ABSENT = {
    "BertWordPieceLowerCase": "groundup has no models like BERT",
    "BertWordPieceCase": "groundup has no models like BERT",
    "SentencePieceTokenizer": "it adds ids of T5 to the model's own; a GPT takes GPTSentencePieceTokenizer",
    "TikTokenizer": "give HuggingFaceTokenizer and a folder with tokenizer.json",
}
_SENTENCES = "documents are not cut into sentences: a GPT takes whole ones, BERT and T5 are not here"


def add_tokenizer_flags(parser: ScriptParser) -> None:
    """Adds the flags by which Megatron-LM names a tokenizer."""
    types = [_OF_GPT2, *_OF_MODEL, OF_BARE_IDS]
    parser.add_argument("--tokenizer-type", metavar="TYPE", help=f"one of {', '.join(types)}")
    parser.add_argument("--vocab-file", type=Path, help="GPT-2's vocabulary")
    parser.add_argument("--merge-file", type=Path, help="GPT-2's merges")
    parser.add_argument("--vocab-size", type=int, metavar="N", help="ids of NullTokenizer, without the end")
    parser.add_argument(
        "--tokenizer-model", "--tokenizer-name-or-path", type=Path, metavar="PATH",
        help="SentencePiece's tokenizer.model, or a Hugging Face folder",
    )  # fmt: skip


def named_tokenizer(given: argparse.Namespace) -> tuple[Tokenizer, tuple[int, ...]] | None:
    """Loads the tokenizer that the flags name, with the ids by which that type begins each document.

    Returns:
        None where they name none.

    Raises:
        ConfigError: There is no such type, or its files are not named.
        DataError, MachineError: It cannot be loaded.
    """
    kind = given.tokenizer_type or (_OF_GPT2 if given.vocab_file else None)
    if kind is None:
        return None
    if kind in _ABSENT:
        raise ConfigError(f"{kind} is not taken: {_ABSENT[kind]}", where="--tokenizer-type")
    if kind == _OF_GPT2:
        if (given.vocab_file is None) != (given.merge_file is None):
            raise ConfigError("--vocab-file and --merge-file go together", where=f"--tokenizer-type {kind}")
        files = (given.vocab_file, given.merge_file)
        return (load_gpt2_files(*files) if given.vocab_file else load_tokenizer("gpt2")), ()
    if kind == OF_BARE_IDS:  # the end of a document is one id more, as in 992da75
        if given.vocab_size is None:
            raise ConfigError("of how many ids", where=f"--tokenizer-type {kind}", fix="Add --vocab-size N.")
        return load_tokenizer(f"none:{given.vocab_size + 1}"), ()
    if kind not in _OF_MODEL:
        raise ConfigError(
            f"there is no {kind}",
            where="--tokenizer-type",
            fix=f"Choose {', '.join((_OF_GPT2, *_OF_MODEL))} or {OF_BARE_IDS}.",
        )
    path = given.tokenizer_model
    if path is None:
        raise ConfigError(
            "names no file", where=f"--tokenizer-type {kind}", fix="Add --tokenizer-model PATH."
        )
    tokenizer = load_tokenizer(path)
    if kind == "GPTSentencePieceTokenizer":
        return tokenizer, ()
    if kind == "Llama2Tokenizer":
        begin = tokenizer.special_tokens.get("<s>")
        if begin is None:
            raise ConfigError("has no piece <s> to begin texts with", where=path, fix="Name another type.")
        return tokenizer, (begin,)
    folder = tokenizer_folder(path)
    return tokenizer, bos_ids(folder) if folder else ()


def preprocess_data(arguments: Sequence[str]) -> None:
    """Tokenizes JSON lines."""
    parser = ScriptParser(
        "preprocess_data",
        "Tokenize JSON lines into PREFIX_KEY_document.bin and .idx, the bytes that the original writes, with"
        " a manifest beside them by which training knows the tokenizer. `groundup tokens build` does the"
        " same for more kinds of files, and on many machines. Killed, the same command goes on.",
        example="--input train_data.json --output-prefix my-gpt2 --tokenizer-type GPT2BPETokenizer"
        " --vocab-file gpt2-vocab.json --merge-file gpt2-merges.txt --append-eod --workers 20",
    )
    parser.add_argument(
        "--input", type=Path, nargs="+", required=True, help="JSON lines, .gz and .zst too, a glob"
    )
    parser.add_argument(
        "--json-keys", nargs="+", default=["text"], help="fields; each into files of its own (text)"
    )
    parser.add_argument("--output-prefix", type=Path, required=True, help="beginning of what is written")
    parser.add_argument(
        "--append-eod", action="store_true", help="close each document by the tokenizer's end"
    )
    parser.add_argument("--workers", type=int, default=1, help="processes (1)")
    parser.add_argument("--dataset-impl", choices=("mmap",), default="mmap", help="the one format")
    add_tokenizer_flags(parser)
    parser.add_harmless("--chunk-size", "--log-interval", "--lang", "--partitions")
    parser.add_harmless("--keep-newlines", "--keep-sequential-samples", nargs=0)
    parser.add_refused("--split-sentences", _SENTENCES)
    parser.add_refused("--max-documents", "take the first lines of the input with `head`")
    parser.add_bad_records()
    given = parser.read(arguments)
    if given.workers < 1:
        parser.error(f"--workers {given.workers} is none")
    named = named_tokenizer(given)
    if named is None:
        parser.error("--tokenizer-type is not given")
    tokenizer, begin_ids = named
    sys.stdout.write(f"Vocab size: {tokenizer.vocab_size}\nOutput prefix: {given.output_prefix}\n")
    report = build_tokens(
        given.input,
        given.output_prefix,
        tokenizer,
        keys=given.json_keys,
        append_end_of_document=given.append_eod,
        begin_ids=begin_ids,
        workers=given.workers if given.workers > 1 else 0,  # one is this process
        bad_records=policy_of(given),
    )
    for key, prefix in report.prefixes.items():
        counts = report.counts[key]
        empty = f", {counts.empty_documents:,} empty ones left out" if counts.empty_documents else ""
        state = " (was there already)" if report.reused else ""
        sys.stdout.write(
            f"{prefix}: {counts.documents:,} documents, {counts.tokens:,} tokens{empty}{state}\n"
        )


def merge_datasets(arguments: Sequence[str]) -> None:
    """Merges token files."""
    parser = ScriptParser(
        "merge_datasets",
        "Merge the .bin and .idx of a folder, in the order of their names.",
        example="--input parts --output-prefix data/all",
    )
    parser.add_argument("--input", type=Path, required=True, help="the folder")
    parser.add_argument("--output-prefix", type=Path, required=True, help="beginning of what is written")
    given = parser.read(arguments)
    report = merge_tokens([given.input], given.output_prefix)
    sys.stdout.write(f"{report.prefix}: {report.num_documents:,} documents, {report.num_tokens:,} tokens\n")
