"""Every path that a verb or a run's config takes is given one that cannot be: one sentence, no traceback."""

import dataclasses
import inspect
import sys
import typing
from pathlib import Path

import pytest

from groundup.__main__ import main
from groundup.cli.app import build_app
from groundup.cli.corpus import build as build_corpus
from groundup.core.files import write_json
from tests.contract.test_impossible_settings import EVERY_FIELD, members
from tests.runs import make_config, make_data, run
from tests.unit.checkpoint.test_nanogpt import save, their_model

_IMPOSSIBLE = ("/dev/null/x", "/proc/no/such", "x" * 300)
"""Below a device file, in the kernel's file system of processes, longer than a name can be."""

_TOKENIZERS = {"tokenizer": "", "vocab_file": "merge_file", "merge_file": "vocab_file", "tokenizer_model": ""}
"""Ways to name a tokenizer, of which a command line has one; and what goes with each."""

_POSSIBLE = {
    "corpus build": {"sources": "documents.jsonl", "out": "new"},
    "corpus stats": {"corpus": "corpus"},
    "corpus report": {"corpus": "corpus", "out": "page.html"},
    "report": {"runs": "run", "out": "page.html"},
    "corpus show": {"corpus": "corpus", "reason": "exact_duplicate"},
    "corpus trace": {"corpus": "corpus", "name": "documents.jsonl:1"},
    "corpus import": {"sources": "documents.jsonl", "out": "new"},
    "corpus clean": {"sources": "documents.jsonl", "out": "new", "filters": "length"},
    "corpus dedup": {"sources": "documents.jsonl", "out": "new"},
    "corpus decontaminate": {"sources": "documents.jsonl", "out": "new", "against": "documents.jsonl"},
    "corpus shuffle": {"sources": "documents.jsonl", "out": "new"},
    "corpus audit": {"sources": "documents.jsonl"},
    "corpus urls": {"sources": "urls.txt", "out": "new"},
    "corpus crawl": {"urls": "own_machine.txt", "out": "new", "engine": "none"},
    "corpus extract": {"sources": "page.html", "out": "new", "engine": "resiliparse"},
    "corpus run": {"recipe": "recipe.yaml", "out": "new"},
    "tokenizer train": {"sources": "documents.jsonl", "out": "new", "vocab_size": "300"},
    "tokenizer inspect": {"tokenizer": "data_tokenizer"},
    "tokenizer encode": {"tokenizer": "data_tokenizer", "words": "x"},
    "tokenizer decode": {"tokenizer": "data_tokenizer", "words": "5"},
    "tokens build": {"sources": "documents.jsonl", "prefix": "new", "tokenizer": "data_tokenizer"},
    "tokens inspect": {"data": "data_text_document"},
    "tokens verify": {"data": "data_text_document"},
    "tokens merge": {"sources": "data_text_document", "prefix": "new"},
    "tokens fetch": {"urls": "file://{folder}/data_text_document", "prefix": "new"},
    "tokens plan": {},
    "tokens trace": {"target": "data_text_document", "sample": "1"},
    "checkpoint ls": {"run": "run"},
    "checkpoint show": {"path": "run"},
    "checkpoint verify": {"path": "run"},
    "checkpoint diff": {"first": "run", "second": "run"},
    "checkpoint slim": {"path": "run", "out": "new"},
    "checkpoint average": {"paths": "run run", "out": "new"},
    "checkpoint prune": {"run": "run"},
    "checkpoint push": {"path": "run", "url": "file:///dev/null/run"},
    "checkpoint pull": {"url": "file://{folder}/run/checkpoints/step_0000001", "run": "new"},
    "verify parallel": {},
    "verify resume": {},
    "verify convert": {"path": "run"},
    "verify serve": {"path": "run"},
    "quickstart": {"out": "new"},
    "train": {},
    "finetune": {"model": "run"},
    "plan": {},
    "autotune": {},
    "rehearse": {"config": "run/config.yaml"},
    "doctor": {},
    "deepspeed-config": {"file": "ds.json"},
    "import nanogpt": {"path": "nanogpt/ckpt.pt", "out": "imported", "tokenizer": "data_tokenizer"},
    "megatron": {"words": "flags seed"},
    "replay": {"dump": "run"},
    "eval": {"path": "run", "data": "data_text_document"},
    "eval fetch": {"tasks": "lambada", "data": "new"},
    "compare": {"first": "results.json", "second": "results.json"},
    "convert": {"path": "run", "out": "new", "to": "hf"},
    "push": {"path": "run", "url": "hf://nobody/nothing"},
    "generate": {"path": "run", "prompt": "x"},
    "serve": {"path": "run"},
    "client": {"url": "http://127.0.0.1:9", "prompt": "x", "max_new_tokens": "1"},
}
"""Verb -> parameter -> value, with which there is nothing to refuse but what a test puts in."""


def flags(thing):
    """Name and parameter of each flag and argument; a group of flags stands for its fields."""
    for name, parameter in inspect.signature(thing).parameters.items():
        if dataclasses.is_dataclass(parameter.annotation):
            yield from flags(parameter.annotation)
        else:
            yield name, parameter


def verbs():
    """Each verb and the parameters of its function."""
    app = build_app()
    for name in app:
        if not name.startswith("-"):
            below = [[name, sub] for sub in app[name] if not sub.startswith("-")]
            for path in [*below, [name]] if app[name].default_command else below:
                verb = app[path[0]][path[1]] if path[1:] else app[path[0]]
                yield " ".join(path), dict(flags(verb.default_command))


VERBS = dict(verbs())


def takes_path(parameter):
    hint = parameter.annotation
    hint = typing.get_args(hint)[0] if typing.get_origin(hint) is typing.Annotated else hint
    hint = typing.get_args(hint)[0] if typing.get_origin(hint) is tuple else hint
    return Path in members(hint)


PATHS = [
    (verb, name)
    for verb, found in VERBS.items()
    for name in found
    if takes_path(found[name]) and verb != "doctor"  # which finds out what is wrong with a path
]
SETTINGS = sorted(
    {".".join(key for _, key in path) for path, hint in EVERY_FIELD.values() if Path in members(hint)}
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A corpus, its tokenizer and tokens, a run, and empty files."""
    folder = tmp_path_factory.mktemp("things")
    run(make_config(make_data(folder), folder / "run", "num_steps=1", "data.split='1'"))
    build_corpus(folder / "documents.jsonl", out=folder / "corpus", min_characters=9, workers=0)
    (folder / "recipe.yaml").write_text("stages: [{kind: import, sources: [documents.jsonl]}]\n")
    (folder / "urls.txt").write_text("https://example.org/some/page\n")
    (folder / "own_machine.txt").write_text("http://127.0.0.1:9/page\n")  # refused, not fetched
    (folder / "page.html").write_text(f"<html><body><p>{'A sentence. ' * 40}</p></body></html>")
    items = [{"where": "a:1", "target": "x", "values": {"accuracy": 1.0}}]
    tree = {"kind": "evaluation", "tasks": [{"task": "piqa", "options": {}, "items": items}]}
    write_json(folder / "results.json", tree)
    (folder / "ds.json").write_text('{"train_micro_batch_size_per_gpu": 1}')
    save(their_model(vocab_size=300), folder / "nanogpt", vocab_size=300)
    (folder / "empty").touch()
    (folder / "void").touch()  # beside which no verb writes files of the same beginning
    return folder


@pytest.fixture
def said(folder, monkeypatch, capsys):
    """Runs a command line there; returns the exit code and what it said last."""

    def run_it(words):
        monkeypatch.chdir(folder)
        monkeypatch.setattr(sys, "argv", ["groundup", *(word.format(folder=folder) for word in words)])
        try:
            main()
        except SystemExit as stop:
            err = capsys.readouterr().err
            assert "Traceback" not in err
            return stop.code or 0, err[err.rfind("groundup: ") :].strip()
        capsys.readouterr()
        return 0, ""

    return run_it


def command_line(verb, values):
    """The words of a verb with some values of its parameters."""
    positional, named = [], []
    assert values.keys() <= VERBS[verb].keys()
    for name, parameter in VERBS[verb].items():
        if name not in values:
            continue
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY:
            named += [f"--{name.replace('_', '-')}", values[name]]
        else:
            positional += values[name].split()  # several of one kind
    return [*verb.split(), *positional, *named]


def values_with(verb, name, value):
    values = dict(_POSSIBLE[verb])
    if name in _TOKENIZERS and "vocab_file" in VERBS[verb]:
        values = {key: given for key, given in values.items() if key not in _TOKENIZERS}
        beside = _TOKENIZERS[name]
        beside_file = {"merge_file": "data_tokenizer/merges.txt", "vocab_file": "data_tokenizer/vocab.json"}
        values |= {beside: beside_file[beside]} if beside else {}
    others = values.get(name, "").split()[1:]
    return {**values, name: " ".join([value, *others])}


def test_every_verb_is_tried():
    assert VERBS.keys() == _POSSIBLE.keys()


@pytest.mark.parametrize(("verb", "name"), PATHS, ids=lambda word: word.replace(" ", "-"))
def test_an_impossible_path_is_refused_in_a_sentence_that_names_it(said, verb, name):
    for value in _IMPOSSIBLE:
        code, last = said(command_line(verb, values_with(verb, name, value)))
        assert (code, "\n" in last) == (1, False), last
        named = (value, str(Path(value).parent), f"--{name.replace('_', '-')}")
        assert any(word in last for word in named if word != "."), last


@pytest.mark.parametrize(("verb", "name"), PATHS, ids=lambda word: word.replace(" ", "-"))
def test_an_empty_file_is_no_surprise(said, folder, verb, name):
    (folder / "empty").write_bytes(b"")  # some verb may have written it: a key in it would be served
    code, last = said(command_line(verb, values_with(verb, name, "empty")))
    assert code == bool(last), last


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("value", [*_IMPOSSIBLE, "void"], ids=lambda value: value[:12])
def test_an_impossible_path_of_a_config_is_refused(said, folder, setting, value):
    tree = ["num_steps=1", "preset=tiny", "data.sequence_length=32", "device=cpu", "data.split='1'"]
    tree += [f"run_dir=new-{setting}-{len(value)}", "data.path=data_text_document", "validation.interval=0"]
    if setting == "eval.data":
        tree += ["eval.every=1", "eval.tasks=lambada"]
    code, last = said(["train", *tree, f"{setting}={value}"])
    assert (code, "\n" in last) == (1, False), last
    assert value in last or setting in last, last
