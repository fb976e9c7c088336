"""What every checkpoint format must do; a new entry of ``FORMATS`` joins by itself."""

import dataclasses
from collections.abc import Iterator

import pytest

from groundup.checkpoint.formats import (
    FORMATS,
    CheckpointFormat,
    Codec,
    Variant,
    detect_format,
    format_named,
    open_lazy,
    open_model,
    require_effect,
)
from groundup.checkpoint.lazy import as_lazy
from groundup.checkpoint.parity import Reference, compare
from groundup.cli.app import build_app
from groundup.core.errors import CheckpointError, ConfigError, GroundupError
from groundup.train.init_weights import model_of
from groundup.verify.convert import differing
from tests.tiny import NANOGPT, tiny_model

ENTRIES = {entry.name: entry for entry in FORMATS}
OPTIONS = {name: value for entry in FORMATS for name, value in entry.write_options.items()}


@pytest.fixture(params=ENTRIES)
def entry(request) -> CheckpointFormat:
    return ENTRIES[request.param]


@pytest.fixture(scope="module")
def loaded():
    """A model that every format takes, another one without the options that only some take."""
    return tiny_model("gpt2", **NANOGPT)


@pytest.fixture(scope="module")
def written(loaded, tmp_path_factory):
    """The folder that each format writes of it."""
    folders = {name: tmp_path_factory.mktemp("formats") / name for name in ENTRIES}
    for name, folder in folders.items():
        ENTRIES[name].codec.write(as_lazy(loaded), folder)
    return folders


def variants() -> Iterator[tuple[CheckpointFormat, Variant]]:
    stored = as_lazy(tiny_model("gpt2", **NANOGPT))
    for entry in FORMATS:
        for variant in entry.codec.variants(stored):
            yield entry, variant


VARIANTS = {f"{entry.name}{variant.label}": (entry, variant) for entry, variant in variants()}


def test_an_entry_leads_to_a_codec_and_its_options_are_the_commands(entry):
    assert isinstance(entry.codec, Codec)
    assert [other.name for other in FORMATS].count(entry.name) == 1
    assert entry.keeps_optimizer or not (entry.keeps_masters or entry.keeps_run)
    assert entry.title
    assert any(one.name == entry.name for one, _ in VARIANTS.values())


def test_detection_is_exclusive(entry, written, tmp_path):
    found = {name for name, folder in written.items() if entry.codec.detect(folder)}
    assert found == {entry.name}
    assert detect_format(written[entry.name]) is entry
    (tmp_path / "text.txt").write_text("no model")
    assert not entry.codec.detect(tmp_path)
    assert not entry.codec.detect(tmp_path / "text.txt")


def test_files_of_two_formats_in_one_folder_are_refused(written, tmp_path):
    for name in ("hf", "nanogpt"):
        for path in written[name].iterdir():
            if path.is_file():
                (tmp_path / path.name).write_bytes(path.read_bytes())
    with pytest.raises(CheckpointError, match=r"holds files of Hugging Face folders and nanoGPT's"):
        detect_format(tmp_path)


def test_what_is_no_model_is_refused_by_the_names_of_all_formats(tmp_path):
    with pytest.raises(CheckpointError, match="holds no usable checkpoint") as error:
        open_lazy(tmp_path)
    assert all(entry.title in str(error.value) for entry in FORMATS)
    with pytest.raises(CheckpointError, match="no such file or folder"):
        open_lazy(tmp_path / "absent")


@pytest.mark.parametrize("key", VARIANTS)
@pytest.mark.parametrize("bias", [True, False])
def test_a_round_trip_is_exact(key, bias, tmp_path):
    entry, variant = VARIANTS[key]
    stored = as_lazy(tiny_model("gpt2", bias=bias, **NANOGPT))
    wanted = entry.codec.kept(stored, **variant.options)
    entry.codec.write(stored, tmp_path / "out", **variant.options)
    found = open_lazy(tmp_path / "out")
    assert not differing(wanted.weights, found.weights)
    # what a model begins with is no part of it, and not every format tells it
    assert dataclasses.replace(found.config, init_std=wanted.config.init_std) == wanted.config
    assert found.tokenizer.fingerprint == stored.tokenizer.fingerprint
    parity = Reference(wanted).compare(found)
    assert (parity.max_difference, parity.top1_agreement) == (0, 1)


def test_what_is_opened_computes_the_same(entry, loaded, written):
    assert compare(loaded, open_model(written[entry.name], device="cpu")).max_difference == 0


def test_damage_is_refused(entry, loaded, tmp_path):
    folder = tmp_path / "out"
    entry.codec.write(as_lazy(loaded), folder)
    largest = max(
        (path for path in folder.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size
    )
    content = largest.read_bytes()
    for damaged in (content[: len(content) // 2], b"", b"no checkpoint"):
        largest.write_bytes(damaged)
        with pytest.raises(GroundupError) as error:
            open_model(folder, device="cpu")
        assert str(tmp_path) in str(error.value)
    largest.unlink()
    with pytest.raises(GroundupError):
        open_model(folder, device="cpu")


def test_what_holds_something_else_is_not_overwritten(entry, loaded, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    with pytest.raises(CheckpointError, match="mine: is not empty"):
        entry.codec.write(as_lazy(loaded), tmp_path / "mine")
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["thesis.txt"]


@pytest.mark.parametrize("option", OPTIONS)
def test_options_of_writing_without_effect_are_refused_by_name(entry, option):
    given = {**OPTIONS, option: "another"}
    if option in entry.write_options:
        assert require_effect(entry, given)[option] == "another"
        assert require_effect(entry, OPTIONS) == entry.write_options
        return
    with pytest.raises(ConfigError, match=f"--{option} has no effect with --to {entry.name}, only with --to"):
        require_effect(entry, given)


@pytest.mark.parametrize(("option", "value"), [("vocab_size", 300), ("ema", True)])
def test_options_of_opening_without_effect_are_refused_by_name(entry, option, value, written):
    if option in entry.open_options:
        if option == "vocab_size":
            assert open_lazy(written[entry.name], vocab_size=300).config.vocab_size == 300
        return
    flag = option.replace("_", "-")
    with pytest.raises(CheckpointError, match=f"--{flag} is only for "):
        open_lazy(written[entry.name], **{option: value})


def test_training_starts_from_it(entry, loaded, written):
    assert model_of(written[entry.name])["hidden_size"] == loaded.config.hidden_size


def test_convert_writes_it_and_its_help_names_it(entry, loaded, written, tmp_path, capsys):
    app = build_app()
    source = written["hf" if entry.name != "hf" else "native"]
    app(["convert", str(source), str(tmp_path / "out"), "--to", entry.name], result_action="return_value")
    assert "largest difference of logits 0.0e+00" in capsys.readouterr().out
    assert detect_format(tmp_path / "out") is entry
    app(["convert", "--help"], result_action="return_value")
    assert f"{entry.name}, {entry.about}" in " ".join(capsys.readouterr().out.replace("│", " ").split())


def test_names_lead_to_entries(entry):
    assert format_named(entry.name) is entry
