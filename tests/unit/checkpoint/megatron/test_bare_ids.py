"""Checkpoints without a tokenizer (NullTokenizer): converted with ``--tokenizer none``."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from groundup.checkpoint.formats import open_lazy, open_model
from groundup.checkpoint.lazy import LoadedModel, load
from groundup.checkpoint.parity import compare
from groundup.cli.app import build_app
from groundup.core.errors import CheckpointError, ConfigError, DataError
from groundup.inference.engine import Engine
from groundup.inference.sampler import Sampling
from groundup.tokens.dataset.bare_tokens import index_bare_tokens
from groundup.tokens.tokenizer.word_list import integers
from tests.megatron_files import make_bare, rank_files, write_checkpoint
from tests.tiny import tiny_model

NONE = Path("none")
PRETRAIN = """
    --num-layers 2 --hidden-size 32 --num-attention-heads 4 --seq-length 32 --max-position-embeddings 32
    --micro-batch-size 2 --global-batch-size 2 --train-iters 2 --lr 1e-3 --split 90,10,0 --eval-iters 1
    --save-interval 2 --position-embedding-type rope --swiglu --rotary-percent 0.5
"""


def bare(folder: Path, loaded: LoadedModel, **args: Any) -> Path:
    """Of 2 ranks and 512 rows."""
    write_checkpoint(loaded, folder, tp=2)
    make_bare(folder, **args)
    return folder


@pytest.mark.parametrize(
    ("args", "end"),
    [
        ({"vocab_size": 299}, 299),  # of 992da75: the end of a document is one more
        ({"vocab_size": 300, "null_tokenizer_eod_id": None}, 299),  # of d98e8a6: the last
        ({"vocab_size": 300, "null_tokenizer_eod_id": 7}, 7),
    ],
)
def test_the_vocabulary_is_what_the_args_say(args: dict[str, Any], end: int, tmp_path: Path) -> None:
    ours = tiny_model("stablelm")
    found = open_lazy(bare(tmp_path / "in", ours, **args), tokenizer=NONE)
    assert (found.config.vocab_size, found.tokenizer.end_of_document_id) == (300, end)
    assert found.tokenizer.fingerprint == integers(300, end_of_document_id=end).fingerprint
    assert compare(ours, load(found, device="cpu")).max_difference == 0


def test_without_a_name_it_is_refused_with_the_flag(tmp_path: Path) -> None:
    folder = bare(tmp_path / "in", tiny_model("gpt2"), vocab_size=299)
    with pytest.raises(DataError, match=r"was trained on bare ids \(NullTokenizer\).*--tokenizer none"):
        open_lazy(folder)


def test_another_tokenizers_checkpoint_tells_no_vocabulary(tmp_path: Path) -> None:
    folder = bare(tmp_path / "in", tiny_model("gpt2"), tokenizer_type="GPT2BPETokenizer")
    with pytest.raises(
        CheckpointError, match=r"how many of the 512 rows of its embedding are padding.*--vocab-size"
    ):
        open_lazy(folder, tokenizer=NONE)
    assert open_lazy(folder, tokenizer=NONE, vocab_size=300).tokenizer.end_of_document_id == 299
    with pytest.raises(CheckpointError, match="a vocabulary of 513 ids must"):
        open_lazy(folder, tokenizer=NONE, vocab_size=513)


NULL = ("--tokenizer-type", "NullTokenizer", "--vocab-size", "299")


def script(name: str, *words: object) -> None:
    build_app()(["megatron", name, *map(str, words)], result_action="return_value")


def test_megatrons_scripts_take_bare_ids_by_their_number(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And a StableLM by its flags, half of each head rotated."""
    (np.arange(9000, dtype=np.uint16) % 300).tofile(tmp_path / "ids.bin")
    index_bare_tokens(tmp_path / "ids.bin", tmp_path / "ids_text_document", integers(300))
    where = ("--data-path", tmp_path / "ids_text_document", "--save", tmp_path / "saved")
    script("pretrain_gpt", *PRETRAIN.split(), *NULL, *where, "--print-config")
    shown = capsys.readouterr().out
    for line in ("kind: stablelm ", "rotary_fraction: 0.5 ", "linear_bias: all ", "vocab_size: 300 "):
        assert line in shown
    files = ("--input", tmp_path / "ids.json", "--output-prefix", tmp_path / "ids")
    for words, message in ((NULL[:2], "Add --vocab-size N"), (("--tokenizer-type", "X"), "or NullTokenizer")):
        with pytest.raises(ConfigError, match=message):
            script("preprocess_data", *files, *words)
        with pytest.raises(ConfigError):
            script("pretrain_gpt", *PRETRAIN.split(), *words, *where, "--print-config")


@pytest.mark.exhaustive
def test_megatrons_scripts_tokenize_and_train_bare_ids(tmp_path: Path) -> None:
    rows = [" ".join(str(3 * number % 299) for number in range(begin, begin + 50)) for begin in range(40)]
    (tmp_path / "ids.json").write_text("".join(f'{{"text": "{row}"}}\n' for row in rows))
    files = ("--input", tmp_path / "ids.json", "--output-prefix", tmp_path / "ids")
    script("preprocess_data", *files, "--append-eod", *NULL)
    data, saved = tmp_path / "ids_text_document", tmp_path / "saved"
    script("pretrain_gpt", *PRETRAIN.split(), *NULL, "--data-path", data, "--save", saved)
    args = vars(torch.load(rank_files(saved)[0], weights_only=False)["args"])
    assert (args["tokenizer_type"], args["padded_vocab_size"]) == ("NullTokenizer", 384)
    assert args["rotary_percent"] == 0.5
    found = open_lazy(saved)
    assert (found.config.kind, found.config.vocab_size) == ("stablelm", 300)
    assert found.tokenizer.fingerprint == integers(300).fingerprint


def test_every_format_keeps_bare_ids(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ours = tiny_model("gpt2", activation="gelu", ffn_size=128)
    bare(tmp_path / "in", ours, vocab_size=299)
    app = build_app()

    def convert(source: str, out: str, *options: str) -> None:
        words = ["convert", str(tmp_path / source), str(tmp_path / out), "--to", out, *options]
        app(words, result_action="return_value")
        assert "largest difference of logits 0.0e+00" in capsys.readouterr().out

    convert("in", "native", "--tokenizer", "none")
    convert("native", "hf")
    convert("hf", "nanogpt")
    convert("nanogpt", "megatron")
    prompt = [5, 9, 200]
    [expected] = Engine(ours).generate([prompt], sampling=Sampling(temperature=0), max_new_tokens=9)
    for name in ("native", "hf", "nanogpt", "megatron"):
        found = open_model(tmp_path / name, device=torch.device("cpu"))
        assert found.tokenizer.fingerprint == integers(300).fingerprint
        assert found.stop_ids == {299}
        [text] = Engine(found).generate([prompt], sampling=Sampling(temperature=0), max_new_tokens=9)
        assert text.ids == expected.ids
        assert found.tokenizer.encode(text.text) == list(text.ids)
    args = vars(torch.load(rank_files(tmp_path / "megatron")[0], weights_only=False)["args"])
    assert args["tokenizer_type"] == "NullTokenizer"
