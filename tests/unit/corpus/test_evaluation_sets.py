"""Files of evaluation items: found by the names of their tasks, read in their official forms."""

import gzip
import shutil

import pytest

from groundup.core.errors import DataError
from groundup.corpus.evaluation_sets import EVALUATION_SETS, EvaluationFile, find_evaluation_files
from tests.task_files import write_task_file

OFFICIAL_NAMES = {
    "piqa": "piqa/valid.jsonl",
    "arc_easy": "ARC-Easy/ARC-Easy-Test.jsonl",
    "arc_challenge": "ARC-Challenge/ARC-Challenge-Test.jsonl",
    "openbookqa": "OpenBookQA-V1-Sep2018/Data/Main/test.jsonl",
    "boolq": "boolq/dev.jsonl",
    "sciq": "SciQ/test.jsonl",
    "winogrande": "winogrande_1.1/dev.jsonl",
    "mmlu": "data/test/boating_test.csv",
}


@pytest.fixture
def official(tmp_path):
    """A folder with the file of every task, named as its authors do; kind -> path."""
    paths = {}
    for kind in EVALUATION_SETS:
        path = write_task_file(kind, tmp_path)
        paths[kind] = tmp_path / OFFICIAL_NAMES.get(kind, path.name)
        paths[kind].parent.mkdir(parents=True, exist_ok=True)
        shutil.move(path, paths[kind])
    return paths


def test_each_task_finds_its_own_file_among_all(official, tmp_path):
    for kind, path in official.items():
        assert find_evaluation_files([kind], [tmp_path]) == [EvaluationFile(path, kind)]
    found = find_evaluation_files([*official, "lambada"], [tmp_path])
    assert [file.task for file in found] == list(official)
    named = find_evaluation_files(["piqa"], [official["boolq"]])
    assert named == [EvaluationFile(official["boolq"], "piqa")]  # the only task takes the file that is named


def test_files_and_tasks_may_be_mixed(official, tmp_path):
    (tmp_path / "mine.jsonl").write_text('{"question": "a", "options": ["b", "c"]}\n')
    mine = str(tmp_path / "mine.jsonl")
    files = find_evaluation_files(["hellaswag", mine], [tmp_path])
    assert [file.task for file in files] == ["hellaswag", ""]
    assert list(files[1].items()) == [(":1", ["a b", "a c"])]


def test_compressing_a_file_changes_neither_its_checksum_nor_its_items(official, tmp_path):
    plain = EvaluationFile(official["lambada"], "lambada")
    path = tmp_path / "other.jsonl.gz"
    path.write_bytes(gzip.compress(official["lambada"].read_bytes()))
    packed = EvaluationFile(path, "lambada")
    assert packed.checksum == plain.checksum
    assert list(packed.items()) == list(plain.items())
    official["lambada"].write_text(official["lambada"].read_text() + " ")
    assert plain.checksum != packed.checksum


def test_marks_of_hellaswag_do_not_part_its_words(tmp_path):
    path = tmp_path / "hellaswag_val.jsonl"
    path.write_text('{"ctx": "Roof: up [header] he [step] goes", "endings": ["on [title] top"]}\n')
    assert list(EvaluationFile(path, "hellaswag").items()) == [(":1", ["Roof: up he goes on top"])]


@pytest.mark.parametrize(
    ("against", "message"),
    [
        ("lambda", "Did you mean 'lambada'"),
        ("perplexity", "no such file of items, and no such task"),
        ("boolq", r"there is no file of boolq, named like \*boolq\*val"),
    ],
)
def test_what_is_not_there_is_told(tmp_path, against, message):
    write_task_file("lambada", tmp_path)
    with pytest.raises(DataError, match=message):
        find_evaluation_files([against], [tmp_path])
    with pytest.raises(DataError, match="no such file or folder"):
        find_evaluation_files(["lambada"], [tmp_path / "none"])
    with pytest.raises(DataError, match="where the file of lambada lies is not said"):
        find_evaluation_files(["lambada"], [])


def test_a_file_of_another_task_is_refused(official):
    with pytest.raises(DataError, match=r"boolq/dev\.jsonl:1: the item has no field 'endings'"):
        list(EvaluationFile(official["boolq"], "hellaswag").items())
