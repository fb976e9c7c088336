"""``groundup deepspeed-config``."""

import sys
from collections import defaultdict
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter, validators


def deepspeed_config(
    file: Path, *, ranks: Annotated[int | None, Parameter(validator=validators.Number(gte=1))] = None
) -> None:
    """Translate a DeepSpeed config into the YAML of a run.

    The YAML goes to stdout, each line with the setting that it comes from; what has no counterpart goes to
    stderr, with what there is instead, and so do values "auto", which stay open. The model, the data and the
    number of steps are not in a DeepSpeed config: add them, or a preset.

    For example:

        groundup deepspeed-config ds_config.json > run.yaml

        groundup deepspeed-config ds_config.json --ranks 8

        groundup train run.yaml --deepspeed ds_config.json

    Args:
        file: DeepSpeed's JSON file.
        ranks: Data-parallel ranks, where the batch sizes do not tell them: train_batch_size =
            train_micro_batch_size_per_gpu x gradient_accumulation_steps x ranks.
    """
    from groundup.core.config import with_origins
    from groundup.deepspeed.translate import translate

    settings = translate(file, ranks=ranks)
    open_keys = defaultdict(list)
    for ours, theirs in settings.left_open.items():
        open_keys[theirs].append(ours)
    for theirs, keys in open_keys.items():
        print(f'{settings.where(theirs)}: {theirs} is "auto", so open: {", ".join(keys)}', file=sys.stderr)
    harmless = defaultdict(list)
    for note in settings.notes:
        if note.is_harmless:
            harmless[note.text].append(note.key)
        else:
            print(f"no counterpart: {note}", file=sys.stderr)
    for text, keys in harmless.items():
        print(f"left out, harmless: {', '.join(keys)}: {text}", file=sys.stderr)
    print("# To be added: run_dir, model (or preset), data.path, num_steps.")
    if settings.tree:
        print(with_origins(settings.tree, settings.origins))
