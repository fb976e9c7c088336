"""What goes wrong ends in one paragraph that names the thing and the fix; exit code 1, no traceback."""

import errno
import subprocess
import sys

import pytest

from groundup.__main__ import main
from groundup.checkpoint.native import commit
from groundup.checkpoint.native.folder import find_damage
from groundup.core.errors import MachineError
from groundup.tokens.dataset.indexed import bin_path, idx_path
from tests.runs import losses, make_config, make_data, run


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_data(tmp_path_factory.mktemp("data"))


@pytest.fixture
def refused(monkeypatch, capsys):
    """Runs a command line that must be refused; returns the last paragraph."""

    def run_it(*arguments):
        monkeypatch.setattr(sys, "argv", ["groundup", *map(str, arguments)])
        with pytest.raises(SystemExit) as stop:
            main()
        err = capsys.readouterr().err
        assert stop.value.code == 1
        assert "Traceback" not in err
        return err.strip().splitlines()[-1]

    return run_it


def train_words(data, tmp_path, *overrides):
    return (
        "train",
        "preset=tiny",
        f"run_dir={tmp_path / 'run'}",
        f"data.path={data}",
        "model.vocab_size=300",
        "data.sequence_length=32",
        "data.split=80,10,10",
        "device=cpu",
        *overrides,
    )


def test_a_missing_file(refused, tmp_path):
    assert f"{tmp_path / 'no.jsonl'}" in refused(
        "corpus", "build", tmp_path / "no.jsonl", "--out", tmp_path / "out"
    )
    assert "no/such" in refused("generate", "no/such", "--prompt", "x")
    assert "no/such.yaml" in refused("train", "no/such.yaml")


def test_an_empty_corpus(refused, tmp_path):
    (tmp_path / "empty.txt").touch()
    words = ("corpus", "build", tmp_path / "empty.txt", "--out", tmp_path / "out")
    assert "no document is left" in refused(*words)


def test_a_corpus_smaller_than_one_sequence_names_the_smallest_change(refused, data, tmp_path):
    words = train_words(data, tmp_path, "data.sequence_length=256", "data.split=1000,1,1")
    message = refused(*words)
    assert "the validation split is empty" in message
    assert "Set data.split=" in message


def test_a_malformed_line_is_counted_or_fatal_with_its_place(refused, tmp_path, monkeypatch, capsys):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "fine"}\n{"text": "torn\n' + '{"text": "good"}\n')
    words = ("corpus", "build", path, "--out", tmp_path / "out", "--bad-records")
    assert f"{path}:2" in refused(*words, "fail")
    monkeypatch.setattr(sys, "argv", ["groundup", *map(str, words), "quarantine"])
    with pytest.raises(SystemExit) as stop:
        main()
    assert not stop.value.code
    assert f"{path}:2" in capsys.readouterr().err
    assert "torn" in (tmp_path / "out/quarantine.jsonl").read_text()


def test_config_errors(refused, data, tmp_path):
    message = refused(*train_words(data, tmp_path, "optimzer.lr=1"))
    assert message.endswith("unknown key optimzer. Did you mean 'optimizer'?")


def test_a_gpu_that_is_not_there(refused, data, tmp_path, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    message = refused(*train_words(data, tmp_path, "device=cuda"))
    assert "no GPU is usable" in message
    assert "device=cpu" in message


def test_a_truncated_bin_and_a_foreign_idx(refused, tmp_path):
    data = make_data(tmp_path)
    whole = bin_path(data).read_bytes()
    bin_path(data).write_bytes(whole[:-10])
    message = refused(*train_words(data, tmp_path))
    assert str(bin_path(data)) in message
    assert f"{len(whole):,}" in message
    bin_path(data).write_bytes(whole)
    idx_path(data).write_bytes(b"not an index at all, but long enough to be read as one")
    assert str(idx_path(data)) in refused(*train_words(data, tmp_path))


def test_a_full_disk_while_saving_leaves_the_old_checkpoint(data, tmp_path, monkeypatch):
    config = make_config(data, tmp_path / "run")
    whole = losses(run(make_config(data, tmp_path / "whole")))
    written = []

    def fill_up(path, tensors, **_):
        written.append(path)
        if len(written) > 4:  # the first checkpoint took three files, the second dies at its second
            path.write_bytes(b"half")
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        return write_safetensors(path, tensors)

    write_safetensors = commit.write_safetensors
    monkeypatch.setattr(commit, "write_safetensors", fill_up)
    with pytest.raises(MachineError, match=r"step 6 could not be written .*earlier checkpoints are intact"):
        run(config)
    checkpoints = tmp_path / "run/checkpoints"
    assert sorted(path.name for path in checkpoints.iterdir()) == ["latest", "step_0000003"]
    assert find_damage(checkpoints / "latest") is None
    monkeypatch.setattr(commit, "write_safetensors", write_safetensors)
    assert losses(run(config)) == whole


def test_too_little_free_space_is_refused_before_writing(data, tmp_path, monkeypatch):
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("Usage", (), {"free": 1000}))
    with pytest.raises(
        MachineError, match=r"the checkpoint of step 3 needs \d\.\d\d GB and the disk has 0\.00 GB"
    ):
        run(make_config(data, tmp_path / "run"))


@pytest.mark.parametrize(
    "words", [("train", "preset=tiny"), ("generate", "run", "--prompt", "x"), ("quickstart",)]
)
def test_without_torch_the_verbs_that_need_it_say_what_to_install(words):
    code = "import sys; sys.modules['torch'] = None; from groundup.__main__ import main; main()"
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.strip() == "groundup: this needs torch. Type: pip install 'groundup[train]'"


def test_debug_shows_the_traceback(tmp_path):
    command = [sys.executable, "-m", "groundup", "--debug", "train", str(tmp_path / "no.yaml")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "Traceback" in done.stderr
    assert "ConfigError" in done.stderr


@pytest.mark.parametrize("run_dir", ["a_file", "/proc/no/such", "/dev/null/run"])
def test_a_run_folder_that_cannot_be(refused, data, tmp_path, run_dir):
    (tmp_path / "a_file").touch()
    message = refused(*train_words(data, tmp_path, f"run_dir={tmp_path / run_dir}"))
    assert message.startswith(f"groundup: run_dir: nothing can be written to {tmp_path / run_dir} (")
    assert message.endswith("Name another folder.")


def test_a_disk_that_is_full_when_training_begins(refused, data, tmp_path, monkeypatch):
    def fill_up(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", fill_up)
    message = refused(*train_words(data, tmp_path))
    assert message.startswith("groundup: run_dir: nothing can be written to")
    assert message.endswith("(No space left on device). Free some space.")


def test_a_disk_that_fills_up_while_the_log_is_written(refused, data, tmp_path, monkeypatch):
    def fill_up(handler, record):
        try:
            raise OSError(errno.ENOSPC, "No space left on device")
        except OSError:
            handler.handleError(record)

    monkeypatch.setattr("logging.FileHandler.emit", fill_up)
    assert refused(*train_words(data, tmp_path)).startswith("groundup: the disk is full")
