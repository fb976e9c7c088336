"""What the house promises: quick imports, no torch for data, documented faces, complete registries."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from groundup.cli.app import build_app
from groundup.cli.run_config import presets
from groundup.core.config import resolve
from groundup.train.config import TrainConfig

_SOURCE = Path(__file__).resolve().parents[2] / "src" / "groundup"


def modules_after(code):
    """The modules that a fresh interpreter has loaded after running code."""
    script = f"import json, sys\n{code}\nprint(json.dumps(sorted(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(json.loads(result.stdout.splitlines()[-1]))


def test_importing_groundup_imports_next_to_nothing():
    loaded = modules_after("import groundup")
    assert not loaded & {"torch", "numpy", "pydantic", "cyclopts", "tokenizers", "tiktoken"}


@pytest.mark.parametrize(
    "module",
    [
        "groundup.corpus.pipeline",
        "groundup.corpus.crawl.crawler",
        "groundup.tokens.tokenize",
        "groundup.tokens.sampling.dataset",
    ],
)
def test_data_needs_no_torch(module):
    code = f"sys.modules['torch'] = None\nimport {module}"  # None makes any import of torch fail
    assert module in modules_after(code)


@pytest.mark.parametrize(
    ("words", "others", "text"),
    [
        (["--help"], set(), "Raw text to a trained"),
        (["tokens", "--help"], set(), "Tokenize documents into"),
        (["train", "--help"], {"train", "options", "run_config"}, "For example"),
    ],
)
def test_help_imports_few_modules(words, others, text):
    code = (
        "import contextlib, io\n"
        "from groundup.cli.app import run\n"
        "with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.suppress(SystemExit):\n"
        f"    run({words})\n"
        f"assert {text!r} in out.getvalue()"
    )
    loaded = modules_after(code)
    assert not loaded & {"torch", "transformers", "numpy", "pydantic", "tokenizers", "tiktoken"}
    assert {name for name in loaded if name.startswith("groundup.cli.")} == {
        "groundup.cli.app",
        *(f"groundup.cli.{name}" for name in others),
    }
    assert len(loaded) < 450


@pytest.mark.parametrize("group", [[], ["tokens"], ["checkpoint"]], ids=str)
def test_a_list_of_verbs_tells_of_each_what_its_own_help_does(group, capsys):
    """They are told by their source, without an import."""
    told = []
    for listing in (True, False):
        app = build_app(listing=listing)
        owner = app[group[0]] if group else app
        for name in [] if listing else [name for name in owner if not name.startswith("-")]:
            assert owner[name].help  # which imports it
        with pytest.raises(SystemExit):
            app([*group, "--help"])
        told.append(capsys.readouterr().out)
    assert told[0] == told[1]


def test_a_config_that_is_not_there_needs_no_torch():
    code = (
        "from groundup.cli.app import run\n"
        "try:\n"
        "    run(['train', 'missing.yaml'])\n"
        "except Exception as error:\n"
        "    assert 'missing.yaml: cannot read' in str(error), error"
    )
    assert "torch" not in modules_after(code)


def verbs():
    """Every verb of the command line as words."""
    app = build_app()
    for name in app:
        if name.startswith("-"):
            continue
        subcommands = [sub for sub in app[name] if not sub.startswith("-")]
        yield from ([name, sub] for sub in subcommands)
        if app[name].default_command:
            yield [name]


@pytest.mark.parametrize("words", list(verbs()), ids=" ".join)
def test_help_teaches_with_an_example(words, capsys):
    with pytest.raises(SystemExit) as stop:
        build_app()([*words, "--help"])
    out = capsys.readouterr().out
    assert stop.value.code == 0
    assert "For example:" in out
    assert f"groundup {' '.join(words)}" in " ".join(out.split("For example:")[1].split())


@pytest.mark.parametrize("words", list(verbs()), ids=" ".join)
def test_every_flag_is_described(words):
    app = build_app()
    verb = app[words[0]][words[1]] if words[1:] else app[words[0]]
    flags = [
        argument for argument in verb.assemble_argument_collection(parse_docstring=True) if argument.show
    ]
    assert flags
    assert not [argument.name for argument in flags if not argument.parameter.help]


@pytest.mark.parametrize("name", list(presets()))
def test_every_preset_needs_only_a_run_dir_and_data(name):
    overrides = [f"preset={name}", "run_dir=x", "data.path=y"]
    config = resolve(TrainConfig, overrides=overrides, presets=presets()).value
    assert config.global_batch_size % config.micro_batch_size == 0
    assert yaml.safe_load(presets()[name].read_text())["model"]["vocab_size"] == config.model.vocab_size


def public_things():
    """Module path and node of each public module, class, function and method."""
    for path in sorted(_SOURCE.rglob("*.py")):
        tree = ast.parse(path.read_text())
        yield path, "module", tree
        for node in ast.walk(tree):
            named = isinstance(node, ast.ClassDef | ast.FunctionDef)
            if named and not node.name.startswith("_"):
                yield path, node.name, node


def test_every_module_is_described():
    missing = [
        f"{path.relative_to(_SOURCE)}: {name}"
        for path, name, node in public_things()
        if isinstance(node, ast.Module | ast.ClassDef) and not ast.get_docstring(node)
    ]
    assert not missing


def test_models_know_nothing_of_the_world():
    """No model file may mention ranks, devices to move to, files or logging."""
    for path in (_SOURCE / "models").glob("*.py"):
        tree = ast.parse(path.read_text())
        imported = {
            name.split(".")[0] + "." + ".".join(name.split(".")[1:2])
            for node in ast.walk(tree)
            for name in (
                [alias.name for alias in node.names]
                if isinstance(node, ast.Import)
                else [node.module or ""]
                if isinstance(node, ast.ImportFrom)
                else []
            )
        }
        assert not imported & {"torch.distributed", "groundup.checkpoint", "logging.", "pathlib."}, path
