"""``groundup quickstart``: every stage in a row, each by the function behind its own verb."""

import dataclasses
import json
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from groundup.corpus.report import CorpusReport
    from groundup.tokens.tokenizer.base import Tokenizer
    from groundup.train.config import TrainConfig

_PROMPT = "def hello_world():"
_NUM_COMPLETIONS = 3
_NEW_TOKENS = 32
_TRAINING_SECONDS = 175
"""Of the five minutes that an installation, the other stages and some slower steps fit into too."""
_FEWEST_STEPS = 400
"""After fewer the model has nothing to show."""
_FEWEST_PARTS = 200
_LONGEST_PART = 20_000


def quickstart(
    *overrides: str,
    corpus: Path | None = None,
    key: str = "text",
    out: Path = Path("quickstart"),
    prompt: str = "",
) -> None:
    """Raw text to a trained, evaluated, talking model: the whole way in minutes, with nothing to download.

    Collects documents (by default the standard library of this Python, so that the model learns Python),
    cleans them, drops exact duplicates, trains a tokenizer, tokenizes, trains a small GPT-2, validates
    it, exports a Hugging Face folder and completes a prompt. Stop it at any point with Ctrl-C; the same
    command continues where it was.

    The number of training steps is chosen from the speed of this machine, so that all is done within five
    minutes; num_steps=N sets it.

    For example:

        groundup quickstart

        groundup quickstart --corpus my-texts/ --prompt "Once upon a time" num_steps=3000

    Args:
        overrides: Settings of the training as dotted.key=value, see `groundup train`.
        corpus: A folder, a .txt, or a .jsonl (also .gz, .zst) to learn from instead.
        key: The JSON field that holds the text.
        out: The folder to write.
        prompt: What the trained model completes; by default one that suits the corpus.
    """
    import torch

    from groundup.checkpoint.formats import format_named, open_model
    from groundup.checkpoint.lazy import as_lazy
    from groundup.cli.card_options import CardFlags
    from groundup.cli.train import run_training
    from groundup.core.log import logger
    from groundup.report.model_card import model_card
    from groundup.tokens.tokenize import build_tokens

    preset = "small" if torch.cuda.is_available() else "tiny"

    logger.info("[1/6] corpus: %s", corpus or "the standard library of this Python")
    report = _collect(corpus, key, out / "corpus")
    prompt = prompt or (_first_words(report) if corpus else _PROMPT)
    logger.info("[2/6] tokenizer: byte-level BPE")
    tokenizer = _tokenizer(report, preset, out / "tokenizer")
    logger.info("[3/6] tokens: .bin and .idx in Megatron-LM's format")
    prefix = build_tokens(report.documents_paths, out / "tokens", tokenizer).prefixes["text"]
    logger.info("[4/6] training: preset %s", preset)
    config = _train_config(preset, out / "run", prefix, tokenizer, overrides)
    if not any(override.startswith("num_steps=") for override in overrides):
        config = dataclasses.replace(config, num_steps=_num_steps(config))
    results = run_training(config)
    logger.info("[5/6] export: a Hugging Face folder")
    loaded = open_model(config.run_dir, device=torch.device("cpu"))
    stored, exported = as_lazy(loaded), out / "huggingface"
    command = ["convert", str(config.run_dir), str(exported), "--to", "hf"]
    card = model_card(stored, CardFlags(name=out.absolute().name).options(exported, command))
    format_named("hf").codec.write(stored, exported, card=card)
    logger.info("[6/6] generation: completing %r", prompt)
    validation = results.get("validation")
    print(_last_screen(out, config, report, prompt, _completions(loaded, prompt), validation))


def _collect(corpus: Path | None, key: str, folder: Path) -> "CorpusReport":
    from groundup.core.executor.local import runner_of
    from groundup.corpus.pipeline import run_recipe
    from groundup.corpus.recipe import default_recipe
    from groundup.corpus.sources import find_source_files

    runner = runner_of(None)
    if corpus is None:
        return run_recipe(default_recipe((), python_library=True), folder, runner)
    # Books are cut into parts, so that there is something to shuffle and to hold out.
    size_bytes = sum(file.size_bytes for file in find_source_files([corpus]))
    part = min(_LONGEST_PART, max(1, size_bytes // _FEWEST_PARTS))
    return run_recipe(default_recipe((corpus,), text_key=key, cut_characters=part), folder, runner)


def _texts(report: "CorpusReport") -> Iterator[str]:
    from groundup.corpus.bad_records import BadRecordPolicy, BadRecords
    from groundup.corpus.read_documents import read_documents

    strict = BadRecords(BadRecordPolicy(action="fail"))
    return (document.text for document in read_documents(report.documents_paths, bad_records=strict))


def _first_words(report: "CorpusReport") -> str:
    """Takes a prompt in the corpus's own language: the beginning of its first document."""
    return next(_texts(report)).lstrip()[:20].splitlines()[0].rstrip()


def _tokenizer(report: "CorpusReport", preset: str, folder: Path) -> "Tokenizer":
    """Loads this corpus's tokenizer from the folder, or trains it, with fewer ids if the text is small."""
    from groundup.core.log import logger
    from groundup.core.manifest import read_manifest, write_manifest
    from groundup.tokens.tokenizer.base import TokenizerManifest
    from groundup.tokens.tokenizer.load_tokenizer import load_tokenizer
    from groundup.tokens.tokenizer.train_bpe import train_tokenizer

    manifest_path = folder / "manifest.json"
    if manifest_path.is_file():
        found = read_manifest(manifest_path, TokenizerManifest)
        if found.inputs.get("corpus") == report.fingerprint:
            logger.info("found in %s", folder)
            return load_tokenizer(folder)
    vocab_size = _preset_config(preset).model.vocab_size
    tokenizer = train_tokenizer(_texts(report), vocab_size=vocab_size, fewer=True)
    tokenizer.save(folder)
    manifest = TokenizerManifest(fingerprint=tokenizer.fingerprint, inputs={"corpus": report.fingerprint})
    write_manifest(manifest_path, manifest)
    logger.info("%d ids", tokenizer.vocab_size)
    return tokenizer


def _preset_config(preset: str, *overrides: str) -> "TrainConfig":
    from groundup.cli.run_config import presets
    from groundup.core.config import resolve
    from groundup.train.config import TrainConfig

    required = ("run_dir=.", "data.path=.")
    return resolve(
        TrainConfig, overrides=[f"preset={preset}", *required, *overrides], presets=presets()
    ).value


def _train_config(
    preset: str, run_dir: Path, prefix: Path, tokenizer: "Tokenizer", overrides: tuple[str, ...]
) -> "TrainConfig":
    paths = (f"run_dir={run_dir}", f"data.path={prefix}")
    return _preset_config(preset, *paths, f"model.vocab_size={tokenizer.vocab_size}", *overrides)


def _num_steps(config: "TrainConfig") -> int:
    """Returns as many steps as there is time for, or those of a run that has begun."""
    from groundup.core.config import resolve
    from groundup.core.log import logger
    from groundup.core.progress import human_count, human_seconds
    from groundup.train.config import TrainConfig
    from groundup.train.loop import seconds_of_step
    from groundup.train.setup import CONFIG_FILE

    begun = config.run_dir / CONFIG_FILE
    if begun.is_file():
        num_steps = resolve(TrainConfig, file=begun).value.num_steps
        logger.info("%s has %s steps", config.run_dir, f"{num_steps:,}")
        return num_steps
    seconds = seconds_of_step(config)
    num_steps = steps_within(_TRAINING_SECONDS, seconds, at_most=config.num_steps)
    tokens = config.global_batch_size * config.data.sequence_length
    logger.info(
        "%s tokens/s measured: %s steps in about %s; num_steps=N for another number",
        human_count(tokens / seconds),
        f"{num_steps:,}",
        human_seconds(num_steps * seconds),
    )
    return num_steps


def steps_within(seconds: float, of_step: float, *, at_most: int) -> int:
    """Returns how many steps fit into a time, in hundreds, but no fewer than make a model worth showing."""
    fitting = int(seconds / of_step) // 100 * 100
    return min(at_most, max(_FEWEST_STEPS, fitting))


def _completions(loaded: Any, prompt: str) -> list[str]:
    """Completes the prompt several times, with the seeds from 0."""
    from groundup.inference.engine import Engine
    from groundup.inference.sampler import Sampling

    generations = Engine(loaded).generate(
        [loaded.tokenizer.encode(prompt)] * _NUM_COMPLETIONS,
        sampling=Sampling(temperature=0.6, top_p=0.9),
        max_new_tokens=_NEW_TOKENS,
        stop_ids=(loaded.tokenizer.end_of_document_id,),
    )
    return [generation.text.rstrip() for generation in generations]


def _last_screen(
    out: Path,
    config: "TrainConfig",
    report: "CorpusReport",
    prompt: str,
    completions: Sequence[str],
    validation: Any,
) -> str:
    from groundup.eval.perplexity import unigram_entropy
    from groundup.tokens.sampling.dataset import TokenDataset
    from groundup.tokens.sampling.splits import open_splits

    training = open_splits(config.data, seed=config.seed).train
    assert isinstance(training, TokenDataset), "one source, and it was just trained on"
    validated = (
        f"Validation loss {validation.loss:.3f} nats a token, {validation.bits_per_byte:.3f} bits per byte.\n"
        if validation
        else ""  # nobody asked for one
    )
    entropy = unigram_entropy(training.tokens)
    data, run_dir, export = config.data.path, config.run_dir, out / "huggingface"
    shown = "\n\n".join(f"[{number}] {prompt}{text}" for number, text in enumerate(completions, start=1))
    # JSON's strings are Python's, without a single quote around them.
    text, folder = (json.dumps(words, ensure_ascii=False) for words in (prompt, str(export)))
    code = f'import transformers; print(transformers.pipeline("text-generation", {folder})({text}))'
    run = shlex.quote(str(run_dir))
    longer = f"{shlex.quote(str(run_dir / 'config.yaml'))} run_dir={shlex.quote(str(out / 'longer'))}"
    return f"""
{shown}

{validated}Unigram entropy {entropy:.3f}: the loss of knowing only how frequent each token is.

corpus        {report.documents_glob}
tokenizer     {out / "tokenizer"}
tokens        {data}.bin, .idx
run           {run_dir} (config.yaml, metrics.jsonl, train.log, checkpoints/)
Hugging Face  {export}

Next:
  groundup generate {run} --prompt {shlex.quote(prompt)}
  groundup eval {run} --tasks perplexity --data YOUR_TEXT.txt
  groundup train {longer} num_steps={config.num_steps * 4}
  python -c {shlex.quote(code)}
"""
