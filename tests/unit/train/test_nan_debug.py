"""Steps that are not finite: the message names module, samples and step dump, which runs elsewhere."""

import math
import shutil

import orjson
import pytest
import torch
from torch import nn

from groundup.cli.app import run as groundup
from groundup.core.errors import CheckpointError, TrainingError
from groundup.core.files import read_json, write_json
from groundup.parallel.device import Precision
from groundup.tokens.sampling.trace import trace_sample
from groundup.train.data_loader import Batch
from groundup.train.setup import build_run
from groundup.train.stability.nan_debug import find_not_finite
from groundup.train.stability.replay import agreement, open_replayer
from groundup.train.stability.step_dump import read_dump
from groundup.train.step import NotFinite
from tests.runs import make_config, make_data, run


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_data(tmp_path_factory.mktemp("data"))


def fail(config, spoil, *, after=2):
    """Trains with something spoilt after a step; returns the error's message."""

    def complete(run_):
        if run_.state.step == after:
            with torch.no_grad():
                spoil(run_.state.model)
        return [""]

    with pytest.raises(TrainingError) as failed:
        run(config, complete=complete)
    return str(failed.value)


def config_of(data, run_dir, *more):
    return make_config(data, run_dir, "sample.interval=1", "model.dropout=0.1", *more)


def rare_token(data, tmp_path):
    """A token that just one of the samples of step 3 holds, and that sample."""
    run_ = build_run(make_config(data, tmp_path / "look"))
    rows = [set(run_.data.train.samples.batch(index, 1)[0, :-1].tolist()) for index in range(8, 12)]
    for number, row in enumerate(rows):
        others = set().union(*(other for other in rows if other is not row))
        if row - others:
            return min(row - others), 8 + number
    raise AssertionError("choose another step")


def test_a_weight_that_is_infinite_is_named_with_the_sample_that_used_it(data, tmp_path, capsys):
    token, sample = rare_token(data, tmp_path)

    def spoil(model):
        model.embed.tokens.weight[token, 3] = math.inf

    message = fail(config_of(data, tmp_path / "run", "model.tied_embedding=false"), spoil)
    assert message.startswith(
        "step 3, samples 8 to 11: the gradient norm is nan at loss scale 1 (loss nan); the"
    )
    assert "the first not finite is 1 of 12,288 numbers of the weight embed.tokens.weight" in message
    assert f"for sample {sample} in 1 of 2 micro-batches" in message
    assert f"`groundup replay {tmp_path}/run/failures/step-3` runs this step again" in message
    assert message.endswith("Lower optimizer.lr, or lengthen the warm-up; the last checkpoint is intact.")
    shutil.rmtree(data.parent / "elsewhere", ignore_errors=True)
    shutil.move(tmp_path / "run/failures/step-3", tmp_path / "elsewhere")  # it needs nothing else
    with pytest.raises(SystemExit) as ended:
        groundup(["replay", str(tmp_path / "elsewhere")])
    assert ended.value.code == 0
    out = capsys.readouterr().out
    assert "now:  loss nan, gradient norm nan: the same, exactly" in out
    assert f"of the weight embed.tokens.weight for sample {sample} in 1 of 2 micro-batches" in out
    alone = {
        int(line.split()[1].rstrip(":")): line for line in out.splitlines() if line.startswith("  sample ")
    }
    assert {index for index, line in alone.items() if "nan" in line} == {sample}
    assert f"the worst, sample {sample}, holds" in out
    assert "documents.jsonl:" in out  # its origin


def test_a_module_whose_output_overflows_is_named(data, tmp_path):
    def spoil(model):
        model.layers["1"].mlp.w1.weight.mul_(1e38)
        model.layers["1"].mlp.w1.bias.add_(3e38)

    message = fail(config_of(data, tmp_path / "run"), spoil)
    assert "the first not finite is the output of layers.1.mlp.w1 (rank 0, micro-batch 1)" in message
    assert "The largest weight is 3e+38, in layers.1.mlp.w1.bias" in message


def test_fp32_is_advised_to_runs_of_16_bits_only(data, tmp_path):
    state = build_run(make_config(data, tmp_path / "run")).state
    for name, advised in (("fp32", False), ("bf16", True), ("fp16", True)):
        error = NotFinite(state, 4, math.nan, math.nan, Precision(name, torch.device("cpu")))
        assert ("set precision=fp32" in str(error)) == advised


class Root(nn.Module):
    """Finite at 0, with an infinite slope."""

    def forward(self, x):
        return x.abs().sqrt()


def test_a_gradient_that_is_infinite_on_its_way_back_is_named():
    model = nn.Sequential(nn.Linear(4, 4, bias=False), Root(), nn.Linear(4, 1))
    nn.init.constant_(model[0].weight, 0.5)

    def add_gradients(batch):
        loss = model(batch.tokens_BT.float()).sum()
        loss.backward()
        return loss.detach()

    tokens = torch.ones(6, 4, dtype=torch.long)
    tokens[4] = 0
    batches = list(Batch(tokens_BT=tokens, targets_BT=tokens).split(3))
    (finding,) = find_not_finite(model, batches, add_gradients, first_sample=20)
    assert finding.what == "the gradient that comes back to the output of 0"
    assert (finding.phase, finding.micro_batch, finding.samples) == (2, 2, (24,))
    tokens[4] = 1
    assert find_not_finite(model, batches, add_gradients, first_sample=20) == []
    assert model[0].weight.grad is None


def test_a_norm_that_alone_overflows_is_told_from_numbers_that_do(data, tmp_path):
    def spoil(model):
        model.norm.weight.mul_(1e-25)  # the gradient of what follows a norm is divided by nothing
        model.head.weight.mul_(1e25)

    config = config_of(
        data, tmp_path / "run", "model.tied_embedding=false", "optimizer.kind=sgd", "optimizer.lr=1e-20"
    )
    message = fail(config, spoil)
    assert "the gradient norm is inf" in message
    assert "their sum or the norm overflows" in message
    replayer = open_replayer(tmp_path / "run/failures/step-3", device="cpu", precision=None)
    result = replayer.run()
    assert agreement(result, replayer.dump, replayer.precision) == "exactly"
    assert "e+2" in result.largest_gradient
    assert "in head.weight" in result.largest_weight


def test_a_step_dump_holds_the_samples_their_origins_and_the_weights_before(data, tmp_path):
    kept = {}

    def spoil(model):
        kept.update({name: p.detach().clone() for name, p in model.named_parameters()})
        model.norm.bias[0] = kept["norm.bias"][0] = math.nan

    config = config_of(data, tmp_path / "run")
    fail(config, spoil)
    dump = read_dump(tmp_path / "run/failures/step-3")
    samples = build_run(make_config(data, tmp_path / "look")).data.train.samples
    assert dump.batch.tokens_BT.tolist() == samples.batch(8, 4)[:, :-1].tolist()
    for row, documents in enumerate(dump.about.sources):
        pieces = trace_sample(samples, 8 + row)
        assert [one["document"] for one in documents] == [piece.document for piece in pieces]
    assert dump.config == config
    replayer = open_replayer(dump.folder, device="cpu", precision=None)
    for name, parameter in replayer._model.named_parameters():
        assert torch.equal(parameter.nan_to_num(7), kept[name].nan_to_num(7)), name


def test_a_step_that_gives_something_else_is_told_and_fails(data, tmp_path, capsys):
    def spoil(model):
        model.norm.bias[0] = math.nan

    fail(config_of(data, tmp_path / "run"), spoil)
    folder = tmp_path / "run/failures/step-3"
    manifest = orjson.loads((folder / "bundle.json").read_bytes())
    manifest["about"]["facts"]["loss"] = "5.5"
    (folder / "bundle.json").write_bytes(orjson.dumps(manifest))
    with pytest.raises(TrainingError, match="the step did not give what it gave in the run"):
        groundup(["replay", str(folder), "--no-samples"])
    assert "NOT the same" in capsys.readouterr().out


def test_a_damaged_step_dump_or_none_is_refused(data, tmp_path):
    def spoil(model):
        model.norm.bias[0] = math.nan

    with pytest.raises(CheckpointError, match=r"holds no bundle\.json"):
        groundup(["replay", str(tmp_path)])
    fail(config_of(data, tmp_path / "run"), spoil)
    batch = tmp_path / "run/failures/step-3/batch.safetensors"
    batch.write_bytes(batch.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match=r"the step dump is damaged: batch\.safetensors has"):
        groundup(["replay", str(batch.parent)])
    manifest = batch.parent / "bundle.json"
    write_json(manifest, read_json(manifest) | {"files": {}})
    with pytest.raises(CheckpointError, match=r"bundle\.json does not list batch\.safetensors"):
        groundup(["replay", str(batch.parent)])


def test_a_full_disk_does_not_hide_the_reason(data, tmp_path, monkeypatch):
    from groundup.core.errors import MachineError

    def full(path, size_bytes, what):
        raise MachineError("the disk is full", where=path)

    def spoil(model):
        model.norm.bias[0] = math.nan
        monkeypatch.setattr("groundup.checkpoint.native.save.require_free_space", full)

    message = fail(config_of(data, tmp_path / "run"), spoil)
    assert "The step could not be saved" in message
    assert "1 of 32 numbers of the weight norm.bias" in message
