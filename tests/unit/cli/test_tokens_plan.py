"""``groundup tokens plan`` and ``trace`` on real builds of small sources."""

import re
import subprocess
import sys
from pathlib import Path

import orjson
import pytest

from groundup.cli.app import run
from groundup.core.config import resolve
from groundup.core.errors import ConfigError, DataError
from groundup.tokens.sampling.splits import open_splits
from groundup.tokens.tokenize import build_tokens
from groundup.train.config import TrainConfig
from tests.runs import make_config
from tests.tiny import tiny_tokenizer


@pytest.fixture(scope="module")
def sources(tmp_path_factory) -> Path:
    """Two sources: "web" with URLs, "books" in a second file."""
    folder = tmp_path_factory.mktemp("sources")
    tokenizer = tiny_tokenizer()
    for name, count in (("web", 120), ("books", 30)):
        lines = [
            orjson.dumps({"text": f"{name} text number {n}. " * 8, "url": f"https://{name}.example/{n}"})
            for n in range(count)
        ]
        (folder / f"{name}.jsonl").write_bytes(b"\n".join(lines))
        build_tokens([folder / f"{name}.jsonl"], folder / name, tokenizer, workers=0)
    return folder


def _run(words: list[str]) -> None:
    """A command line that succeeds; what it raises before that goes on."""
    with pytest.raises(SystemExit) as ended:
        run(words)
    assert ended.value.code == 0


def _config(sources: Path, *more: str) -> list[str]:
    return [
        f"data.sources.web.path={sources / 'web_text_document'}",
        "data.sources.web.weight=0.75",
        f"data.sources.books.path={sources / 'books_text_document'}",
        "data.sources.books.weight=0.25",
        "data.split=80,20",
        "data.sequence_length=32",
        "num_steps=50",
        "global_batch_size=8",
        *more,
    ]


def test_the_plan_says_what_each_source_gives(sources: Path, capsys) -> None:
    _run(["tokens", "plan", *_config(sources)])
    rows = [re.split(r"\s{2,}", line.strip()) for line in capsys.readouterr().out.splitlines()]
    train, books = rows[1], rows[2]
    assert train[:3] == ["train", "web", "96"]
    assert books[:2] == ["books", "24"]
    assert (train[5:7], books[4:6]) == (["75.00%", "300"], ["25.00%", "100"])
    assert float(books[6]) == pytest.approx(100 / int(books[3].replace(",", "")), abs=1e-3)
    assert ["test", "nothing"] in rows
    assert rows[-1] == ["The plan can be carried out."]


def test_an_impossible_plan_is_refused_and_what_it_proposes_is_accepted(sources: Path, capsys) -> None:
    overrides = _config(sources, "data.sources.books.max_epochs=1", "num_steps=5000")
    with pytest.raises(DataError) as caught:
        _run(["tokens", "plan", *overrides])
    proposals = re.findall(r"((?:data\.\S+?|num_steps)=[\d.]+\d)", str(caught.value).split("Set ")[1])
    assert len(proposals) == 3
    for proposal in proposals:
        _run(["tokens", "plan", *overrides, proposal])
        assert "can be carried out" in capsys.readouterr().out


def test_the_defaults_are_those_of_training() -> None:
    from groundup.cli.tokens_plan import Reading

    for name in ("global_batch_size", "seed"):
        assert getattr(Reading, name) == getattr(TrainConfig, name)


def test_a_sample_is_traced_to_its_text_and_origin(sources: Path, capsys) -> None:
    overrides = _config(sources)
    _run(["tokens", "plan", *overrides])
    capsys.readouterr()
    config = sources / "run.yaml"
    lines = ["data:", "  split: '80,20'", "  sequence_length: 32", "  sources:"]
    lines += [f"    web: {{path: {sources / 'web_text_document'}, weight: 0.75}}"]
    lines += [f"    books: {{path: {sources / 'books_text_document'}, weight: 0.25}}"]
    config.write_text("\n".join([*lines, "num_steps: 50", "global_batch_size: 8"]))
    resolved = resolve(TrainConfig, file=config, overrides=[*_model(), "run_dir=x"]).value
    train = open_splits(resolved.data, seed=resolved.seed).train
    assert train
    for sample in (0, 1, 2, 77, 1000):
        _run(["tokens", "trace", str(config), "--sample", str(sample), "--characters", "10000"])
        out = capsys.readouterr().out
        shown = "".join(line[6:] for line in out.splitlines() if line.startswith("    | "))
        assert shown == tiny_tokenizer().decode(train.batch(sample, 1)[0].tolist())
        for name, line, url in re.findall(r"(\w+)\.jsonl:(\d+)  https://(\S+)", out):
            assert url == f"{name}.example/{int(line) - 1}"
            assert f"{name} text number {int(line) - 1}" in shown or "tokens" in out
    _run(["tokens", "trace", str(config), "--step", "2", "--characters", "0"])
    out = capsys.readouterr().out
    assert [int(number) for number in re.findall(r"train sample (\d+)", out)] == list(range(8, 16))


def _model() -> list[str]:
    base = make_config(Path("data"), Path("run")).model
    return [f"model.{key}={getattr(base, key)}" for key in ("kind", "vocab_size", "max_sequence_length")] + [
        f"model.{key}={getattr(base, key)}" for key in ("num_layers", "hidden_size", "num_heads", "ffn_size")
    ]


def test_a_document_is_traced_by_its_number(sources: Path, capsys) -> None:
    prefix = sources / "web_text_document"
    _run(["tokens", "trace", str(prefix), "--document", "7"])
    out = capsys.readouterr().out
    assert "web.jsonl:8  https://web.example/7" in out
    assert "web text number 7." in out
    with pytest.raises(DataError, match="has 120 documents, none of number 120"):
        _run(["tokens", "trace", str(prefix), "--document", "120"])
    with pytest.raises(ConfigError, match="Give one of --sample, --document, --step"):
        _run(["tokens", "trace", str(prefix)])


def test_megatrons_data_is_traced_as_far_as_it_tells(shared_data: Path, capsys) -> None:
    prefix = shared_data.parent / "reference" / "megatron" / "indexed" / "wt2_200_text_document"
    if not prefix.with_name(prefix.name + ".bin").is_file():
        pytest.skip("no reference artefacts")
    _run(["tokens", "trace", str(prefix), "--sample", "3"])
    assert "origin not recorded" in capsys.readouterr().out
    _run(["tokens", "trace", str(prefix), "--sample", "3", f"data.tokenizer={shared_data / 'gpt2'}"])
    assert re.search(r"\| .*[a-z]{3}", capsys.readouterr().out)


def test_planning_and_tracing_need_no_torch(sources: Path) -> None:
    code = (
        "import sys; from groundup.cli.app import run\n"
        f"try: run(['tokens', 'plan', *{_config(sources)!r}])\n"
        "except SystemExit as end: assert end.code == 0 and 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
