"""``groundup megatron checkpoint_util|run_text_generation_server|text_generation_cli|eval_lambada``."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from groundup.cli.options import ModelOptions
from groundup.core.errors import ConfigError, DataError
from groundup.core.log import logger

if TYPE_CHECKING:
    from groundup.eval.measure import Measured


def checkpoint_util(arguments: Sequence[str]) -> None:
    """Writes a checkpoint for another layout."""
    from groundup.cli.convert import convert
    from groundup.megatron.checkpoint_flags import converter_flags, folder_of_tokenizer

    given = converter_flags(arguments)
    with folder_of_tokenizer(given) as named:
        tokenizer, vocab_size, known = _source(given.load_dir, named, given.true_vocab_size)
        convert(
            given.load_dir,
            given.save_dir,
            to="megatron",
            tp=given.target_tensor_parallel_size or known("tensor_model_parallel_size") or 1,
            pp=given.target_pipeline_parallel_size or known("pipeline_model_parallel_size") or 1,
            names="legacy" if given.saver == "megatron" else "core",
            tokenizer=tokenizer,
            vocab_size=vocab_size,
            moments=False,
        )


def _source(
    path: Path, named: Path | None, vocab_size: int | None
) -> tuple[Path | None, int | None, Callable[[str], int | None]]:
    """Finds tokenizer, vocabulary and args; a checkpoint without a tokenizer is converted too, as there."""
    from groundup.checkpoint.formats import open_lazy
    from groundup.checkpoint.megatron.ranks import checkpoint_folder, is_megatron, open_ranks
    from groundup.megatron.checkpoint_flags import BARE_IDS

    try:
        return named, vocab_size, open_lazy(path, tokenizer=named, vocab_size=vocab_size).megatron_args.get
    except DataError as error:
        if named is not None or not is_megatron(path):
            raise
        said = "%s: %s; its ids are kept as numbers. --vocab-file and --merge-file name its tokenizer"
        logger.warning(said, path, error.what)
    args = open_ranks(checkpoint_folder(path)).first.args
    return BARE_IDS, vocab_size or args.get("padded_vocab_size"), args.get


def run_text_generation_server(arguments: Sequence[str]) -> None:
    """Serves a model."""
    from groundup.checkpoint.formats import open_lazy
    from groundup.cli.serve import serve
    from groundup.megatron.checkpoint_flags import (
        dtype_of,
        folder_of_tokenizer,
        layout_settings,
        require_shape,
        server_flags,
    )

    given = server_flags(arguments)
    with folder_of_tokenizer(given) as tokenizer:
        require_shape(open_lazy(given.load, tokenizer=tokenizer).config, given)
        serve(
            given.load,
            *layout_settings(given),
            host=given.host,
            port=given.port,
            dtype=dtype_of(given),
            model=ModelOptions(device=given.device, tokenizer=tokenizer),
        )


def text_generation_cli(arguments: Sequence[str]) -> None:
    """Talks to a server."""
    from groundup.cli.client import client
    from groundup.megatron.script_arguments import ScriptParser

    parser = ScriptParser(
        "text_generation_cli",
        "Ask for prompts and numbers of tokens, and print what a server of Megatron-LM or groundup makes of"
        " them; `stop` or end-of-file ends. `groundup client` speaks OpenAI's API too.",
        example="localhost:5000",
    )
    parser.add_argument("address", help="host:port of the server")
    client(parser.read(arguments).address, api="megatron", temperature=1.0)


def eval_lambada(arguments: Sequence[str]) -> None:
    """Measures a model by the protocols of tasks/main.py."""
    from groundup.cli.evaluation_tables import print_items, print_table
    from groundup.cli.over_ranks import joined, layout_of, open_to_measure, start_ranks
    from groundup.eval.measure import measure
    from groundup.eval.tasks import configured_tasks
    from groundup.megatron.checkpoint_flags import (
        evaluation_flags,
        folder_of_tokenizer,
        layout_settings,
        precision_of,
        require_shape,
    )
    from groundup.parallel.device import choose_precision

    given = evaluation_flags(arguments)
    if given.task == "LAMBADA":
        chosen = configured_tasks(["lambada"], [])
    else:
        chosen = configured_tasks(["wikitext"], [f"wikitext.stride={given.overlapping_eval}"])
    layout, _ = layout_of(layout_settings(given))
    start_ranks(layout)
    with folder_of_tokenizer(given) as tokenizer, joined(layout, given.device) as mesh:
        precision = precision_of(given)
        model = ModelOptions(device=given.device, tokenizer=tokenizer)
        loaded = open_to_measure(given.load, model, mesh, precision)
        require_shape(loaded.config, given)
        context = loaded.config.max_sequence_length
        if given.task == "WIKITEXT103" and given.seq_length not in (None, context):
            raise ConfigError(
                f"{given.seq_length}: windows are as long as the model's context, {context}",
                where="--seq-length",
                fix="Leave it out.",
            )
        [found] = measure(loaded, chosen, given.valid_data, choose_precision(precision, mesh.device))
        if mesh.is_first:
            print_table(found.task, found.results, found.seconds)
            print_items(found.results, given.show)
            line = f" validation results on {given.task} | {_figures(found, strict=given.strict_lambada)}"
            print(f"{'-' * len(line)}\n{line}\n{'-' * len(line)}")


def _figures(found: "Measured", *, strict: bool) -> str:
    """The last line of tasks/main.py."""
    figures = found.results.figures
    if "right" in figures:
        accuracy, total = figures["accuracy" if strict else "accuracy_last_token"], figures["passages"]
        return (
            f"number correct: {accuracy * total:.4E} | total examples: {total:.4E}"
            f" | avg accuracy: {accuracy:.4E}"
        )
    return (
        f"avg loss: {figures['loss']:.4E} | ppl: {figures['perplexity']:.4E}"
        f" | adjusted ppl: {figures['adjusted_perplexity']:.4E} | token ratio: {figures['token_ratio']} |"
    )
