"""The command line of a run of Megatron-LM's goes on as it did there; see ``test_megatron_trace.py``."""

import shlex
import shutil
from pathlib import Path

import pytest

from groundup.cli.megatron import megatron
from tests.unit.train.megatron_run import write_data
from tests.unit.train.test_megatron_trace import HERE, NUMBER, comparable

FLAGS = """--num-layers 2 --hidden-size 8 --num-attention-heads 2 --seq-length 16 --max-position-embeddings 16
--micro-batch-size 2 --global-batch-size 4 --train-iters 16 --lr-decay-iters 14 --lr-warmup-iters 5
--lr 0.02 --min-lr 0.002 --lr-decay-style cosine --start-weight-decay 0.0 --end-weight-decay 0.4
--weight-decay-incr-style linear --clip-grad 1.0 --adam-beta2 0.95 --attention-dropout 0
--hidden-dropout 0 --tokenizer-type NullTokenizer --vocab-size 299 --make-vocab-size-divisible-by 32
--data-path 0.3 set0_text_document 0.7 set1_text_document --split 80,10,10 --log-interval 1
--eval-interval 4 --eval-iters 2 --save-interval 6 --init-method-std 0.1 --seed 4321
--load theirs --save ours"""
"""As they were typed there, with other folders."""


def test_the_trace_is_megatrons_own(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_data(tmp_path)
    rank = Path("theirs/iter_0000006/mp_rank_00/model_optim_rng.pt")
    rank.parent.mkdir(parents=True)
    shutil.copy(HERE / "megatron_iter_0000006.pt", rank)
    Path("theirs/latest_checkpointed_iteration.txt").write_text("6")
    megatron("pretrain_gpt", *shlex.split(FLAGS))
    ours, theirs = comparable(capsys.readouterr().out), comparable((HERE / "megatron_trace.txt").read_text())
    # Megatron-LM validates twice after the last iteration, where we do it once.
    theirs = [line for line in theirs if not line.startswith(" validation loss at iteration 16 ")]
    assert [NUMBER.sub("", line) for line in ours] == [NUMBER.sub("", line) for line in theirs]
    for own, recorded in zip(ours, theirs, strict=True):
        for mine, number in zip(NUMBER.findall(own), NUMBER.findall(recorded), strict=True):
            rounding = 0 if "E" in number else 6e-4  # grad norm, printed to three places
            assert float(mine) == pytest.approx(float(number), rel=1e-4, abs=rounding), own
    assert {path.name for path in Path("ours").glob("iter_*")} == {"iter_0000012", "iter_0000016"}
    megatron("pretrain_gpt", *shlex.split(FLAGS.replace("--load theirs", "--load ours")))  # which has ended
