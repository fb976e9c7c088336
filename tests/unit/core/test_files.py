"""Files are whole or absent; manifests notice damage."""

import gzip
from typing import Literal

import pytest
import zstandard

from groundup.core.compressed import open_decompressed
from groundup.core.config import to_dict
from groundup.core.config_class import config
from groundup.core.errors import DataError, MachineError
from groundup.core.files import atomic_folder, atomic_write, read_json, require_free_space, write_json
from groundup.core.manifest import (
    FileRecord,
    describe_files,
    find_damage,
    fingerprint,
    read_manifest,
    write_manifest,
)


def test_a_failed_write_leaves_the_old_file_and_no_litter(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with pytest.raises(RuntimeError), atomic_write(path) as file:
        file.write(b"half")
        raise RuntimeError
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_failed_folder_leaves_the_old_one_and_no_litter(tmp_path):
    for folder in (tmp_path / "old", tmp_path / "new/parent/folder"):
        if folder.name == "old":
            folder.mkdir()
            (folder / "file").write_bytes(b"old")
        with pytest.raises(RuntimeError), atomic_folder(folder) as temporary:
            (temporary / "file").write_bytes(b"half")
            raise RuntimeError
    assert [path.relative_to(tmp_path).as_posix() for path in sorted(tmp_path.rglob("*"))] == [
        "old",
        "old/file",
    ]
    assert (tmp_path / "old/file").read_bytes() == b"old"


def test_a_folder_replaces_the_old_one(tmp_path):
    (tmp_path / "folder/deep").mkdir(parents=True)
    with atomic_folder(tmp_path / "folder") as temporary:
        (temporary / "file").write_bytes(b"new")
        assert (tmp_path / "folder/deep").is_dir()
    assert [path.relative_to(tmp_path).as_posix() for path in sorted(tmp_path.rglob("*"))] == [
        "folder",
        "folder/file",
    ]


def test_compressed_streams_read_the_same(tmp_path):
    content = b"line\n" * 10_000
    (tmp_path / "a").write_bytes(content)
    (tmp_path / "a.gz").write_bytes(gzip.compress(content))
    two_frames = zstandard.compress(content[:100]) + zstandard.compress(content[100:])
    (tmp_path / "a.zst").write_bytes(two_frames)
    for name in ("a", "a.gz", "a.zst"):
        with open_decompressed(tmp_path / name) as stream:
            assert stream.read() == content


def test_wrong_json_names_file_and_line(tmp_path):
    path = tmp_path / "a.json"
    path.write_text('{\n"a": 1,\n}')
    with pytest.raises(DataError, match=r"a\.json:3: not valid JSON"):
        read_json(path)
    with pytest.raises(DataError, match="no such file"):
        read_json(tmp_path / "b.json")


def test_more_than_the_disk_holds_is_refused(tmp_path):
    with pytest.raises(MachineError, match=r"needs 1000000000\.00 GB"):
        require_free_space(tmp_path / "not" / "there", 10**18, "the test")


@config
class BoxManifest:
    kind: Literal["box"] = "box"
    files: dict[str, FileRecord]
    colour: str = "blue"
    format_version: Literal[1] = 1


def test_manifest_round_trip_and_damage(tmp_path):
    (tmp_path / "data").write_bytes(b"abc")
    path = tmp_path / "manifest.json"
    manifest = BoxManifest(files=describe_files(tmp_path, ["data"]), colour="red")
    write_manifest(path, manifest)
    assert read_manifest(path, BoxManifest) == manifest
    for change, message in (
        ({"kind": "crate"}, "holds 'crate'"),
        ({"format_version": 2}, r"holds 'box' \(format 2\), expected 'box' \(format 1\)"),
        ({"size": 1}, "unknown key size"),
        ({"files": {"data": {"bytes": -1, "checksum": "x"}}}, "bytes = -1"),
    ):
        write_json(path, {**to_dict(manifest), **change})
        with pytest.raises(DataError, match=message) as error:
            read_manifest(path, BoxManifest)
        assert error.value.where == str(path)
    write_json(path, {"kind": "box"})
    with pytest.raises(DataError, match="files is required"):
        read_manifest(path, BoxManifest)
    assert find_damage(tmp_path, manifest.files) is None
    (tmp_path / "data").write_bytes(b"abd")
    assert find_damage(tmp_path, manifest.files) == "data does not match its checksum"
    (tmp_path / "data").write_bytes(b"ab")
    assert find_damage(tmp_path, manifest.files) == "data has 2 bytes, expected 3"
    (tmp_path / "data").unlink()
    assert find_damage(tmp_path, manifest.files) == "data is missing"


def test_a_foreign_file_is_no_manifest(tmp_path):
    write_json(tmp_path / "manifest.json", {"name": "other"})
    with pytest.raises(DataError, match="holds None"):
        read_manifest(tmp_path / "manifest.json", BoxManifest)
    write_json(tmp_path / "manifest.json", [1])
    with pytest.raises(DataError, match="not a groundup manifest"):
        read_manifest(tmp_path / "manifest.json", BoxManifest)


def test_fingerprint_ignores_the_order_of_keys_only():
    assert fingerprint({"a": 1, "b": [1, 2]}) == fingerprint({"b": [1, 2], "a": 1})
    assert fingerprint({"a": 1, "b": [1, 2]}) != fingerprint({"a": 1, "b": [2, 1]})
