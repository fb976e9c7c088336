"""Each checkpoint of a run a second time, as Megatron-LM's, for those who go on with its tools."""

import dataclasses
import shutil
from pathlib import Path
from typing import Any

from groundup.checkpoint.lazy import DtypeName, in_dtype, torch_dtype, without_moments
from groundup.checkpoint.megatron.args import DEFAULT_MULTIPLE
from groundup.checkpoint.megatron.parameters import Naming
from groundup.checkpoint.megatron.ranks import TRACKER
from groundup.checkpoint.megatron.read import TOKENIZER
from groundup.checkpoint.megatron.write import write_megatron
from groundup.checkpoint.native.model import open_native
from groundup.core.config import config
from groundup.core.config_class import Positive
from groundup.core.errors import MachineError
from groundup.core.files import atomic_write, fsync_dir
from groundup.core.log import logger

_UNFINISHED = ".groundup-copy"
_REPLACED = ".groundup-replaced"


@config
class MegatronCopies:
    """What is written for Megatron-LM whenever the run saves.

    Attributes:
        path: Folder of the ``iter_NNNNNNN`` folders, which all stay, and of the tracker file; None for none.
        tp: Tensor parallelism of the Megatron-LM that will read them.
        pp: Pipeline stages of the same.
        names: Of the parameters: legacy (until 2024), core (megatron.core) or core-fused.
        dtype: Of the weights; beside 16-bit ones the weights in fp32 are kept with AdamW's moments.
        moments: Keep AdamW's moments, under the legacy names.
        vocab_multiple: The vocabulary is padded to a multiple of this times ``tp``.
    """

    path: Path | None = None
    tp: Positive = 1
    pp: Positive = 1
    names: Naming = "legacy"
    dtype: DtypeName = "float32"
    moments: bool = True
    vocab_multiple: Positive = DEFAULT_MULTIPLE

    def write(self, checkpoint: Path) -> None:
        """Writes a native checkpoint for Megatron-LM; the tracker names it when it is complete.

        Raises:
            ConfigError: The model does not divide into ``tp`` or ``pp``.
            CheckpointError: A weight does not fit the dtype.
            MachineError: The disk is too small or the files cannot be written.
        """
        assert self.path is not None, "nothing is written without a folder"
        stored = open_native(checkpoint)
        if not stored.step:
            return
        args: dict[str, Any] = {**stored.megatron_args, "make_vocab_size_divisible_by": self.vocab_multiple}
        stored = dataclasses.replace(stored, megatron_args=args)
        if not self.moments:
            stored = without_moments(stored)
        temporary = self.path / _UNFINISHED
        shutil.rmtree(temporary, ignore_errors=True)
        written = write_megatron(
            in_dtype(stored, torch_dtype(self.dtype)),
            temporary,
            tp=self.tp,
            pp=self.pp,
            names=self.names,
            masters=stored.weights,
        )
        try:
            self._publish(written)
        except OSError as error:
            raise MachineError(f"cannot be written ({error})", where=self.path) from error
        logger.info("wrote %s for Megatron-LM", self.path / written.name)

    def _publish(self, written: Path) -> None:
        assert self.path is not None, "it was written there"
        target, replaced = self.path / written.name, self.path / _REPLACED
        shutil.rmtree(replaced, ignore_errors=True)
        if target.exists():
            target.rename(replaced)
        written.rename(target)
        if not (self.path / TOKENIZER).exists():
            (written.parent / TOKENIZER).rename(self.path / TOKENIZER)
        fsync_dir(self.path)
        with atomic_write(self.path / TRACKER) as file:
            file.write(str(int(target.name.removeprefix("iter_"))).encode())
        for folder in (written.parent, replaced):
            shutil.rmtree(folder, ignore_errors=True)
