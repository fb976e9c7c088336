"""``groundup quickstart`` end to end, cut short and continued."""

import shlex
import signal
import subprocess
import time
from pathlib import Path

import orjson
import pytest

from tests.forked import python


def start(folder, *options):
    command = [python(), "-m", "groundup", "quickstart", "--out", str(folder), *options]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(process):
    out, err = process.communicate(timeout=280)
    assert process.returncode == 0, err[-3000:]
    return out, err


def make_corpus(path: Path, num_documents: int):
    path.write_bytes(
        b"\n".join(
            orjson.dumps(
                {"text": f"Number {i} is followed by {i + 1}. " * 20 + "So it goes on and on. " * (i % 9)}
            )
            for i in range(num_documents)
        )
    )


def test_ctrl_c_and_again_ends_where_an_undisturbed_run_does(tmp_path):
    corpus = tmp_path / "numbers.jsonl"
    make_corpus(corpus, 300)
    options = ("--corpus", str(corpus), "num_steps=24")
    process = start(tmp_path / "cut", *options)
    while (
        not (tmp_path / "cut/run/train.log").exists()
        or "loss at" not in (tmp_path / "cut/run/train.log").read_text()
    ):
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 128 + signal.SIGINT
    assert "The same command continues from there" in err
    out, err = finish(start(tmp_path / "cut", *options))
    assert "continuing from" in err
    assert "Unigram entropy" in out
    assert (tmp_path / "cut/huggingface/model.safetensors").is_file()
    assert "`numbers.jsonl` (" in (tmp_path / "cut/huggingface/README.md").read_text()
    again, err = finish(start(tmp_path / "cut", *options))
    assert again == out  # everything is found done


def test_one_small_text_file_is_enough(tmp_path):
    text = tmp_path / "story.txt"
    text.write_text(
        "\n\n".join(f"On day {i} the cat met dog {i * 7}. They spoke of fish {i * 3}." for i in range(900))
    )
    settings = ("num_steps=5", "validation.interval=0")
    out, _ = finish(start(tmp_path / "my out", "--corpus", str(text), *settings, "--prompt", "On day 3"))
    assert "Validation loss" not in out
    assert out.strip().startswith("[1] On day 3")
    generate, evaluate, train, code = map(shlex.split, out.partition("Next:\n")[2].strip().splitlines())
    assert generate == ["groundup", "generate", str(tmp_path / "my out/run"), "--prompt", "On day 3"]
    assert evaluate[2] == str(tmp_path / "my out/run")
    assert train[2:4] == [str(tmp_path / "my out/run/config.yaml"), f"run_dir={tmp_path / 'my out/longer'}"]
    assert code[:2] == ["python", "-c"]
    compile(code[2], "code", "exec")


@pytest.mark.parametrize(
    ("content", "expected"),
    [("", "no document is left of 1 (empty: no text 1)"), ("too short\n", "sequence_length")],
    ids=["empty", "short"],
)
def test_a_corpus_that_is_too_small_is_refused(tmp_path, content, expected):
    text = tmp_path / "story.txt"
    text.write_text(content)
    process = start(tmp_path / "out", "--corpus", str(text), "num_steps=5")
    _, err = process.communicate(timeout=120)
    assert process.returncode == 1
    assert "Traceback" not in err
    assert err.splitlines()[-1].startswith("groundup: ")
    assert expected in err
