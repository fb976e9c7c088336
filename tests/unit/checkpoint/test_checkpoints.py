"""Native checkpoints: chunks of tensors, files, damage, saving in the background, and the verbs for them."""

import dataclasses
import errno
import itertools
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from groundup.checkpoint.compare import compare
from groundup.checkpoint.lazy import in_memory
from groundup.checkpoint.native import commit
from groundup.checkpoint.native.contents import file_name, write_chunks
from groundup.checkpoint.native.folder import (
    checkpoint_path,
    find_damage,
    find_newest,
    list_checkpoints,
    resolve_checkpoint,
    step_of,
)
from groundup.checkpoint.native.load import TensorGroup, load_into
from groundup.checkpoint.native.shards import Chunk, ShardMetadata, plan_save
from groundup.checkpoint.safetensors import write_safetensors
from groundup.cli.app import run as run_line
from groundup.core.errors import CheckpointError, GroundupError, MachineError
from groundup.core.files import checksum
from groundup.core.manifest import describe_files, write_manifest
from groundup.models.gpt2 import GPT2Config
from groundup.train.config import TrainConfig
from groundup.train.setup import build_run
from tests.runs import checkpoint_manifest, losses, make_config, make_data, run

CONFIG = GPT2Config(
    vocab_size=300, max_sequence_length=8, num_layers=1, hidden_size=8, num_heads=2, ffn_size=16
)


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    return make_data(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def trained(data, tmp_path_factory) -> TrainConfig:
    """A run with checkpoints of steps 3 and 6."""
    config = make_config(data, tmp_path_factory.mktemp("trained") / "run")
    run(config)
    return config


def copied(config: TrainConfig, folder: Path) -> TrainConfig:
    shutil.copytree(config.run_dir, folder, symlinks=True)
    return dataclasses.replace(config, run_dir=folder)


def groundup(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        run_line(arguments)
    assert not ended.value.code


def describe(folder: Path) -> None:
    """Writes the manifest of the files that a folder has."""
    files = describe_files(folder, [path.name for path in folder.iterdir()])
    write_manifest(folder / "manifest.json", checkpoint_manifest(files))


# Chunks


@st.composite
def grids(draw) -> tuple[tuple[int, ...], list[list[int]]]:
    """A shape, and where each of its dimensions is cut."""
    shape = tuple(draw(st.lists(st.integers(1, 9), min_size=1, max_size=3)))
    cuts = [sorted(draw(st.sets(st.integers(0, length), max_size=3)) | {0, length}) for length in shape]
    return shape, cuts


def chunks_of(cuts: list[list[int]]) -> list[Chunk]:
    chunks = [Chunk((), ())]
    for dim in cuts:
        chunks = [
            Chunk((*chunk.offset, begin), (*chunk.shape, end - begin))
            for chunk in chunks
            for begin, end in itertools.pairwise(dim)
        ]
    return chunks


@given(written=grids(), data=st.data(), dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.int64]))
@settings(max_examples=60, deadline=None)
def test_any_chunk_is_read_from_any_chunks(tmp_path_factory, written, data, dtype) -> None:
    shape, cuts = written
    whole = torch.arange(torch.Size(shape).numel()).reshape(shape).to(dtype)
    chunks = chunks_of(cuts)
    folder = tmp_path_factory.mktemp("chunks")
    shares = [{("model", "x"): ShardMetadata(dtype, shape, chunk)} for chunk in chunks] + [{}]
    origin = Chunk((0,) * len(shape), shape)
    for rank, chunk in enumerate(chunks):
        write_safetensors(
            folder / file_name("model", rank, len(shares)),
            {"x": in_memory(chunk.of(whole, origin).contiguous())},
        )
    write_chunks(folder, ["model"], shares)
    describe(folder)
    group = TensorGroup(folder, "model")
    assert torch.equal(group.read("x"), whole)
    begins = [data.draw(st.integers(0, length - 1)) for length in shape]
    lengths = [data.draw(st.integers(1, length - begin)) for begin, length in zip(begins, shape, strict=True)]
    wanted = Chunk(tuple(begins), tuple(lengths))
    room = torch.zeros([2 * length for length in lengths], dtype=torch.float64)
    target = room[tuple(slice(0, None, 2) for _ in lengths)]  # not contiguous, and of another dtype
    group.read_into("x", wanted, target)
    assert torch.equal(target, wanted.of(whole, origin).double())


@given(holders=st.lists(st.sets(st.integers(0, 3), min_size=1), min_size=1, max_size=12))
def test_every_chunk_is_written_by_one_of_its_holders(holders) -> None:
    chunk = Chunk((0,), (5,))
    plans: list[dict] = [{} for _ in range(4)]
    for number, ranks in enumerate(holders):
        for rank in ranks:
            plans[rank]["model", f"t{number}"] = ShardMetadata(torch.float32, (5,), chunk)
    shares = plan_save(plans)
    for number, ranks in enumerate(holders):
        writers = [rank for rank, share in enumerate(shares) if ("model", f"t{number}") in share]
        assert len(writers) == 1
        assert writers[0] in ranks


def test_what_all_ranks_hold_is_spread_evenly() -> None:
    held = {
        ("model", f"t{i}"): ShardMetadata(torch.float32, (1 + i,), Chunk((0,), (1 + i,))) for i in range(40)
    }
    sizes = [sum(one.size_bytes for one in share.values()) for share in plan_save([held] * 4)]
    assert max(sizes) - min(sizes) <= 8


def test_chunks_that_are_not_the_whole_are_our_own_mistake() -> None:
    with pytest.raises(AssertionError, match="not the whole"):
        plan_save([{("model", "x"): ShardMetadata(torch.float32, (4,), Chunk((0,), (3,)))}])


def test_padded_rows_become_zero_and_mismatches_are_listed(tmp_path) -> None:
    values = torch.rand(300, 8)
    write_safetensors(tmp_path / "model.safetensors", {"embed.tokens.weight": in_memory(values)})
    describe(tmp_path)
    group = TensorGroup(tmp_path, "model")
    table = torch.full((384, 8), 7.0)
    load_into(group, [("embed.tokens.weight", table)], CONFIG)
    assert torch.equal(table[:300], values)
    assert not table[300:].any()
    with pytest.raises(CheckpointError, match=r"missing: norm.weight"):
        load_into(group, [("norm.weight", torch.empty(8))], CONFIG)
    with pytest.raises(CheckpointError, match=r"has shape \(300, 8\), expected \(300, 4\)"):
        load_into(group, [("embed.tokens.weight", torch.empty(384, 4))], CONFIG)


def test_files_are_safetensors_with_their_checksum(tmp_path) -> None:
    tensors = {"a": torch.rand(3, 5), "b": torch.tensor(2.5), "c": torch.rand(700_000).bfloat16()}
    path = tmp_path / "x.safetensors"
    written = write_safetensors(path, {name: in_memory(tensor) for name, tensor in tensors.items()})
    assert written == checksum(path)
    read = load_file(path)
    assert read.keys() == tensors.keys()
    assert all(torch.equal(read[name], tensors[name]) for name in tensors)


# Damage


def test_a_flip_or_a_cut_anywhere_in_any_file_is_named_and_passed_over(trained, tmp_path, caplog) -> None:
    randomness = random.Random(5)
    newest = checkpoint_path(trained.run_dir / "checkpoints", 6)
    for path in sorted(path for path in newest.rglob("*") if path.is_file()):
        content = path.read_bytes()
        for damaged in (
            _flipped(content, randomness),
            content[: randomness.randrange(len(content))],
        ):
            path.write_bytes(damaged)
            caplog.clear()
            assert find_newest(trained.run_dir / "checkpoints")[0].name == "step_0000003", path
            assert "skipping checkpoint" in caplog.text
            assert "step_0000006" in caplog.text
            assert path.name in caplog.text
        path.unlink()
        caplog.clear()
        assert find_newest(trained.run_dir / "checkpoints")[0].name == "step_0000003", path
        assert path.name in caplog.text
        path.write_bytes(content)
    assert find_damage(newest) is None


def _flipped(content: bytes, randomness: random.Random) -> bytes:
    changed = bytearray(content)
    changed[randomness.randrange(len(changed))] ^= 1 << randomness.randrange(8)
    return bytes(changed)


# Saving in the background


def test_a_run_that_saves_in_the_background_is_the_same_run(trained, data, tmp_path) -> None:
    config = make_config(
        data,
        tmp_path / "run",
        "checkpoint.asynchronous=true",
        "checkpoint.interval=1",
        "checkpoint.keep_every=2",
    )
    records = run(config)
    folders = list_checkpoints(config.run_dir / "checkpoints")
    assert [step_of(folder) for folder in folders] == [2, 4, 5, 6]
    assert [find_damage(folder) for folder in folders] == [None] * 4
    found = list(compare(checkpoint_path(trained.run_dir / "checkpoints", 6), folders[-1]))
    assert len(found) > 100
    assert all(one.is_equal for one in found)
    shutil.rmtree(folders[-1])
    shutil.rmtree(folders[-2])
    assert losses(run(config)) == losses(
        records
    )  # from step 4, whose copy was taken before step 5 changed it


def test_saves_in_the_background_do_not_overlap_and_hold_what_was_then(data, tmp_path, monkeypatch) -> None:
    config = make_config(data, tmp_path / "run", "checkpoint.asynchronous=true")
    writing, most = [], []
    go = threading.Event()

    def slow(path, tensors, **_):
        writing.append(path)
        most.append(len({one.parent for one in writing}))
        go.wait(30)
        result = write_safetensors(path, tensors)
        writing.remove(path)
        return result

    monkeypatch.setattr(commit, "write_safetensors", slow)
    built = build_run(config)
    name, parameter = next(iter(built.state.model.named_parameters()))
    before = parameter.detach()[:300].clone()
    with built.writer:
        built.save(wait=False)
        with torch.no_grad():
            parameter.zero_()
        assert not checkpoint_path(built.checkpoints_dir, 0).exists()
        built.state.step = 1
        threading.Timer(0.2, go.set).start()
        built.save(wait=False)
    assert max(most) == 1
    assert torch.equal(TensorGroup(checkpoint_path(built.checkpoints_dir, 0), "model").read(name), before)
    assert not TensorGroup(checkpoint_path(built.checkpoints_dir, 1), "model").read(name).any()


def test_a_failure_in_the_background_ends_the_run_at_the_next_step(data, tmp_path, monkeypatch) -> None:
    config = make_config(
        data, tmp_path / "run", "checkpoint.asynchronous=true", "num_steps=1000", "log.interval=1"
    )

    def full(path, tensors, **_):
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr(commit, "write_safetensors", full)
    with pytest.raises(MachineError, match=r"step 3 could not be written .*No space left.*are intact"):
        run(dataclasses.replace(config, checkpoint=dataclasses.replace(config.checkpoint, interval=3)))
    assert list((config.run_dir / "checkpoints").iterdir()) == []


# The verbs


def test_ls_show_and_verify(trained, tmp_path, capsys) -> None:
    config = copied(trained, tmp_path / "run")
    groundup(["checkpoint", "ls", str(config.run_dir)])
    listed = capsys.readouterr().out
    assert "step_0000003" in listed
    assert listed.count("whole") == 2
    groundup(["checkpoint", "show", str(config.run_dir), "--tensors"])
    shown = capsys.readouterr().out
    assert "vocab_size 300" in shown
    assert "embed.tokens.weight  float32 [300, 32]  model.safetensors" in shown
    groundup(["checkpoint", "verify", str(config.run_dir)])
    assert capsys.readouterr().out.count("sound") == 2
    path = checkpoint_path(config.run_dir / "checkpoints", 3) / "optimizer.safetensors"
    path.write_bytes(_flipped(path.read_bytes(), random.Random(1)))
    with pytest.raises(CheckpointError, match="1 of 2 checkpoints are damaged: step_0000003"):
        run_line(["checkpoint", "verify", str(config.run_dir)])
    assert "optimizer.safetensors does not match its checksum" in capsys.readouterr().out


def test_diff_names_what_differs(trained, tmp_path, capsys) -> None:
    checkpoints = trained.run_dir / "checkpoints"
    groundup(["checkpoint", "diff", str(checkpoints / "step_0000003"), str(checkpoints / "step_0000003")])
    assert "tensors are equal" in capsys.readouterr().out
    with pytest.raises(CheckpointError, match="tensors differ"):
        run_line(["checkpoint", "diff", str(checkpoints / "step_0000003"), str(checkpoints), "--all"])
    assert "embed.tokens.weight  largest difference" in capsys.readouterr().out
    groundup(["checkpoint", "slim", str(checkpoints), str(tmp_path / "slim")])
    capsys.readouterr()
    with pytest.raises(CheckpointError):
        run_line(["checkpoint", "diff", str(checkpoints), str(tmp_path / "slim"), "--all"])
    out = capsys.readouterr().out
    assert "optimizer  norm.weight/exp_avg  only in the first" in out
    assert "model  norm.weight  equal" in out


def test_average_is_the_mean(trained, tmp_path, capsys) -> None:
    folders = list_checkpoints(trained.run_dir / "checkpoints")
    groundup(["checkpoint", "average", *map(str, folders), "--out", str(tmp_path / "mean")])
    mean, *both = (TensorGroup(resolve_checkpoint(path), "model") for path in (tmp_path / "mean", *folders))
    assert not TensorGroup(resolve_checkpoint(tmp_path / "mean"), "optimizer")
    for name in mean:
        expected = (both[0].read(name).double() + both[1].read(name).double()) / 2
        assert torch.equal(mean.read(name), expected.float())
    with pytest.raises(GroundupError, match="two checkpoints or more"):
        run_line(["checkpoint", "average", str(folders[0]), "--out", str(tmp_path / "one")])


def test_prune_counts_sound_ones_only(trained, tmp_path, capsys) -> None:
    config = copied(trained, tmp_path / "run")
    checkpoints = config.run_dir / "checkpoints"
    (checkpoint_path(checkpoints, 6) / "COMPLETE").unlink()
    groundup(["checkpoint", "prune", str(config.run_dir), "--keep-last", "1", "--dry-run"])
    assert len(list_checkpoints(checkpoints)) == 2
    groundup(["checkpoint", "prune", str(config.run_dir), "--keep-last", "1"])
    assert [folder.name for folder in list_checkpoints(checkpoints)] == ["step_0000003", "step_0000006"]
    assert f"left, damaged: {checkpoints / 'step_0000006'} (incomplete" in capsys.readouterr().out
    assert (checkpoints / "latest").resolve().name == "step_0000003"


@pytest.mark.parametrize("kind", ["memory", "file"])
def test_push_and_pull_keep_every_byte(trained, data, tmp_path, kind) -> None:
    pytest.importorskip("fsspec")
    url = f"memory://{tmp_path.name}/run" if kind == "memory" else f"file://{tmp_path}/store/run"
    checkpoints = trained.run_dir / "checkpoints"
    groundup(["checkpoint", "push", str(checkpoints / "step_0000003"), url])
    groundup(["checkpoint", "push", str(trained.run_dir), url])
    groundup(["checkpoint", "push", str(trained.run_dir), url])  # is there: nothing to do
    groundup(["checkpoint", "pull", url, str(tmp_path / "pulled")])
    pulled = checkpoint_path(tmp_path / "pulled/checkpoints", 6)
    for path in (path for path in (checkpoints / "step_0000006").rglob("*") if path.is_file()):
        assert (pulled / path.relative_to(checkpoints / "step_0000006")).read_bytes() == path.read_bytes()
    with pytest.raises(CheckpointError, match="is there already"):
        run_line(["checkpoint", "pull", url, str(tmp_path / "pulled")])
    longer = make_config(data, tmp_path / "pulled", "num_steps=7", "schedule_steps=6")
    assert list(losses(run(longer))) == [7]


def test_what_is_incomplete_or_damaged_in_storage_is_refused(trained, tmp_path) -> None:
    pytest.importorskip("fsspec")
    url, folder = f"file://{tmp_path}/store", tmp_path / "store/step_0000006"
    with pytest.raises(CheckpointError, match="no complete checkpoint"):
        run_line(["checkpoint", "pull", url, str(tmp_path / "pulled")])
    groundup(["checkpoint", "push", str(trained.run_dir), url])
    shutil.copytree(folder, tmp_path / "store/step_renamed")
    with pytest.raises(CheckpointError, match="not named like a checkpoint"):
        run_line(["checkpoint", "pull", f"{url}/step_renamed", str(tmp_path / "pulled")])
    weights = folder / "model.safetensors"
    content = weights.read_bytes()
    weights.write_bytes(_flipped(content, random.Random(2)))
    with pytest.raises(CheckpointError, match=r"arrived damaged: model\.safetensors does not match"):
        run_line(["checkpoint", "pull", url, str(tmp_path / "pulled")])
    weights.unlink()
    with pytest.raises(GroundupError, match=r"model\.safetensors"):
        run_line(["checkpoint", "pull", url, str(tmp_path / "pulled")])
    manifest = (folder / "manifest.json").read_text()
    (folder / "manifest.json").write_text(manifest.replace('"model.safetensors"', '"../model.safetensors"'))
    with pytest.raises(CheckpointError, match=r"outside of the checkpoint: '\.\./model\.safetensors'"):
        run_line(["checkpoint", "pull", url, str(tmp_path / "pulled")])
    assert list((tmp_path / "pulled/checkpoints").iterdir()) == []
    assert list_checkpoints(tmp_path / "pulled/checkpoints") == []
    (folder / "COMPLETE").unlink()
    with pytest.raises(CheckpointError, match="no complete checkpoint"):
        run_line(["checkpoint", "pull", url, str(tmp_path / "pulled")])


# Kill and memory


NURSERY = """
import os, sys
from pathlib import Path
import torch
torch.set_num_threads(1)
from tests.runs import make_config, run
for line in sys.stdin:
    child = os.fork()
    if child == 0:
        run(make_config(Path(sys.argv[1]), Path(sys.argv[2]), *line.split()))
        os._exit(0)
    print(child, flush=True)
    os.waitpid(child, 0)
"""
"""Trains in a new process for each line of settings, without importing all again."""


@pytest.mark.slow
def test_killed_at_random_instants_of_saving_a_run_always_goes_on(data, tmp_path) -> None:
    """At most one interval is lost, and what remains is an unbroken run; GROUNDUP_KILLS sets how often."""
    interval, num_kills = 2, int(os.environ.get("GROUNDUP_KILLS", "20"))
    randomness = random.Random(3)
    horizon = "schedule_steps=1000000"
    settings = ("num_steps=1000000", horizon, f"checkpoint.interval={interval}", "log.interval=100")
    run_dir = tmp_path / "run"
    checkpoints = run_dir / "checkpoints"
    reached = 0
    with subprocess.Popen(
        [sys.executable, "-c", NURSERY, data, run_dir],
        cwd=Path(__file__).parents[3],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as nursery:
        for kill in range(num_kills):
            asynchronous = f"checkpoint.asynchronous={str(kill % 2 == 1).lower()}"
            nursery.stdin.write(" ".join((*settings, asynchronous)) + "\n")
            nursery.stdin.flush()
            child = int(nursery.stdout.readline())
            _wait_for_a_save(checkpoints, after=reached)
            time.sleep(randomness.uniform(0, 0.1))
            seen = max(map(step_of, list_checkpoints(checkpoints)))
            os.kill(child, signal.SIGKILL)
            while Path(f"/proc/{child}").exists():
                time.sleep(0.001)
            newest, _ = find_newest(checkpoints)
            assert newest is not None
            assert step_of(newest) >= seen
            reached = step_of(newest)
        nursery.stdin.close()
    last = (f"num_steps={reached + 1}", horizon, "log.interval=100")
    run(make_config(data, run_dir, *last))
    run(make_config(data, tmp_path / "unbroken", *last, "checkpoint.interval=1000000"))
    name = checkpoint_path(Path("checkpoints"), reached + 1)
    found = list(compare(run_dir / name, tmp_path / "unbroken" / name))
    assert len(found) > 100
    assert all(one.is_equal for one in found)


def _wait_for_a_save(checkpoints: Path, *, after: int) -> None:
    deadline = time.monotonic() + 100
    while time.monotonic() < deadline:
        if any(step_of(folder) > after for folder in list_checkpoints(checkpoints)):
            return
        time.sleep(0.002)
    raise AssertionError("saved nothing in 100 seconds")


@pytest.mark.slow
def test_resuming_needs_no_more_memory_than_starting(data, tmp_path) -> None:
    """Peak of a fresh process, to the end of a step; the model is 80 MB so that a copy would show."""
    size = ("model.hidden_size=512", "model.num_heads=8", "model.ffn_size=2048", "model.num_layers=6")
    code = (
        "import sys, resource; from pathlib import Path; from tests.runs import make_config, run;"
        f"names = {size!r};"
        "run(make_config(Path(sys.argv[1]), Path(sys.argv[2]), *names, *sys.argv[3:]));"
        "status = Path('/proc/self/status').read_text();"
        "print([line for line in status.splitlines() if line.startswith('VmHWM')][0].split()[1])"
    )

    def peak(*names: str) -> int:
        done = subprocess.run(
            [sys.executable, "-c", code, data, tmp_path / "run", *names],
            cwd=Path(__file__).parents[3],
            capture_output=True,
            text=True,
            check=True,
        )
        return int(done.stdout.split()[-1])

    horizon = "schedule_steps=6"
    fresh = peak("num_steps=2", horizon, "checkpoint.interval=2")
    resumed = peak("num_steps=4", horizon, "checkpoint.interval=4")
    assert resumed <= 1.02 * fresh
