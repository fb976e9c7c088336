"""``groundup import nanogpt``."""

import tempfile
from pathlib import Path

from groundup.core.errors import ConfigError
from groundup.core.log import logger
from groundup.tokens.dataset.bare_tokens import NAMES, index_bare_tokens, is_bare_tokens
from groundup.tokens.dataset.open import open_source
from groundup.tokens.tokenizer.base import Tokenizer
from groundup.tokens.tokenizer.load_tokenizer import load_tokenizer


def nanogpt(
    path: Path,
    *,
    out: Path | None = None,
    data: Path | None = None,
    tokenizer: Path | None = None,
) -> None:
    """Take over a run or the data of nanoGPT, to go on with here.

    A checkpoint, ckpt.pt, becomes a run folder with its weights, AdamW's moments and count of steps; nothing
    in it is run, and what is written is proved to be the same model. Its tokenizer is that of the meta.pkl
    in data/DATASET beside the checkpoint's folder, as sample.py looks for it, else GPT-2's.

    Data, a folder with train.bin and val.bin, gets an index, a manifest and its tokenizer beside it, or in
    --out; the tokens are not copied. Shards of build-nanogpt (.npy) and llm.c (.bin) need nothing: they are
    checked, and the settings to train on them printed.

    For example:

        groundup import nanogpt data/shakespeare_char
        groundup import nanogpt out-shakespeare-char/ckpt.pt --out runs/shakespeare
        groundup train data.path=data/shakespeare_char data.sequence_length=256 \
start.path=runs/shakespeare start.state=true num_steps=6000 run_dir=runs/more
        groundup import nanogpt edu_fineweb10B

    Args:
        path: A checkpoint or its folder, a folder of data or one of its files, or a shard.
        out: The run folder to write, new; for data the folder to write to, by default its own.
        data: The folder of the data set that a checkpoint was trained on, where it is elsewhere.
        tokenizer: Folder, file or name of another one.
    """
    if data is not None and tokenizer is not None:
        raise ConfigError(
            "the tokenizer is named; data would tell the same", where=f"--data {data}", fix="Leave it out."
        )
    if path.stem in NAMES and is_bare_tokens(path.parent):
        path = path.parent
    if is_bare_tokens(path):
        _import_data(path, out or path, load_tokenizer(tokenizer) if tokenizer else _tokenizer_of_data(path))
        return
    if (path.is_dir() and not (path / "ckpt.pt").is_file()) or path.suffix in (".npy", ".bin"):
        _show_shards(path)
        return
    if out is None:
        raise ConfigError(
            f"where to write {path} to is not given", where="command line", fix="Give --out FOLDER."
        )
    _import_checkpoint(path, out, data, tokenizer)


def _import_checkpoint(path: Path, out: Path, data: Path | None, tokenizer: Path | None) -> None:
    from groundup.checkpoint.nanogpt import load_nanogpt
    from groundup.checkpoint.nanogpt_vocabulary import tokenizer_of_run
    from groundup.cli.convert import convert

    beside = (path if path.is_dir() else path.parent) / "tokenizer"
    if tokenizer is not None or (data is None and beside.is_dir()):
        convert(path, out, to="native", tokenizer=tokenizer)
    else:
        found = tokenizer_of_run(load_nanogpt(path), path, data)
        logger.info("the tokenizer is %s of %d ids", found.kind, found.vocab_size)
        with tempfile.TemporaryDirectory() as folder:
            found.save(Path(folder))
            convert(path, out, to="native", tokenizer=Path(folder))
    print(f"Or: groundup train start.path={out} start.state=true data.path=... num_steps=... run_dir=...")


def _tokenizer_of_data(folder: Path) -> Tokenizer:
    from groundup.checkpoint.nanogpt_vocabulary import META, read_meta

    return read_meta(folder / META) if (folder / META).is_file() else load_tokenizer("gpt2")


def _import_data(folder: Path, out: Path, tokenizer: Tokenizer) -> None:
    for name in NAMES:
        if (source := folder / f"{name}.bin").is_file():
            index_bare_tokens(source, out / name, tokenizer)
            data = open_source(out / name)
            counts = f"{data.num_documents:,} documents, {len(data.tokens):,} tokens"
            print(f"{out / name}: {counts}, {tokenizer.kind}")
    print(f"Next: groundup train data.path={out} ...")


def _show_shards(path: Path) -> None:
    source = open_source(path)
    print(f"{path}: {len(source.tokens):,} tokens of {source.tokens[:0].dtype}, read as they are")
    print(f"Next: groundup train data.path={path} data.tokenizer=gpt2 ... (or the tokenizer that made them)")
