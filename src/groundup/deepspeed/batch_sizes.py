"""DeepSpeed's three batch sizes, of which two give the third."""

from groundup.deepspeed.deepspeed_settings import Settings

_GLOBAL = "train_batch_size"
_MICRO = "train_micro_batch_size_per_gpu"
_ACCUMULATION = "gradient_accumulation_steps"
_RULE = f"{_GLOBAL} = {_MICRO} x {_ACCUMULATION} x data-parallel ranks"


def put_batch_sizes(settings: Settings, ranks: int | None, assumed: int | None = None) -> None:
    """Sets the micro-batch and the global batch.

    Args:
        settings: Those of the file.
        ranks: Data-parallel ranks; None where they are not known.
        assumed: As many as are taken then where the sizes do not tell; None to refuse.

    Raises:
        ConfigError: The sizes contradict each other or the ranks, or do not suffice.
    """
    total, micro, accumulation = (settings.whole(key, least=1) for key in (_GLOBAL, _MICRO, _ACCUMULATION))
    for key, ours in ((_GLOBAL, "global_batch_size"), (_MICRO, "micro_batch_size")):
        if settings.is_auto(key):
            settings.left_open[ours] = key
    if total and micro and accumulation:
        needed, rest = divmod(total, micro * accumulation)
        sizes = f"{_RULE}, and {total} is not {micro} x {accumulation} x"
        if rest:
            settings.refuse(_GLOBAL, f"does not fit: {sizes} any number of them", _fix(micro * accumulation))
        if ranks is not None and ranks != needed:
            settings.refuse(
                _GLOBAL,
                f"does not fit: {sizes} {ranks} but {needed}",
                f"Start {needed} data-parallel ranks (layout.dp={needed}), or leave out {_ACCUMULATION}:"
                " it follows from the others.",
            )
        settings.put("layout.dp", needed, of=_GLOBAL)
    elif total and micro:
        if total % (micro * (ranks or 1)):
            settings.refuse(
                _GLOBAL,
                f"{total} is no multiple of {micro} x {ranks or 1}: {_RULE}",
                _fix(micro * (ranks or 1)),
            )
    elif total and not settings.is_auto(_MICRO):
        share = (accumulation or 1) * _known(settings, _GLOBAL, ranks or assumed)
        if total % share:
            settings.refuse(_GLOBAL, f"{total} is no multiple of {share}: {_RULE}", _fix(share))
        micro = total // share
    elif micro and not settings.is_auto(_GLOBAL):
        total = micro * (accumulation or 1) * _known(settings, _MICRO, ranks or assumed)
    elif accumulation and accumulation > 1:
        settings.note(_ACCUMULATION, "follows from global_batch_size and micro_batch_size, which decide here")
    if micro:
        settings.put("micro_batch_size", micro, of=_MICRO if settings.value(_MICRO) else _GLOBAL)
    if total:
        settings.put("global_batch_size", total, of=_GLOBAL if settings.value(_GLOBAL) else _MICRO)


def _known(settings: Settings, key: str, ranks: int | None) -> int:
    if ranks is None:
        settings.refuse(
            key,
            f"alone does not tell the other batch sizes: {_RULE}",
            "Give the number of data-parallel ranks: --ranks N.",
        )
    return ranks


def _fix(multiple: int) -> str:
    return f"Make {_GLOBAL} a multiple of {multiple}."
