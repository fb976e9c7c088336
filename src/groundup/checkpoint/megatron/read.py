"""Opens checkpoints of Megatron-LM."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from groundup.checkpoint.companions import Companions, read_companions, require_agreement
from groundup.checkpoint.families import family_of
from groundup.checkpoint.lazy import LazyModel, LazyTensor, NoTokenizer, in_memory
from groundup.checkpoint.megatron.args import (
    DEFAULT_MULTIPLE,
    NULL_TOKENIZER,
    count_layers,
    model_config,
    null_vocab_size,
    plain_args,
    true_vocab_size,
)
from groundup.checkpoint.megatron.loss_scale import read_loss_scale
from groundup.checkpoint.megatron.merge_ranks import Stage, merge
from groundup.checkpoint.megatron.optimizer import (
    ENTRIES,
    Chunks,
    has_optimizer,
    read_masters,
    read_optimizer,
)
from groundup.checkpoint.megatron.parameters import CURRENT_VERSION, EMBEDDING, HEAD, canonical_tensors
from groundup.checkpoint.megatron.ranks import RankGrid, checkpoint_folder, is_distributed, open_ranks
from groundup.checkpoint.megatron.torch_dist import open_distributed
from groundup.core.errors import CheckpointError
from groundup.core.log import logger
from groundup.models import ModelConfig
from groundup.tokens.tokenizer.base import Tokenizer
from groundup.tokens.tokenizer.huggingface import bos_ids
from groundup.tokens.tokenizer.load_tokenizer import load_gpt2_files, load_tokenizer, tokenizer_folder

TOKENIZER = "tokenizer"
"""The folder in which ``write_megatron`` puts it, beside the tracker file."""


def open_megatron(
    path: Path,
    *,
    tokenizer: Tokenizer | None = None,
    vocab_size: int | None = None,
    moments: bool = False,
) -> LazyModel:
    """Opens a checkpoint of any version, tensor and pipeline parallelism; nothing in it is run.

    Args:
        path: A folder of checkpoints (the tracker file chooses), or one of them.
        tokenizer: Of the model; by default the one beside the checkpoint, or that its args name.
        vocab_size: The true vocabulary; by default the tokenizer's.
        moments: Whether to open the optimizer's too. Its weights in fp32 are always preferred.

    Raises:
        CheckpointError: Files are missing, damaged or of different checkpoints; a feature of the model is
            not supported; names, shapes or the vocabulary do not fit.
        NoTokenizer: There is none.
    """
    folder = checkpoint_folder(path)
    if is_distributed(folder):
        distributed = open_distributed(folder)
        if moments:
            logger.info("%s: moments of the torch_dist format are not read, only weights", folder)
        stage = Stage(
            paths=[folder],
            chunks=[distributed.tensors],
            first_layer=0,
            num_layers=count_layers(distributed.tensors, folder),
        )
        opening = _Opening(
            path, folder, distributed.args, distributed.content, CURRENT_VERSION, tokenizer, vocab_size
        )
        return opening.model([stage])
    grid = open_ranks(folder)
    ranks = [rank for stage in grid.ranks for rank in stage]
    parameters = {rank.path: [canonical_tensors(chunk) for chunk in rank.chunks] for rank in ranks}
    first = grid.first
    opening = _Opening(path, folder, first.args, first.content, first.version, tokenizer, vocab_size)
    model = opening.model(list(_stages(grid, parameters)))  # names and shapes are checked by that
    if not has_optimizer(first):
        return model
    masters = {rank.path: read_masters(rank, parameters[rank.path]) for rank in ranks}
    if all(masters.values()):
        model = opening.model(list(_stages(grid, masters)))
    if not moments:
        return model
    found = {rank.path: read_optimizer(rank, parameters[rank.path]) for rank in ranks}
    step = found[first.path].step or model.step
    kept = {f"{name}/step": in_memory(torch.tensor(float(step))) for name in model.weights}
    for entry in ENTRIES:
        stages = list(_stages(grid, {path: rank.entries[entry] for path, rank in found.items()}))
        if model.config.tied_embedding:  # the moments of the two copies are the same, or nearly
            stages[-1] = _without_head(stages[-1])
        tensors = opening.merged(stages, model.config)
        kept |= {f"{name}/{entry}": tensor for name, tensor in tensors.items()}
    return dataclasses.replace(model, moments=kept)


@dataclasses.dataclass(frozen=True)
class _Opening:
    """What is known of a checkpoint before its model is."""

    path: Path
    folder: Path
    args: Mapping[str, Any]
    content: Mapping[str, Any]
    version: float
    tokenizer: Tokenizer | None
    vocab_size: int | None

    def model(self, stages: list[Stage]) -> LazyModel:
        first = stages[0].chunks[0]
        if EMBEDDING not in first:
            raise CheckpointError(
                f"has no {EMBEDDING}: not a language model's first stage", where=stages[0].paths[0]
            )
        tokenizer = self.tokenizer or _tokenizer_of(self.args, self.path, self.folder)
        beside = _folder_of_tokenizer(self.path, self.folder)
        companions = read_companions(beside) if beside else Companions()
        if self.tokenizer is not None:
            companions = companions.with_tokenizer_of(Companions())
        tp = len(stages[0].chunks)
        config = model_config(
            self.args,
            first,
            num_layers=stages[-1].first_layer + stages[-1].num_layers,
            vocab_size=true_vocab_size(
                rows=_rows(stages),
                tp=tp,
                multiple=self.args.get("make_vocab_size_divisible_by") or DEFAULT_MULTIPLE,
                tokenizer_size=tokenizer.vocab_size,
                stated=self.vocab_size or self.args.get("true_vocab_size") or null_vocab_size(self.args),
                where=self.folder,
            ),
            tp=tp,
            where=stages[0].paths[0],
        )
        require_agreement(companions, tokenizer, config.vocab_size, self.folder)
        return LazyModel(
            config=config,
            weights=self.merged(stages, config),
            tokenizer=tokenizer,
            source=self.folder,
            step=int(self.content.get("iteration") or 0),
            samples=int(self.args.get("consumed_train_samples") or 0),
            updated_samples=_updated_samples(self.content),
            bos_ids=bos_ids(beside) if beside else (),
            companions=companions,
            megatron_args=plain_args(self.args),
            loss_scale=read_loss_scale(self.content),
        )

    def merged(self, stages: list[Stage], config: ModelConfig) -> dict[str, LazyTensor]:
        if not self.args.get("add_bias_linear", True) and family_of(config).megatron.linear_biases:
            stages = [_with_zero_biases(stage) for stage in stages]
        return merge(stages, config, version=self.version, rows=_rows(stages))


def _updated_samples(content: Mapping[str, Any]) -> int | None:
    """Samples by which the schedules have advanced: those of skipped iterations do not count."""
    scheduler = content.get("opt_param_scheduler")
    found = scheduler.get("num_steps") if isinstance(scheduler, dict) else None
    return found if type(found) is int and found >= 0 else None


def _rows(stages: Sequence[Stage]) -> int:
    return sum(chunk[EMBEDDING].shape[0] for chunk in stages[0].chunks)


def _stages(grid: RankGrid, tensors: Mapping[Path, Chunks]) -> Iterator[Stage]:
    """The parts of the model in the order of their layers: under a virtual pipeline a rank holds several."""
    first_layer = 0
    for number in range(len(grid.first.chunks)):
        for ranks in grid.ranks:
            chunks = [
                {name: in_memory(tensor) for name, tensor in tensors[rank.path][number].items()}
                for rank in ranks
            ]
            num_layers = count_layers(chunks[0], ranks[0].path)
            yield Stage(
                paths=[rank.path for rank in ranks],
                chunks=chunks,
                first_layer=first_layer,
                num_layers=num_layers,
            )
            first_layer += num_layers


def _with_zero_biases(stage: Stage) -> Stage:
    """Adds the biases that --disable-bias-linear left out: our GPT-2 has them in all layers or in none."""
    chunks = []
    for chunk in stage.chunks:
        biases = {
            name.replace(".weight", ".bias"): in_memory(torch.zeros(tensor.shape[0], dtype=tensor.dtype))
            for name, tensor in chunk.items()
            if ".linear_" in name and name.endswith(".weight")
        }
        chunks.append({**biases, **chunk})  # --add-qkv-bias keeps some
    return dataclasses.replace(stage, chunks=chunks)


def _without_head(stage: Stage) -> Stage:
    chunks = [{name: tensor for name, tensor in chunk.items() if name != HEAD} for chunk in stage.chunks]
    return dataclasses.replace(stage, chunks=chunks)


def _tokenizer_of(args: Mapping[str, Any], *folders: Path) -> Tokenizer:
    """The tokenizer in one of the folders, or else the one whose files the args name.

    Raises:
        NoTokenizer: There is none: another would give wrong ids without a word.
    """
    if beside := _folder_of_tokenizer(*folders):
        return load_tokenizer(beside)
    vocab_file, merge_file, model = (args.get(key) for key in ("vocab_file", "merge_file", "tokenizer_model"))
    if vocab_file and merge_file and Path(vocab_file).is_file() and Path(merge_file).is_file():
        return load_gpt2_files(Path(vocab_file), Path(merge_file))
    if model and Path(model).exists():
        return load_tokenizer(Path(model))
    if args.get("tokenizer_type") == NULL_TOKENIZER:
        raise NoTokenizer(
            "was trained on bare ids (NullTokenizer)",
            where=folders[0],
            fix="Say that they stay bare: --tokenizer none; or name the tokenizer that they are of.",
        )
    named = " and ".join(str(name) for name in (vocab_file, merge_file, model) if name)
    raise NoTokenizer(
        f"has no tokenizer beside it; its args name {args.get('tokenizer_type', 'none')}"
        + (f" of {named}, not on this machine" if named else ""),
        where=folders[0],
        fix="Name it: --tokenizer FOLDER (GPT-2's own: --tokenizer gpt2).",
    )


def _folder_of_tokenizer(*folders: Path) -> Path | None:
    """The folder in or beside a checkpoint that has a tokenizer; None where none has."""
    for folder in folders:
        for place in (folder / TOKENIZER, folder, folder.parent / TOKENIZER):
            if found := tokenizer_folder(place):
                return found
    return None
