"""The reference has every verb with its flags, and every setting with a description."""

import re

import pytest
import setting_pages
import verb_pages

from groundup.cli.app import build_app
from groundup.cli.run_config import presets
from groundup.core.config import resolve, to_dict
from groundup.core.config_sources import leaves
from groundup.corpus.recipe import Recipe
from groundup.eval.tasks import Task
from groundup.finetune.config import FinetuneConfig


@pytest.fixture(scope="module")
def commands():
    return verb_pages.pages()


@pytest.fixture(scope="module")
def settings():
    return setting_pages.pages()


def section(page, words):
    """The part of a page below the heading of a verb."""
    _, found, rest = f"\n{page}".partition(f"# groundup {' '.join(words)}\n")
    assert found, words
    return rest.partition("\n## groundup ")[0]


def test_every_verb_is_there_with_all_of_its_flags(commands):
    app = build_app()
    for words in verb_pages.verbs():
        verb = app[words[0]][words[1]] if words[1:] else app[words[0]]
        text = section(commands[f"reference/commands/{words[0]}.md"], words)
        assert "For example:" in text, words
        if words == ["megatron"]:
            continue  # which reads the arguments of its scripts itself
        for argument in verb.assemble_argument_collection(parse_docstring=True):
            if argument.show:
                assert f"{argument.name}" in text, (words, argument.name)
                assert " ".join(argument.parameter.help.split())[:40] in " ".join(text.split()), argument.name


def test_the_list_of_commands_leads_to_each():
    listed = verb_pages.listed()
    for words in verb_pages.verbs():
        assert f"[{' '.join(words)}](commands/{words[0]}.md" in listed


@pytest.mark.parametrize("overrides", [[], ["stage.kind=grpo", "stage.reward=exact"], ["model.kind=llama"]])
def test_every_setting_of_a_run_is_on_the_page_of_its_group(settings, overrides):
    given = ["preset=tiny", "run_dir=x", "data.path=y"] if "model.kind=llama" not in overrides else []
    if not given:
        sizes = {"vocab_size": 300, "max_sequence_length": 1024, "num_layers": 2, "hidden_size": 32}
        sizes |= {"num_heads": 4, "num_kv_heads": 4, "ffn_size": 48}
        given = ["run_dir=x", "data.path=y", "num_steps=1"]
        given += [f"model.{name}={size}" for name, size in sizes.items()]
    run = resolve(FinetuneConfig, overrides=[*given, *overrides], presets=presets()).value
    for key, _ in leaves(to_dict(run)):
        group, *rest = key.split(".")
        name = rest[-1] if rest else group
        page = settings[f"reference/settings/{group.replace('_', '-') if rest else 'a-run'}.md"]
        if name != "kind":
            assert f"| `{name}` |" in page, key


def test_every_setting_of_recipes_and_tasks_is_on_their_page(settings):
    for root, page in ((Recipe, "recipe"), (Task, "tasks")):
        text = settings[f"reference/settings/{page}.md"]
        for cls in setting_pages.reachable(root):
            kind = getattr(cls, "kind", None)
            assert kind is None or re.search(rf"^##+ (\S+=)?{kind}$", text, re.MULTILINE), kind
            for setting in setting_pages.settings_of(cls):
                assert f"| `{setting.name}` |" in text, (cls, setting.name)


def test_no_setting_lacks_a_description():
    classes = setting_pages.reachable(*setting_pages.ROOTS)
    assert len(classes) > 70
    missing = [
        f"{cls.__module__}.{cls.__name__}.{setting.name}"
        for cls in classes
        for setting in setting_pages.settings_of(cls)
        if not setting.description or not setting.type
    ]
    assert not missing


@pytest.mark.parametrize(
    ("cls", "name", "type_", "default"),
    [
        ("TrainConfig", "num_steps", "whole number ≥ 1", "**required**"),
        ("TrainConfig", "device", "`auto`, `cpu`, `cuda`", "`auto`"),
        ("TrainConfig", "compile", "true or false or null", "null"),
        ("AdamW", "beta1", "number ≥ 0, < 1", "`0.9`"),
        ("Recipe", "format", "`jsonl`, `parquet`", "`jsonl`"),
    ],
)
def test_what_is_told_of_a_setting(cls, name, type_, default):
    classes = {one.__name__: one for one in setting_pages.reachable(*setting_pages.ROOTS)}
    classes["TrainConfig"] = classes["FinetuneConfig"]
    (setting,) = (one for one in setting_pages.settings_of(classes[cls]) if one.name == name)
    assert (setting.type, setting.default) == (type_, default)
