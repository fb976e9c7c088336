"""Configs: layers, origins, and every problem named at once with its place and nearest match."""

from pathlib import Path
from typing import Annotated, Literal

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from groundup.core.config import ByKind, config, from_dict, resolve, to_dict, to_yaml
from groundup.core.errors import ConfigError


@config
class Cosine:
    kind: Literal["cosine"] = "cosine"
    warmup_steps: int = 3
    min_ratio: float = 0.1


@config
class Linear:
    kind: Literal["linear"] = "linear"
    warmup_steps: int = 3

    def __post_init__(self):
        if self.warmup_steps < 0:
            raise ValueError("warmup_steps must be 0 or more")


@config
class Run:
    run_dir: Path
    lr: float = 1e-3
    precision: Literal["auto", "bf16", "fp32"] = "auto"
    schedule: Annotated[Cosine | Linear, ByKind] = Cosine()


def write(tmp_path, text):
    path = tmp_path / "run.yaml"
    path.write_text(text)
    return path


def error_of(tmp_path, text, *overrides, presets=None):
    with pytest.raises(ConfigError) as caught:
        resolve(Run, file=write(tmp_path, text), overrides=overrides, presets=presets or {})
    return str(caught.value)


def test_command_line_wins_over_file_over_preset_over_default(tmp_path):
    preset = tmp_path / "preset.yaml"
    preset.write_text("lr: 1\nprecision: fp32\nschedule: {kind: linear, warmup_steps: 9}\n")
    file = write(tmp_path, "preset: p\nrun_dir: x\nlr: 2\n")
    resolved = resolve(Run, file=file, overrides=["lr=3e-4"], presets={"p": preset})
    expected = Run(run_dir=Path("x"), lr=3e-4, precision="fp32", schedule=Linear(warmup_steps=9))
    assert resolved.value == expected
    lines = {line.split(":")[0].strip(): line for line in resolved.render().splitlines()}
    assert lines["lr"].endswith("# command line (lr=3e-4)")
    assert lines["run_dir"].endswith(f"# {file}:2")
    assert lines["precision"].endswith("# preset p")


def test_another_kind_replaces_the_choice_whole(tmp_path):
    file = write(tmp_path, "run_dir: x\nschedule: {kind: cosine, min_ratio: 0.5}\n")
    resolved = resolve(Run, file=file, overrides=["schedule.kind=linear"])
    assert resolved.value.schedule == Linear()


def test_the_default_kind_may_be_left_out(tmp_path):
    file = write(tmp_path, "run_dir: x\nschedule: {warmup_steps: 7}\n")
    assert resolve(Run, file=file).value.schedule == Cosine(warmup_steps=7)


def test_all_problems_at_once_with_place_and_nearest_match(tmp_path):
    text = "run_dir: x\nlrr: 3\nprecision: bf61\nschedule:\n  warmup_step: 4\n  min_ratio: abc\n"
    message = error_of(tmp_path, text)
    path = tmp_path / "run.yaml"
    assert message.startswith("4 problems in the config")
    assert f"{path}:2: unknown key lrr. Did you mean 'lr'?" in message
    assert f"{path}:3: precision = 'bf61'" in message
    assert "Did you mean 'bf16'?" in message
    assert f"{path}:5: unknown key schedule.warmup_step. Did you mean 'warmup_steps'?" in message
    assert f"{path}:6: schedule.min_ratio = 'abc'" in message


@pytest.mark.parametrize(
    ("text", "overrides", "expected"),
    [
        ("lr: 3\n", (), "run_dir is required"),
        ("lr: 3\n schedule: 3\n", (), "run.yaml:2: not valid YAML"),
        ("run_dir: a\nlr: 1\nlr: 3\n", (), "run.yaml:3: lr is given twice, first on line 2"),
        ("run_dir: a\nschedule: {kind: cosin}\n", (), "Did you mean 'cosine'?"),
        ("run_dir: a\nschedule: {kind: linear, warmup_steps: -3}\n", (), "warmup_steps must be 0 or more"),
        ("run_dir: a\n", ("lr",), "'lr' is not of the form key.sub=value"),
        ("run_dir: a\n", ("lr=x",), "command line (lr=x): lr = 'x'"),
        ("run_dir: a\npreset: gpt3\n", (), "run.yaml:2: no preset 'gpt3'"),
        ("- 1\n", (), "a config file holds `key: value` lines"),
    ],
)
def test_wrong_configs_are_refused_with_the_reason(tmp_path, text, overrides, expected):
    assert expected in error_of(tmp_path, text, *overrides, presets={"gpt2": tmp_path / "no"})


@config
class Split:
    split: str


def test_a_lone_number_where_text_is_wanted_is_refused_with_how_to_write_it():
    with pytest.raises(ConfigError) as caught:
        resolve(Split, overrides=["split=1"])
    assert """Write it as text: "1", on a command line split='"1"'.""" in str(caught.value)
    assert resolve(Split, overrides=['split="1"']).value == Split(split="1")
    assert resolve(Split, overrides=["split=98,1,1"]).value == Split(split="98,1,1")


@config
class Languages:
    keep: tuple[str, ...] = ()


def test_a_lone_word_where_a_list_is_wanted_is_refused_with_how_to_write_it():
    with pytest.raises(ConfigError, match=r"keep = 'en': input should be a list\. Write a list: \[en\]\."):
        resolve(Languages, overrides=["keep=en"])
    assert resolve(Languages, overrides=["keep=[en]"]).value == Languages(keep=("en",))


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"nowhere\.yaml: cannot read"):
        resolve(Run, file=tmp_path / "nowhere.yaml")


@example(lr=1.0, precision="auto", schedule=Cosine(), name="0E0")
@example(lr=1.0, precision="auto", schedule=Cosine(), name="a\x85b\u2028 \u2029")
@given(
    lr=st.floats(min_value=1e-12, max_value=1e12),
    precision=st.sampled_from(["auto", "bf16", "fp32"]),
    schedule=st.one_of(
        st.builds(Cosine, warmup_steps=st.integers(0, 10**9), min_ratio=st.floats(0, 1)),
        st.builds(Linear, warmup_steps=st.integers(0, 10**9)),
    ),
    name=st.text(min_size=1, alphabet=st.characters(codec="utf-8", exclude_characters="\0")),
)
def test_yaml_round_trip(tmp_path_factory, lr, precision, schedule, name):
    value = Run(run_dir=Path(name), lr=lr, precision=precision, schedule=schedule)
    assert from_dict(Run, to_dict(value), where="test") == value
    path = tmp_path_factory.mktemp("yaml") / "run.yaml"
    path.write_text(to_yaml(value), encoding="utf-8")
    assert resolve(Run, file=path).value == value
