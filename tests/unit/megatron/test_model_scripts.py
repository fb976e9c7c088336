"""Megatron-LM's scripts for token files and trained models, with their arguments."""

import itertools
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from groundup.checkpoint.formats import open_lazy
from groundup.cli.megatron import script_named
from groundup.core.errors import ConfigError, DataError, GroundupError
from groundup.tokens.dataset.indexed import IndexedDataset
from tests.megatron_files import rank_files, write_checkpoint
from tests.served import Served
from tests.tiny import spelling_model, tiny_model, tiny_tokenizer

SPELLED = "qr stu"
PASSAGES = [SPELLED, "qr vtu"]  # of the second only the last token can be told


def typed(line: str) -> None:
    script, *words = line.split()
    script_named(script)(words)


def documents(prefix: Path) -> list[list[int]]:
    data = IndexedDataset(prefix)
    bounds = [data.token_begin(number) for number in range(data.num_documents + 1)]
    return [data.tokens[begin:end].tolist() for begin, end in itertools.pairwise(bounds)]


@pytest.fixture
def four_ranks(tmp_path: Path) -> Path:
    return write_checkpoint(tiny_model("gpt2"), tmp_path / "four", tp=2, pp=2).parent


def test_token_files_are_those_of_the_original(
    shared_data: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    reference = shared_data.parent / "reference" / "megatron" / "indexed"
    if not reference.is_dir():
        pytest.skip(f"no reference at {reference}")
    gpt2 = f"--vocab-file {shared_data}/gpt2/vocab.json --merge-file {shared_data}/gpt2/merges.txt"
    typed(
        f"preprocess_data --input {reference / 'wt2_200.jsonl'} --output-prefix {tmp_path / 'my-gpt2'} {gpt2}"
        " --dataset-impl mmap --tokenizer-type GPT2BPETokenizer --append-eod --workers 1 --chunk-size 25"
    )
    for ending in ("bin", "idx"):
        expected = (reference / f"wt2_200_text_document.{ending}").read_bytes()
        assert (tmp_path / f"my-gpt2_text_document.{ending}").read_bytes() == expected
    typed(f"merge_datasets --input {tmp_path} --output-prefix {tmp_path / 'all'}")
    assert (tmp_path / "all.bin").read_bytes() == (tmp_path / "my-gpt2_text_document.bin").read_bytes()


def test_several_keys_and_the_begin_of_llamas_texts(shared_data: Path, tmp_path: Path) -> None:
    model = shared_data / "models" / "stories260K" / "tokenizer.model"
    (tmp_path / "in.json").write_text(
        '{"title": "Once", "content": "There was a cat."}\n{"title": "", "content": "A"}'
    )
    line = (
        f"preprocess_data --input {tmp_path / 'in.json'} --json-keys title content --append-eod --workers 1"
    )
    ids = {}
    for kind in ("GPTSentencePieceTokenizer", "Llama2Tokenizer"):
        typed(f"{line} --output-prefix {tmp_path / 'out'} --tokenizer-type {kind} --tokenizer-model {model}")
        ids[kind] = {key: documents(tmp_path / f"out_{key}_document") for key in ("title", "content")}
    plain, llama = ids.values()
    assert len(plain["title"]) == 1 and len(llama["title"]) == 2
    assert llama == {
        "title": [[1, *plain["title"][0]], [1, 2]],
        "content": [[1, *d] for d in plain["content"]],
    }
    assert all(document[-1] == 2 for document in plain["content"])


def test_a_checkpoint_of_four_ranks_becomes_one(four_ranks: Path, tmp_path: Path) -> None:
    line = f"checkpoint_util --model-type GPT --load-dir {four_ranks} --save-dir"
    one = "--target-tensor-parallel-size 1 --target-pipeline-parallel-size 1"
    typed(f"{line} {tmp_path / 'one'} {one}")
    typed(f"{line} {tmp_path / 'same'} --loader megatron --max-queue-size 50 --no-checking")
    typed(f"{line} {tmp_path / 'core'} {one} --saver mcore")
    assert [len(rank_files(tmp_path / name)) for name in ("one", "same", "core")] == [1, 4, 1]
    weights = open_lazy(four_ranks).weights
    for name in ("one", "same", "core"):
        found = open_lazy(tmp_path / name).weights
        assert all(torch.equal(found[key].read(), tensor.read()) for key, tensor in weights.items())


def test_a_checkpoint_without_a_tokenizer_becomes_another_too(four_ranks: Path, tmp_path: Path) -> None:
    shutil.rmtree(four_ranks / "tokenizer")
    line = (
        f"checkpoint_util --model-type GPT --load-dir {four_ranks} --target-tensor-parallel-size 1 --save-dir"
    )
    typed(f"{line} {tmp_path / 'padded'}")
    typed(f"{line} {tmp_path / 'true'} --true-vocab-size 300")
    assert [open_lazy(tmp_path / name).config.vocab_size for name in ("padded", "true")] == [512, 300]
    expected = open_lazy(four_ranks, tokenizer=Path("none"), vocab_size=300).weights
    found = open_lazy(tmp_path / "true").weights
    assert all(torch.equal(found[key].read(), tensor.read()) for key, tensor in expected.items())


def test_bare_ids_are_tokens_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "ids.json").write_text('{"text": "5 9 200"}\n{"text": "0"}\n')
    typed(
        f"preprocess_data --input {tmp_path / 'ids.json'} --output-prefix {tmp_path / 'ids'} --append-eod"
        " --tokenizer-type NullTokenizer --vocab-size 299"
    )
    assert documents(tmp_path / "ids_text_document") == [[5, 9, 200, 299], [0, 299]]


def test_a_tokenizer_is_named_as_there(
    four_ranks: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.rmtree(four_ranks / "tokenizer")
    tiny_tokenizer().save(tmp_path / "named")
    (tmp_path / "lambada.jsonl").write_text(json.dumps({"text": PASSAGES[0]}))
    line = f"main --task LAMBADA --valid-data {tmp_path / 'lambada.jsonl'} --load {four_ranks}"
    with pytest.raises(DataError, match="has no tokenizer"):
        typed(line)
    files = f"--vocab-file {tmp_path / 'named/vocab.json'} --merge-file {tmp_path / 'named/merges.txt'}"
    typed(f"{line} {files} --tokenizer-type GPT2BPETokenizer --hidden-size 32 --num-layers 2 --no-load-rng")
    assert " validation results on LAMBADA | number correct: 0.0000E+00 | " in capsys.readouterr().out


@pytest.mark.parametrize(("flags", "right"), [("--strict-lambada", 1), ("", 2)])
def test_lambada_counts_words_or_last_tokens(
    flags: str, right: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_checkpoint(spelling_model(SPELLED), tmp_path / "model").parent
    (tmp_path / "lambada.jsonl").write_text("".join(f"{json.dumps({'text': text})}\n" for text in PASSAGES))
    line = f"tasks/main.py --task LAMBADA --valid-data {tmp_path / 'lambada.jsonl'} --batch-size 8"
    typed(f"{line} --load {folder} {flags}")
    out = capsys.readouterr().out
    assert (
        f"number correct: {right:.4E} | total examples: 2.0000E+00 | avg accuracy: {right / 2:.4E}\n" in out
    )
    assert "predicted 'stu', the target is 'stu'" in out


def test_perplexity_by_windows(four_ranks: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "wiki.test.tokens").write_text(
        " = The cat = \n\n The cat sat on the mat , and so on . \n" * 9
    )
    line = f"eval_lambada --task WIKITEXT103 --valid-data {tmp_path / 'wiki.test.tokens'} --load {four_ranks}"
    typed(f"{line} --overlapping-eval 16 --seq-length 64")
    *_, rule, said, again = capsys.readouterr().out.splitlines()
    assert rule == again == "-" * len(said)
    loss, ppl = (float(part.split()[-1]) for part in said.split(" | ")[1:3])
    assert ppl == pytest.approx(np.exp(loss), rel=1e-3)
    with pytest.raises(ConfigError, match="windows are as long as the model's context, 64"):
        typed(f"{line} --seq-length 32")


def test_the_client_speaks_to_the_server(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answers = iter(["the cat", "3", "stop"])
    monkeypatch.setattr("builtins.input", lambda prompt: next(answers))
    with Served(tiny_model("gpt2")) as served:
        typed(f"text_generation_cli 127.0.0.1:{served.port}")
        out, err = capsys.readouterr()
    assert out.startswith("the cat") and len(out) > len("the cat\n") and not err


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("preprocess_data --input a --output-prefix b --split-sentences", "a GPT takes whole ones"),
        ("preprocess_data --input a --output-prefix b", "--tokenizer-type is not given"),
        (
            "preprocess_data --input a --output-prefix b --tokenizer-type BertWordPieceCase",
            "no models like BERT",
        ),
        ("preprocess_data --input a --output-prefix b --tokenizer-type Gpt2", "there is no Gpt2"),
        (
            "preprocess_data --input a --output-prefix b --tokenizer-type Llama2Tokenizer",
            "Add --tokenizer-model",
        ),
        (
            "preprocess_data --input a --output-prefix b --vocab-file c",
            "--vocab-file and --merge-file go together",
        ),
        ("preprocess_data --input a --output-prefix b --workers 0 --tokenizer-type x", "--workers 0 is none"),
        ("preprocess_data --input a --output-prefix b --apend-eod", "Did you mean '--append-eod'?"),
        ("checkpoint_util --model-type BERT --load-dir a --save-dir b", "invalid choice: 'BERT'"),
        ("checkpoint_util --model-type GPT --load-dir a --save-dir b", "a: no such file or folder"),
        ("checkpoint_util --model-type GPT --load-dir a --save-dir b --vocab-file c", "c: is no vocabulary"),
        ("run_text_generation_server --load a --num-experts 4", "--num-experts is not taken"),
        ("run_text_generation_server --load a --hiden-size 4", "Did you mean '--hidden-size'?"),
        ("eval_lambada --task LAMBADA --valid-data a", "required: --load"),
        ("text_generation_cli", "required: address"),
    ],
)
def test_what_is_wrong_is_said(
    line: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(GroundupError) as refused:
        typed(line)
    assert message in str(refused.value)


def test_another_shape_than_the_checkpoints_is_refused(four_ranks: Path) -> None:
    said = r"num_layers value from checkpoint \(2\) is not equal to the input argument value \(24\)"
    with pytest.raises(ConfigError, match=said):
        typed(f"run_text_generation_server --load {four_ranks} --num-layers 24 --hidden-size 32")
