"""Opens a source of tokens by the splits that the names of its files tell."""

from pathlib import Path

from groundup.core.errors import DataError
from groundup.tokens.dataset.flat import FlatShards
from groundup.tokens.dataset.open import open_shards, open_source, shards_by_split
from groundup.tokens.dataset.token_source import TokenSource
from groundup.tokens.sampling.data_config import DataConfig
from groundup.tokens.tokenizer.load_tokenizer import load_tokenizer


def open_by_split(config: DataConfig, path: Path) -> dict[str, TokenSource]:
    """The source of each split where the names of its files say so, else one under "all"."""
    by_split = shards_by_split(path)
    if len(by_split) == 1:
        return {"all": _with_documents(config, open_source(path))}
    return {
        name: _with_documents(config, open_shards(files, name=f"{path} ({name} files)"))
        for name, files in by_split.items()
    }


def _with_documents(config: DataConfig, source: TokenSource) -> TokenSource:
    if not len(source.tokens):
        raise DataError("holds no tokens", where=source.name, fix="Leave it out, or build it again.")
    if isinstance(source, FlatShards) and (config.tokenizer or config.opening_id is not None):
        opening = config.opening_id
        if opening is None and config.tokenizer:
            opening = load_tokenizer(config.tokenizer).end_of_document_id
        paths = [shard.path for shard in source.shards]
        return FlatShards(paths, end_of_document_id=opening, name=source.name)
    return source
