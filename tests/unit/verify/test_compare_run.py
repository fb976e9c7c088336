"""A run is compared with a reference: right ones are inside its band, wrong ones are not and are told why."""

import dataclasses
import json
import math
from pathlib import Path

import numpy as np
import orjson
import pytest
import yaml

from groundup.cli.compare import compare
from groundup.core.errors import ConfigError, DataError, TrainingError
from groundup.report.run_records import RunRecords, read_run
from groundup.verify.compare_run import compare_run
from groundup.verify.reference_band import student_quantile
from groundup.verify.references import read_reference, reference_names

TINY = read_reference("tiny")
GPT2 = read_reference("gpt2-124m")
TRIED = Path(__file__).parents[3] / "benchmarks/results/reference_runs.json"


def records(losses, interval=10):
    """Records of training with the mean loss of every so many steps, at the reference's learning rates."""
    return [
        {
            "kind": "train",
            "step": step,
            "loss": float(np.mean(losses[step - interval : step])),
            "lr": float(TINY.learning_rates[step - 1]),
        }
        for step in range(interval, len(losses) + 1, interval)
    ]


def run_of(train, config=TINY.config, **kinds):
    """A run with these records."""
    return RunRecords(
        folder=Path("run"),
        name="run",
        config=config,
        origins={},
        kinds={"train": train, **kinds},
        starts=[{"step": 0}],
        places=(),
    )


def seed_losses(seed):
    return TINY.losses[TINY.seeds.index(seed)]


def held_out(seed):
    place = TINY.seeds.index(seed)
    return [{"step": step, "loss": found[place]} for step, found in TINY.validations.items()]


@pytest.mark.parametrize("seed", TINY.seeds)
@pytest.mark.parametrize("interval", [1, 10, 50, 80])
def test_each_seed_is_inside_the_band_of_the_others(seed, interval):
    run = run_of(records(seed_losses(seed), interval), validation=held_out(seed))
    found = compare_run(run, TINY.without(seed))
    assert found.is_right and found.suspects == []
    assert {window.kind for window in found.windows} == {"training", "validation"}
    assert found.windows[-1].last == 400


def test_a_window_is_the_mean_of_the_same_steps_of_all():
    found = compare_run(run_of(records(seed_losses(TINY.seeds[0]), 50)), TINY)
    window = next(window for window in found.windows if window.last == 100)
    assert window.first == 50 and window.loss == pytest.approx(seed_losses(TINY.seeds[0])[50:100].mean())
    assert window.expected == pytest.approx(TINY.losses[:, 50:100].mean())
    spread = TINY.losses[:, 50:100].mean(axis=1).std(ddof=1)
    assert 2 * spread < window.half_width < 12 * spread


def test_the_band_is_as_wide_as_students_distribution():
    """Two-sided quantiles of tables, for 8 and 40 degrees of freedom and the normal distribution."""
    found = [student_quantile(0.001, freedom) for freedom in (8, 40, 10**6)]
    assert found == pytest.approx([5.041, 3.551, 3.291], rel=0.01)


@pytest.mark.parametrize("steps", [10, 37, 120])
def test_half_a_run_is_compared_as_far_as_it_went(steps):
    found = compare_run(run_of(records(seed_losses(TINY.seeds[1])[:steps], 1)), TINY)
    assert found.is_right and found.windows[-1].last == steps
    assert found.remarks == [f"The run is at step {steps} of 400: compared as far as it went."]


def test_a_record_after_a_restart_is_of_the_steps_since_it():
    """Stopped after step 30 and logged every 20 steps: the record of step 40 has ten of them."""
    losses = seed_losses(TINY.seeds[2])
    cut = [(0, 20), (30, 40), (40, 60)]
    train = [{"kind": "train", "step": last, "loss": float(losses[first:last].mean())} for first, last in cut]
    run = run_of(train)
    found = compare_run(RunRecords(**{**_fields(run), "starts": [{"step": 0}, {"step": 30}]}), TINY)
    assert [(window.first, window.last) for window in found.windows] == [(0, 20), (30, 60)]
    assert found.windows[1].loss == pytest.approx(losses[30:60].mean())


def _fields(run):
    return {name: getattr(run, name) for name in RunRecords.__slots__}


def shifted(change):
    """A seed's losses, each changed by a function of its step."""
    return [float(change(step, loss)) for step, loss in enumerate(seed_losses(TINY.seeds[3]), start=1)]


SHAPES = {
    "diverged": lambda step, loss: loss + max(0, step - 200) / 40,
    "spikes": lambda step, loss: loss + (4 if step in range(201, 211) else 0),
    "plateau": lambda step, loss: max(loss, 5.9 + 0.1 * math.sin(step)),
    "below": lambda step, loss: loss * max(0.3, 1 - step / 300),
    "drift": lambda step, loss: loss + step / 1000,
    "offset": lambda step, loss: loss + 0.6,
}


@pytest.mark.parametrize("shape", SHAPES)
def test_the_shape_of_a_deviation_is_told(shape):
    """None differs in a setting, so that the suspects are those that no setting tells."""
    found = compare_run(run_of(records(shifted(SHAPES[shape]))), TINY)
    assert found.shape == shape and found.outside and not found.is_right
    assert found.suspects and not any(suspect.seen for suspect in found.suspects)


def test_a_loss_that_is_no_number_has_diverged():
    train = records(seed_losses(TINY.seeds[4]))
    train[20]["loss"] = train[39]["loss"] = None
    assert compare_run(run_of(train), TINY).shape == "diverged"


@pytest.mark.parametrize("source", ["record", "log"])
def test_the_first_loss_is_that_of_knowing_nothing(tmp_path, source):
    losses = np.array([*seed_losses(TINY.seeds[0])])
    losses[0] = 11.0
    run = run_of(records(losses, 1 if source == "record" else 10))
    (tmp_path / "train.log").write_text(
        "2026 loss at initialisation 11.000, ln(vocabulary) 8.318: unexpected\n"
    )
    found = compare_run(RunRecords(**{**_fields(run), "folder": tmp_path}), TINY)
    assert found.shape == "wrong start" and "other initial values" in found.suspects[0].what


def changed(**settings):
    return {**TINY.config, **{key.replace("__", "."): value for key, value in settings.items()}}


def test_what_differs_most_and_fits_the_shape_is_suspected_first():
    config = changed(optimizer__lr=0.02, optimizer__weight_decay=0.2, model__dropout=0.1, precision="fp16")
    drifting = compare_run(run_of(records(shifted(SHAPES["drift"])), config), TINY)
    seen = [suspect.what for suspect in drifting.suspects if suspect.seen]
    assert seen[0] == "optimizer.lr 0.02, reference 0.002"
    assert seen[1].startswith("optimizer.weight_decay 0.2") and len(seen) == 4
    assert all(suspect.check for suspect in drifting.suspects)
    plateau = compare_run(run_of(records(shifted(SHAPES["plateau"])), changed(model__dropout=0.1)), TINY)
    assert plateau.suspects[0].what == "model.dropout 0.1, reference 0" and plateau.suspects[0].seen


def test_a_run_with_a_seed_of_the_reference_is_held_against_that_seed():
    """A part of the band is told, of the same seed; nothing of another seed."""
    seed = TINY.seeds[0]
    same = compare_run(run_of(records(seed_losses(seed)), changed(seed=seed)), TINY)
    assert same.is_right and "It is the same run" in same.remarks[-1]
    assert same.apart == pytest.approx(0)
    near = [loss + (2 * TINY.rounding if step >= 100 else 0) for step, loss in enumerate(seed_losses(seed))]
    other = compare_run(run_of(records(near), changed(seed=seed)), TINY)
    assert (
        other.is_right and f"at most {2 * TINY.rounding:.4f} apart, and from step 150 on" in other.remarks[-1]
    )
    assert compare_run(run_of(records(near), changed(seed=99)), TINY).remarks == []


@pytest.mark.parametrize(("start", "suspected"), [({"ranks": 1}, False), ({"ranks": 2}, True), ({}, True)])
def test_ranks_are_suspected_where_there_may_be_several(start, suspected):
    run = dataclasses.replace(run_of(records(TINY.losses[0] + 1)), starts=[{"step": 0, **start}])
    found = compare_run(run, TINY).suspects
    assert any("ranks" in one.what for one in found) == suspected


def test_what_changes_no_loss_is_no_suspect():
    config = changed(run_dir="elsewhere", micro_batch_size=1, seed=99, threads=3, **{"layout__dp": 4})
    assert compare_run(run_of(records(seed_losses(TINY.seeds[0])), config), TINY).suspects == []


def test_the_learning_rate_is_compared_step_by_step():
    train = records(seed_losses(TINY.seeds[0]))
    for record in train[20:]:
        record["lr"] *= 2
    found = compare_run(run_of(train, changed(schedule_steps=800)), TINY)
    assert found.is_right  # whatever its settings, its losses are right
    (suspect,) = found.suspects
    assert suspect.what.startswith("schedule's horizon 800, reference 400; the learning rate of step 210 was")


def test_other_vocabularies_are_compared_by_bits_per_byte():
    """With the same text in half as many tokens, the loss a token is twice as large."""
    train = records([2 * loss for loss in seed_losses(TINY.seeds[0])], 10)
    config = changed(model__vocab_size=9000)
    bits = 2 * TINY.bytes_per_token * math.log(2)
    validation = [{"step": 100, "loss": 2 * 5.65, "bits_per_byte": 2 * 5.65 / bits}]
    found = compare_run(run_of(train, config, validation=validation), TINY)
    assert found.unit == "bits a byte" and found.is_right
    assert found.windows[-1].expected == pytest.approx(np.mean(TINY.validations[100]) / bits * 2)
    assert found.suspects[0].what == "model.vocab_size 9000, reference 4096"
    unknown = compare_run(run_of(train, config), TINY)
    assert not unknown.windows and "bits a byte" in unknown.remarks[-1]


def test_a_run_without_losses_is_refused(tmp_path):
    (tmp_path / "config.yaml").write_text(yaml.safe_dump({"num_steps": 5}))
    with pytest.raises(DataError, match=r"no loss to compare.*log\.interval"):
        compare_run(read_run(tmp_path, "run"), TINY)


def published_run(factor, path="data/fineweb10B", vocab_size=50257):
    """A run with the published losses times a factor, validated at other steps than those."""
    steps = [point.step + 125 for point in GPT2.points[:-2]]
    losses = np.interp(steps, [point.step for point in GPT2.points], [point.loss for point in GPT2.points])
    train = [
        {"kind": "train", "step": step, "tokens": step * 524288, "tokens_per_second": 1e6} for step in steps
    ]
    run = run_of(
        train,
        {"data.path": path, "model.vocab_size": vocab_size, "num_steps": 19073},
        validation=[{"step": step, "loss": loss * factor} for step, loss in zip(steps, losses, strict=True)],
    )
    from groundup.report.run_records import _places

    return RunRecords(**{**_fields(run), "places": list(_places(train))})


def test_a_published_curve_is_compared_at_the_same_tokens():
    assert compare_run(published_run(1.0), GPT2).is_right
    worse = compare_run(published_run(3.3969 / 3.2722), GPT2)  # a replication that had failed at the end
    assert worse.shape == "offset" and len(worse.outside) == len(worse.windows) == 78
    other = compare_run(published_run(1.0, path="data/openwebtext"), GPT2)
    assert not other.windows and "losses on other texts cannot be compared" in other.remarks[-1]
    assert compare_run(published_run(1.0, path="data/openwebtext"), GPT2, same_data=True).is_right
    others = compare_run(published_run(1.0, vocab_size=32000), GPT2)
    assert not others.windows and "published losses do not tell" in others.remarks[-1]


def test_the_published_points_are_those_of_their_source():
    points = {point.step: (point.tokens, point.loss) for point in GPT2.points}
    assert points[0] == (0, 11.0092) and points[10000] == (5_242_880_000, 3.3924)
    assert points[19560] == (10_255_073_280, 3.2722) and len(points) == 80
    assert abs(points[0][1] - math.log(50257)) < 0.5


def test_runs_that_were_tried_are_judged_as_the_table_says():
    """The recorded losses of runs with known faults: those that show are found, and none that is right."""
    tree = json.loads(TRIED.read_text())
    judged = {}
    for name, found in tree["runs"].items():
        kinds = {}
        for record in found["records"]:
            kinds.setdefault(record["kind"], []).append(record)
        run = run_of(kinds["train"], found["config"], validation=kinds.get("validation", ()))
        judged[name] = compare_run(run, TINY)
        if found["right"]:
            assert judged[name].is_right, name
    outside = {name for name, found in judged.items() if found.outside}
    assert outside == {*OUTSIDE}
    wrong = {name for name, found in tree["runs"].items() if not found["right"]}
    other = {name for name, found in judged.items() if found.apart and found.apart > TINY.rounding}
    assert other == wrong - {"weight decay 0"}  # which shows later
    firsts = {name: judged[name].suspects[0] for name in wrong}
    assert all(firsts[name].what.startswith(key) and firsts[name].seen for name, key in SETTINGS.items())
    assert firsts["targets off by one"].what.startswith("targets that are not the next tokens")
    assert firsts["targets are the inputs"].what.startswith("tokens that see what they shall predict")


SETTINGS = {
    "learning rate x 10": "optimizer.lr 0.02",
    "learning rate / 10": "optimizer.lr 0.0002",
    "half the batch": "global_batch_size 2",
    "init_std x 10": "model.init_std 0.2",
    "untied embeddings": "model.tied_embedding",
    "no warm-up": "warmup.fraction",
    "horizon of 1,500 steps": "schedule's horizon 1500",
    "beta2 0.999": "optimizer.adamw.beta2",
    "weight decay 0": "optimizer.weight_decay 0",
}
OUTSIDE = (
    *("learning rate x 10", "learning rate / 10", "half the batch", "init_std x 10"),
    *("targets off by one", "targets shuffled", "targets are the inputs", "data not shuffled"),
)


@pytest.fixture
def folder(tmp_path):
    """A run folder with the losses of a seed."""
    (tmp_path / "metrics.jsonl").write_bytes(
        b"\n".join(map(orjson.dumps, records(seed_losses(TINY.seeds[1]))))
    )
    tree = {"num_steps": 400, "model": {"vocab_size": 4096}, "optimizer": {"lr": 0.002}}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(tree))
    return tmp_path


def test_the_command_says_what_it_found(folder, capsys):
    compare(folder, "ref:tiny")
    out = capsys.readouterr().out
    assert "five seeds" in out and "inside: as it should be" in out and "OUTSIDE" not in out
    compare(folder, "ref:tiny", json=True)
    assert json.loads(capsys.readouterr().out)["shape"] == "inside"
    worse = records([loss + 1 for loss in seed_losses(TINY.seeds[1])])
    (folder / "metrics.jsonl").write_bytes(b"\n".join(map(orjson.dumps, worse)))
    with pytest.raises(TrainingError, match="outside the band since step 10, offset"):
        compare(folder, "ref:tiny")
    out = capsys.readouterr().out
    assert "OUTSIDE, above" in out and "  1. targets that are not the next tokens" in out
    with pytest.raises(DataError, match="nothing could be compared"):
        compare(folder, "ref:gpt2-124m")


def test_the_command_knows_its_references(folder, capsys):
    compare(list_references=True)
    out = capsys.readouterr().out
    assert all(f"ref:{name}" in out for name in reference_names()) and "quickstart num_steps=400" in out
    with pytest.raises(ConfigError, match=r"ref:gpt2-124m, ref:tiny\). Did you mean 'tiny'\?"):
        compare(folder, "ref:tinny")
    with pytest.raises(ConfigError, match="groundup report"):
        compare(folder, str(folder))
    with pytest.raises(ConfigError, match="takes two"):
        compare()
