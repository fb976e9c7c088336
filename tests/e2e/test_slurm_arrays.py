"""deploy/slurm/data.sh: corpora and tokens by arrays of jobs, with an sbatch that is played."""

import sys
from pathlib import Path

import pytest

from tests.guides import ROOT, run, shell

RECIPE = """
stages:
  - {kind: import, sources: [texts]}
  - {kind: exact_dedup}
  - {kind: shuffle, seed: 1}
num_shards: 4
"""


@pytest.fixture
def submit(tmp_path):
    """What submits a command to an array of two jobs; returns its end and what all jobs have said so far."""
    sbatch = tmp_path / "bin/sbatch"
    sbatch.parent.mkdir()
    sbatch.write_text(f"#!{sys.executable}\n" + Path(__file__).with_name("fake_slurm.py").read_text())
    sbatch.chmod(0o755)

    def submit(words: str, rounds: int):
        settings = f"PATH=$PATH:{sbatch.parent} FAKE_SLURM={tmp_path} SLURM_CPUS_PER_TASK=0 ROUNDS={rounds}"
        done = shell(f"{settings} {ROOT}/deploy/slurm/data.sh 2 {words}", tmp_path)
        return done, (tmp_path / "log").read_text()

    return submit


def contents(folder: Path, pattern: str) -> list[bytes]:
    return [path.read_bytes() for path in sorted(folder.glob(pattern))]


def make_texts(folder: Path) -> None:
    folder.mkdir()
    for number in range(40):
        (folder / f"{number}.txt").write_text(f"Text number {number % 30} is about {number % 30 * 7}.")


@pytest.mark.exhaustive
def test_arrays_make_the_corpus_that_one_process_does(submit, tmp_path):
    make_texts(tmp_path / "texts")
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    done, log = submit("corpus run recipe.yaml -o shared", rounds=6)
    assert done.returncode == 0, log
    assert done.stdout == "job 7 ends it\n"
    assert "all stages are done" in log  # the last job had only the corpus to write
    run("groundup corpus run recipe.yaml -o alone --workers 0", tmp_path)
    assert len(contents(tmp_path / "alone", "documents-*")) == 4
    assert contents(tmp_path / "shared", "documents-*") == contents(tmp_path / "alone", "documents-*")


def test_an_array_makes_the_tokens_that_one_process_does(submit, tmp_path):
    make_texts(tmp_path / "texts")
    build = "tokens build texts --tokenizer bytes --prefix"
    done, log = submit(f"{build} shared/tokens", rounds=1)
    assert done.returncode == 0, log
    assert done.stdout == "job 2 ends it\n"
    run(f"groundup {build} alone/tokens --workers 0", tmp_path)
    assert len(contents(tmp_path / "alone", "*.bin")) == 1
    assert contents(tmp_path / "shared", "*.bin") == contents(tmp_path / "alone", "*.bin")


def test_a_job_that_fails_ends_the_chain(submit):
    done, log = submit("tokens build nothing --tokenizer bytes --prefix tokens", rounds=2)
    assert done.returncode == 1
    assert "ends it" not in done.stdout
    assert log.count("groundup: ") == 2  # of the first array, and no job came after
