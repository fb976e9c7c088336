"""The checkpoint formats, of which each is a module and one entry here; and how a model is opened.

Nothing here imports torch before a model is opened, so that the command line can name the formats.
"""

import dataclasses
import importlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from groundup.checkpoint.peft_settings import ADAPTER, base_of
from groundup.core.errors import CheckpointError, ConfigError

if TYPE_CHECKING:
    import torch

    from groundup.checkpoint.lazy import DtypeName, LazyModel, LoadedModel
    from groundup.models import WeightDtypes


@dataclasses.dataclass(frozen=True, kw_only=True)
class Variant:
    """One way to write a format, which ``groundup verify convert`` tries.

    Attributes:
        label: What follows the format's name, with its space or comma.
        options: Of the writer.
        dtype: To which weights are rounded before; None leaves them as they are.
        tour: Its label on the tour through all formats; None keeps it out.
    """

    label: str = ""
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    dtype: "DtypeName | None" = None
    tour: str | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Codec:
    """Reads and writes a format: what its module offers as ``CODEC``.

    Attributes:
        detect: Whether a path holds this format.
        open: Opens a path; takes ``tokenizer`` (None for the model's own) and the format's ``open_options``.
        write: Writes a model to a folder; takes the format's ``write_options``, ``on_write``, told the bytes
            of each tensor, and ``check``, called with the complete folder before it gets its name.
        kept: What of a model comes back of the format, written with some ``write_options``.
        variants: The ways to write a model that are to be verified.
        next_step: What to do with a folder that was written, by whether it keeps the source's optimizer state
            exactly; None where there is nothing to tell.
    """

    detect: Callable[[Path], bool]
    open: "Callable[..., LazyModel]"
    write: Callable[..., object]
    kept: "Callable[..., LazyModel]"
    variants: "Callable[[LazyModel], Iterable[Variant]]"
    next_step: Callable[[Path, bool], str | None]


@dataclasses.dataclass(frozen=True, kw_only=True)
class CheckpointFormat:
    """What is known of a format before anything of it is read.

    Attributes:
        name: As ``groundup convert --to`` has it.
        title: In words, many of them.
        about: What is written, in words.
        module: The module that has its ``CODEC``.
        open_options: Arguments of ``open_lazy`` that have effect.
        write_options: Options of ``groundup convert`` that have effect, with the value of each that has none.
        keeps_optimizer: Whether it can keep the state of an optimizer.
        keeps_masters: Whether it then keeps the weights in fp32 beside weights of 16 bits.
        keeps_run: Whether all that a run knows is in it, to go on from.
        has_card: Whether its writer takes a ``card``, the text of a model card that goes with the weights.
        holds_all: Whether it takes every model of a family that has tables, where others may refuse some.
    """

    name: str
    title: str
    about: str
    module: str
    open_options: frozenset[str] = frozenset()
    write_options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    keeps_optimizer: bool = False
    keeps_masters: bool = False
    keeps_run: bool = False
    has_card: bool = False
    holds_all: bool = False

    @property
    def codec(self) -> Codec:
        """What reads and writes it."""
        codec: Codec = importlib.import_module(self.module).CODEC
        return codec


FORMATS = (
    CheckpointFormat(
        name="hf",
        title="Hugging Face folders",
        about="a Hugging Face folder",
        module="groundup.checkpoint.huggingface.weights",
        write_options={"shards": "1"},
        has_card=True,
    ),
    CheckpointFormat(
        name="native",
        title="runs and checkpoints of groundup",
        about="a run folder of groundup",
        module="groundup.checkpoint.native.model",
        open_options=frozenset({"ema"}),
        keeps_optimizer=True,
        keeps_run=True,
        holds_all=True,
    ),
    CheckpointFormat(
        name="megatron",
        title="Megatron-LM's checkpoints",
        about="checkpoints of Megatron-LM",
        module="groundup.checkpoint.megatron.megatron_codec",
        open_options=frozenset({"vocab_size", "moments"}),
        write_options={"tp": 1, "pp": 1, "names": "legacy"},
        keeps_optimizer=True,
        keeps_masters=True,
    ),
    CheckpointFormat(
        name="nanogpt",
        title="nanoGPT's ckpt.pt",
        about="a ckpt.pt of nanoGPT",
        module="groundup.checkpoint.nanogpt",
        open_options=frozenset({"moments"}),
    ),
)


def format_named(name: str) -> CheckpointFormat:
    """The format of a name."""
    return next(entry for entry in FORMATS if entry.name == name)


def detect_format(path: Path) -> CheckpointFormat:
    """The format that a path holds.

    Raises:
        CheckpointError: The path does not exist, or holds none, or several.
    """
    if not path.exists():
        raise CheckpointError("no such file or folder", where=path, fix="Check the path.")
    found = [entry for entry in FORMATS if entry.codec.detect(path)]
    if len(found) > 1:
        titles = " and ".join(entry.title for entry in found)
        raise CheckpointError(
            f"holds files of {titles}", where=path, fix="Keep those of one model in a folder of their own."
        )
    if not found and (path / ADAPTER).is_file():
        raise CheckpointError(
            "holds an adapter, not a model",
            where=path,
            fix=f"Merge it into its base: groundup convert {path} merged --to hf.",
        )
    if not found:
        raise CheckpointError(
            "holds no usable checkpoint",
            where=path,
            fix=f"Name one of these: {', '.join(entry.title for entry in FORMATS)}.",
        )
    return found[0]


def peft_adapter() -> Any:
    """Returns the module that reads and writes adapters of PEFT."""
    return importlib.import_module("groundup.checkpoint.peft_adapter")


def require_effect(to: CheckpointFormat, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that the writer of a format takes.

    Args:
        to: The format.
        options: All options of writing, given or not.

    Raises:
        ConfigError: One is given that has no effect: names it, and the formats with which it has.
    """
    for option, value in options.items():
        having = [entry for entry in FORMATS if option in entry.write_options]
        if to not in having and value != having[0].write_options[option]:
            raise ConfigError(
                f"--{option} has no effect with --to {to.name}, only with"
                f" {' and '.join(f'--to {entry.name}' for entry in having)}",
                where="command line",
            )
    return {option: value for option, value in options.items() if option in to.write_options}


def open_model(
    path: Path,
    *,
    device: "torch.device",
    adapter: Path | None = None,
    ema: bool = False,
    tokenizer: Path | None = None,
    dtypes: "WeightDtypes | None" = None,
) -> "LoadedModel":
    """Brings weights, architecture and tokenizer to memory for use; needs nothing but the path.

    Args:
        path: As ``open_lazy``.
        device: Where to.
        adapter: As ``open_lazy``.
        ema: As ``open_lazy``.
        tokenizer: As ``open_lazy``.
        dtypes: Of the weights; fp32 by default.

    Raises:
        CheckpointError, DataError: As ``open_lazy``; also where weights are not finite.
    """
    from groundup.checkpoint.lazy import load, require_finite
    from groundup.models import FP32

    stored = open_lazy(path, adapter=adapter, ema=ema, tokenizer=tokenizer)
    loaded = load(stored, device=device, dtypes=dtypes or FP32)
    require_finite(loaded.model.named_parameters(), loaded.source)
    return loaded


def open_lazy(
    path: Path,
    *,
    adapter: Path | None = None,
    tokenizer: Path | None = None,
    vocab_size: int | None = None,
    moments: bool = False,
    ema: bool = False,
) -> "LazyModel":
    """Opens a model of any format without reading its weights yet.

    Args:
        path: What a format of ``FORMATS`` detects, or a folder with an adapter of PEFT, which names its base.
        adapter: Folder of such an adapter of the model: it is merged into the weights as they are read.
        tokenizer: Folder, file or name of one instead of the model's own, or where it has none; what lies
            beside it in a folder (a chat template, say) comes with it. "none": its ids mean nothing.
        vocab_size: True vocabulary of a model of Megatron-LM's, where its tokenizer does not tell.
        moments: Whether to open the optimizer's state too, where a format keeps it.
        ema: Take the average of the weights that a run of groundup kept, instead of the weights.

    Raises:
        CheckpointError: The path does not exist, holds no model, or the model is damaged; or an option has no
            effect with its format.
        DataError: There is no tokenizer that can be read.
    """
    from groundup.tokens.tokenizer.load_tokenizer import load_tokenizer, tokenizer_folder
    from groundup.tokens.tokenizer.word_list import integers

    bare_ids = str(tokenizer) == "none" and not Path("none").exists()
    named = integers(0) if bare_ids else load_tokenizer(tokenizer) if tokenizer else None
    if adapter is None and (path / ADAPTER).is_file():
        adapter, path = path, base_of(path)
    found = detect_format(path)
    options: dict[str, Any] = {"vocab_size": vocab_size, "ema": ema or None}
    given = {name: value for name, value in options.items() if value is not None}
    for name in given.keys() - found.open_options:
        titles = " and ".join(entry.title for entry in FORMATS if name in entry.open_options)
        raise CheckpointError(f"--{name.replace('_', '-')} is only for {titles}", where=path)
    if "moments" in found.open_options:
        given["moments"] = moments
    stored: LazyModel = found.codec.open(path, tokenizer=named, **given)
    if adapter is not None:
        stored = peft_adapter().with_adapter(stored, adapter)
    if bare_ids:
        ends = [stored.megatron_args.get("null_tokenizer_eod_id"), *stored.companions.end_ids]
        size = stored.config.vocab_size
        end = next((number for number in ends if isinstance(number, int) and 0 <= number < size), None)
        return dataclasses.replace(stored, tokenizer=integers(size, end_of_document_id=end))
    folder = tokenizer_folder(tokenizer) if tokenizer else None
    return stored if folder is None else _with_tokenizer_of(stored, folder)


def _with_tokenizer_of(stored: "LazyModel", folder: Path) -> "LazyModel":
    from groundup.checkpoint.companions import read_companions, require_agreement
    from groundup.tokens.tokenizer.huggingface import bos_ids

    companions = stored.companions.with_tokenizer_of(read_companions(folder))
    require_agreement(companions, stored.tokenizer, stored.config.vocab_size, folder)
    return dataclasses.replace(stored, companions=companions, bos_ids=bos_ids(folder))
