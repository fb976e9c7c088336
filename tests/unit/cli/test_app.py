"""What is said of a command line that is wrong, and how a command ends."""

import errno
import signal
import subprocess
import sys

import pytest

from groundup import __version__
from groundup.__main__ import main
from groundup.cli.app import build_app, refused_by_system


@pytest.fixture
def ended(monkeypatch, capsys):
    """Runs a command line; returns its exit code, output and errors."""

    def run_it(*words):
        monkeypatch.setattr(sys, "argv", ["groundup", *words])
        with pytest.raises(SystemExit) as stop:
            main()
        out, err = capsys.readouterr()
        return stop.value.code or 0, out, err

    return run_it


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("trian", 'command line: unknown command "trian". Did you mean "train"?'),
        ("tokens bild", 'tokens: unknown command "bild". Did you mean "build"?'),
        (
            "train --num-steps 5",
            "train: unknown option: --num-steps."
            " Settings of the training are written as num_steps=5, without dashes.",
        ),
        (
            "verify resume run.yaml --optimizer.lr=3e-4 --steps 4",
            "verify resume: unknown option: --optimizer.lr=3e-4."
            " Settings of the training are written as optimizer.lr=3e-4, without dashes.",
        ),
        ("train --print-confg", "train: unknown option: --print-confg. Did you mean --print-config?"),
        (
            "eval x --data y --device foo",
            'eval: invalid value "foo" for --device. Choose from: "auto", "cpu", "cuda".'
            " See `groundup eval --help`.",
        ),
    ],
)
def test_a_wrong_word_is_answered_as_any_other_error(ended, words, message):
    assert ended(*words.split()) == (1, "", f"groundup: {message}\n")


def test_a_value_that_is_missing(ended):
    code, _, err = ended("eval", "x")
    assert code == 1
    assert err.startswith("groundup: eval: ")
    assert "--data" in err
    assert err.endswith("See `groundup eval --help`.\n")


def test_the_version(ended):
    assert ended("--version") == (0, f"{__version__}\n", "")


@pytest.mark.parametrize("words", [(), ("--help",), ("tokens", "--help"), ("train", "--help")])
def test_every_help_tells_of_debug(words, capsys):
    with pytest.raises(SystemExit):
        build_app()([*words, "--help"])
    assert "--debug shows the traceback of an error" in capsys.readouterr().out


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_completion_of_a_shell_knows_verbs_and_flags(shell):
    script = build_app().generate_completion(shell=shell)
    for word in ("quickstart", "print-config", "checkpoint", "average"):
        assert word in script


def test_the_completion_is_installed_on_request(ended, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    code, _, _ = ended("--install-completion", "--shell", "bash")
    assert code == 0
    assert [path for path in tmp_path.rglob("*") if path.is_file() and "quickstart" in path.read_text()]


@pytest.mark.parametrize(
    ("arguments", "path", "where"),
    [
        (["train", "run_dir=a", "num_steps=4"], "a/metrics.jsonl", "run_dir: a/metrics.jsonl"),
        (["corpus", "build", "x", "--out", "b"], "b/.documents.tmp", "--out: b/.documents.tmp"),
        (["tokens", "build", "x", "--prefix=c/d"], "c/d_text.bin", "--prefix: c/d_text.bin"),
        (["convert", "e", "f", "--to", "hf"], "f/model", "f/model"),
        (["convert", "e", "f", "--to", "hf"], "/elsewhere", "/elsewhere"),
    ],
)
def test_what_the_system_refuses_is_named_by_its_setting(arguments, path, where):
    error = OSError(errno.EROFS, "Read-only file system", path)
    refusal = refused_by_system(error, arguments)
    assert refusal is not None
    assert refusal.where == where
    assert "Read-only file system" in str(refusal)


def test_a_full_disk_is_told_without_a_path_too():
    refusal = refused_by_system(OSError(errno.ENOSPC, "No space left on device"), [])
    assert refusal is not None
    assert str(refusal).startswith("the disk is full")


def test_an_error_of_the_system_over_no_file_is_a_fault_of_ours():
    assert refused_by_system(OSError(errno.EINVAL, "Invalid argument"), ["train"]) is None


_INTERRUPTED_IMPORT = """
import os, signal, sys
from pathlib import Path

Path("slow.py").write_text("import os, signal\\ntry:\\n  os.kill(os.getpid(), signal.SIGINT)\\n"
                           "  sum(range(10**6))\\nexcept BaseException: print('swallowed')\\n")
sys.path.insert(0, ".")
import groundup.cli.app
def run(arguments):
    import slow
groundup.cli.app.run = run
from groundup.__main__ import main
main()
"""


def test_ctrl_c_during_an_import_that_would_swallow_it(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", _INTERRUPTED_IMPORT],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert (done.returncode, done.stdout) == (128 + signal.SIGINT, "")
    assert done.stderr == "groundup: interrupted; the same command continues or begins again\n"


def test_ctrl_c_that_a_script_ignores_stays_ignored(tmp_path):
    code = (
        "import os, signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "import groundup.cli.app\n"
        "groundup.cli.app.run = lambda arguments: os.kill(os.getpid(), signal.SIGINT)\n"
        "from groundup.__main__ import main\nmain()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
