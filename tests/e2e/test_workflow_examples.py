"""The five published workflows run from end to end, small, by the scripts of examples/."""

import gzip
import itertools
import json
import shutil
import socket
from pathlib import Path

import numpy as np
import pytest

from groundup.core.compressed import open_decompressed
from groundup.tokens.tokenizer.load_tokenizer import load_tokenizer
from tests.guides import ROOT, shell
from tests.web_server import WebServer

pytestmark = pytest.mark.example
with_curl = pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")


def run(script: str, *arguments: object, folder: Path, **settings: str) -> str:
    """Runs a script of examples/ small; returns all that it said."""
    words = " ".join(f"{name}={value}" for name, value in {"SMALL": "1", **settings}.items())
    given = " ".join(f"'{argument}'" for argument in arguments)
    done = shell(f"{words} bash {ROOT}/examples/{script} {given} 2>&1", folder, fresh=True)
    assert done.returncode == 0, done.stdout[-3000:]
    return done.stdout


def free_port() -> str:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return str(taken.getsockname()[1])


def plain(source: Path, out: Path, *, num_lines: int | None = None) -> Path:
    """Writes the first lines of compressed JSON lines as they are."""
    with open_decompressed(source) as lines, out.open("wb") as copy:
        copy.writelines(itertools.islice(lines, num_lines))
    return out


@with_curl
def test_gpt2_345m(tmp_path, shared_data):
    web = shared_data / "web_html"
    pages = map(json.loads, gzip.decompress((web / "manifest.jsonl.gz").read_bytes()).splitlines())
    english = [page for page in pages if page["lang"] and page["lang"].startswith("en")]
    lambada = plain(next((shared_data / "lambada").iterdir()), tmp_path / "lambada.jsonl", num_lines=20)
    with WebServer() as server:
        lines = []
        for number, page in enumerate(english):
            server.pages[f"/page-{number}"] = gzip.decompress((web / page["file"]).read_bytes())
            lines.append(f"http://www.example{number % 7}.org/page-{number}\n")
        (tmp_path / "urls").mkdir()
        (tmp_path / "urls/list.txt").write_text("".join([*lines, "http://a.com/x.jpg\n", lines[0]]))
        settings = {"MIRROR": server.address, "PORT": free_port()}
        said = run(
            "w1-gpt2-345m/run.sh",
            tmp_path / "urls",
            shared_data / "gpt2",
            lambada,
            "out",
            folder=tmp_path,
            **settings,
        )
    out = tmp_path / "out"
    assert len((out / "clean_urls.txt").read_text().splitlines()) == len(english)
    assert (out / "checkpoints/latest_checkpointed_iteration.txt").read_text() == "10"
    ranks = sorted(path.name for path in (out / "checkpoints/iter_0000010").iterdir())
    assert ranks == ["mp_rank_00", "mp_rank_01"]
    assert '{"logprobs":null,"segments":[["Hello"," world",' in said and "number correct: " in said
    assert "Enter number of tokens to generate: Hello world" in said


def test_deepspeed(tmp_path, shared_data):
    texts = plain(shared_data / "corpus_en/textbooks.jsonl.zst", tmp_path / "texts.jsonl", num_lines=200)
    said = run("w2-deepspeed/run.sh", texts, shared_data / "gpt2", "out", folder=tmp_path)
    for name in ("one", "dp2", "mp2", "zero2"):
        assert (tmp_path / "out" / name / "latest_checkpointed_iteration.txt").read_text() == "8"
    assert "2 ranks: dp 2, zero 2" in said and "The history of" in said


def test_codeparrot(tmp_path, shared_data):
    code = plain(shared_data / "corpus_code/python_stdlib.jsonl.zst", tmp_path / "codeparrot_data.json")
    said = run("w3-codeparrot/run.sh", code, "out", folder=tmp_path)
    assert "parity: largest difference of logits 0.0e+00" in said and "def hello_world():" in said
    exported, own = (tmp_path / "out" / name / "tokenizer.json" for name in ("huggingface", "tokenizer"))
    assert exported.read_bytes() == own.read_bytes()


@with_curl
def test_llama_continues(tmp_path, shared_data):
    chinese = plain(shared_data / "corpus_zh/wudao_like.jsonl.zst", tmp_path / "wudao.json")
    run("w4-llama-continue/small_model.sh", chinese, "small", folder=tmp_path)
    said = run(
        "w4-llama-continue/run.sh", tmp_path / "small", chinese, "out", folder=tmp_path, PORT=free_port()
    )
    out = tmp_path / "out"
    ranks = sorted(path.name for path in (out / "continued/iter_0000010").iterdir())
    assert ranks == ["mp_rank_00_000", "mp_rank_00_001", "mp_rank_01_000", "mp_rank_01_001"]
    assert len(list((out / "huggingface").glob("model-*-of-00002.safetensors"))) == 2
    assert (out / "huggingface/tokenizer.model").read_bytes() == (
        tmp_path / "small/tokenizer.model"
    ).read_bytes()
    assert "dp 1, tp 2, pp 2" in said and "data: [DONE]" in said


def test_fineweb_124m(tmp_path, shared_data):
    evaluation, shards = tmp_path / "evaluation", tmp_path / "shards"
    evaluation.mkdir()
    shards.mkdir()
    for task in ("hellaswag", "lambada"):
        (source,) = (shared_data / task).iterdir()
        plain(source, evaluation / source.name.removesuffix(".gz"), num_lines=32)
    texts = plain(shared_data / "corpus_en/textbooks.jsonl.zst", tmp_path / "texts.jsonl", num_lines=120)
    tokenizer = load_tokenizer(shared_data / "gpt2")
    ids: list[int] = []
    for line in texts.read_text().splitlines():
        ids += [50256, *tokenizer.encode(json.loads(line)["text"])]
    for number, part in enumerate(np.array_split(np.array(ids, np.uint16), 4)):  # as fineweb.py writes them
        np.save(shards / f"edufineweb_{'train' if number else 'val'}_{number:06d}.npy", part)
    said = run(
        "w5-fineweb-124m/run.sh", shards, evaluation, "out", folder=tmp_path, TOKENIZER=shared_data / "gpt2"
    )
    assert "loss at initialisation 10.8" in said and "hellaswag" in said and "GPT-3 Small" in said
    assert "step 40: Hello, I'm a language model," in said


def test_the_whole_flow(tmp_path):
    said = run("whole-flow/run.sh", "out", folder=tmp_path, PORT=free_port())
    samples = [json.loads(line) for line in (tmp_path / "out/grpo/samples.jsonl").read_text().splitlines()]
    assert len(samples) == 32
    assert "of 50 held-out sums are right" in said
    for stage in ("sft", "dpo", "grpo"):
        assert list((tmp_path / "out" / stage / "checkpoints").glob("step_*"))
