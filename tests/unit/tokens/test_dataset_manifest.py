"""The manifest of a data set: what earlier versions wrote still reads, and what is wrong is named."""

import json

import pytest

from groundup.cli import tokens_files, tokens_plan
from groundup.core.errors import DataError
from groundup.core.manifest import describe_files
from groundup.tokens.dataset.dataset_manifest import find_manifest, manifest_path, tokenizer_of
from tests.unit.tokens.token_files import write_indexed


@pytest.fixture
def old(tmp_path, small_tokenizer):
    """A data set with the manifest that the first version wrote beside it."""
    prefix = write_indexed(tmp_path / "old", [[[1, 2, 3]], [[4, 5]]])
    small_tokenizer.save(tmp_path / "old_tokenizer")
    (tmp_path / "old.origins").write_bytes(b"GUORIGIN")
    records = describe_files(tmp_path, ["old.bin", "old.idx", "old.origins"])
    manifest = {
        "kind": "tokens",
        "fingerprint": "0123456789abcdef",
        "inputs": {"sources": "fedcba9876543210", "tokenizer": small_tokenizer.fingerprint},
        "counts": {
            "documents": 2,
            "tokens": 5,
            "text_bytes": 9,
            "empty_documents": 1,
            "bad_records": {"bad": 1, "by_reason": {"not JSON": 1}, "offenders": ["a.jsonl:3: not JSON"]},
        },
        "files": {name: {"bytes": of.bytes, "checksum": of.checksum} for name, of in records.items()},
        "about": {
            "key": "text",
            "append_end_of_document": True,
            "dtype": "uint16",
            "origins": "old.origins",
            "tokenizer": {
                "folder": "old_tokenizer",
                "kind": "byte-level BPE",
                "fingerprint": small_tokenizer.fingerprint,
                "vocab_size": small_tokenizer.vocab_size,
                "padded_vocab_size": 384,
                "end_of_document_id": small_tokenizer.end_of_document_id,
                "special_tokens": {"<|endoftext|>": small_tokenizer.end_of_document_id},
            },
        },
        "format_version": 1,
        "groundup_version": "0.1.0",
    }
    manifest_path(prefix).write_text(json.dumps(manifest))
    return prefix


def test_an_old_data_set_is_read(old, small_tokenizer, capsys):
    manifest = find_manifest(old)
    assert (manifest.counts.text_bytes, manifest.counts.bad_records.bad) == (9, 1)
    assert (manifest.about.key, manifest.about.made_of) == ("text", None)
    assert tokenizer_of(old).fingerprint == small_tokenizer.fingerprint
    tokens_files.verify(old)
    assert capsys.readouterr().out.endswith("structure, ids and checksums are right\n")
    tokens_plan.trace(old, "data.sequence_length=2", "data.split=1,0,0", sample=0)
    assert "origin not recorded" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("section", "key", "value", "says"),
    [
        ("counts", "tokens", None, "counts.tokens is required"),
        ("counts", "tokens", -1, "counts.tokens = -1"),
        ("counts", "token", 5, r"unknown key counts.token\. Did you mean 'tokens'"),
        ("about", "tokenizer", "gpt2", "about.tokenizer = 'gpt2'"),
        ("about", "dtyp", "uint16", "unknown key about.dtyp"),
        (None, "kind", "corpus", r"holds 'corpus' \(format 1\), expected 'tokens'"),
        (None, "format_version", 2, r"holds 'tokens' \(format 2\), expected 'tokens' \(format 1\)"),
    ],
)
def test_what_is_wrong_is_named_with_the_file(old, section, key, value, says):
    tree = json.loads(manifest_path(old).read_text())
    part = tree[section] if section else tree
    if value is None:
        del part[key]
    else:
        part[key] = value
    manifest_path(old).write_text(json.dumps(tree))
    with pytest.raises(DataError, match=rf"old\.json: .*{says}"):
        find_manifest(old)
