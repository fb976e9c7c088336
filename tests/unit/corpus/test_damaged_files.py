"""A damaged file is not one bad record: nobody knows what stood behind the damage."""

import gzip
import json
import random
import shutil
import sys
from pathlib import Path

import pytest
import zstandard

from groundup.__main__ import main
from groundup.cli import corpus, tokenizer, tokens
from groundup.cli.options import TokenizerOptions
from groundup.core.errors import DataError
from groundup.core.executor.tasks import SerialRunner
from groundup.core.files import read_json
from groundup.corpus.bad_records import BadRecordPolicy, BadRecords
from groundup.corpus.document import Document, to_json_line
from groundup.corpus.pipeline import run_recipe
from groundup.corpus.read_documents import read_documents
from groundup.corpus.recipe import default_recipe
from groundup.eval.token_data import open_tokens
from groundup.tokens.tokenizer.load_tokenizer import load_tokenizer

NUMBER = 400
SKIP = BadRecordPolicy(action="skip")


def lines() -> list[bytes]:
    draw = random.Random(0)
    texts = ["".join(draw.choices("abcdefgh ", k=1500)) for _ in range(NUMBER)]
    return [to_json_line(Document(str(number), "", text)) for number, text in enumerate(texts)]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus folder of ours."""
    folder = tmp_path_factory.mktemp("whole")
    (folder / "in.jsonl").write_bytes(b"".join(lines()))
    run_recipe(default_recipe([folder / "in.jsonl"]), folder / "corpus", SerialRunner())
    return folder / "corpus"


@pytest.fixture
def ours(whole: Path, tmp_path: Path) -> Path:
    """Its documents in a copy of the folder."""
    shutil.copytree(whole, tmp_path / "corpus")
    return tmp_path / "corpus" / "documents-00000-of-00001.jsonl.zst"


def flip(path: Path, place: float) -> None:
    content = bytearray(path.read_bytes())
    content[int(len(content) * place)] ^= 1
    path.write_bytes(content)


def readers(path: Path, folder: Path):
    """Every verb that reads documents, as a call without arguments."""
    return {
        "corpus build": lambda **flags: corpus.build(path, out=folder / "again", workers=0, **flags),
        "tokenizer train": lambda **flags: tokenizer.train(path, out=folder / "t", vocab_size=300, **flags),
        "tokens build": lambda **flags: tokens.build(
            path,
            prefix=folder / "data",
            tokenizer=TokenizerOptions(tokenizer=Path("bytes")),
            workers=0,
            **flags,
        ),
    }


@pytest.mark.parametrize("verb", ["corpus build", "tokenizer train", "tokens build"])
@pytest.mark.parametrize("damage", ["flipped bit", "cut gz", "cut zst"])
def test_a_damaged_file_ends_every_verb_unless_skip_is_said(
    ours: Path, tmp_path: Path, damage: str, verb: str, caplog: pytest.LogCaptureFixture
) -> None:
    if damage == "flipped bit":
        path, says = ours, r"damaged after byte [\d,]+ of [\d,]+ .* records 400 documents"
        flip(path, 0.5)
    else:
        path, says = tmp_path / f"f.jsonl.{damage[4:]}", "ends early: it is cut off after [0-9,]+ bytes"
        pack = {"cut gz": gzip.compress, "cut zst": zstandard.compress}[damage]
        content = pack(b"".join(lines()))
        path.write_bytes(content[: len(content) // 2])
    call = readers(path, tmp_path / "out")[verb]
    with pytest.raises(DataError, match=rf"jsonl\.\w+:\d+: the file is damaged: .*{says}") as raised:
        call()
    assert f"`groundup {verb} --bad-records skip`" in str(raised.value)
    assert not (tmp_path / "out" / "data_text_document.idx").exists()
    call(bad_records="skip")
    assert "damaged file: 1" in caplog.text  # and named with what is missing
    assert "cannot be read" in caplog.text or "cut off" in caplog.text


@pytest.mark.parametrize("verb", ["corpus build", "tokens build"])
def test_a_rerun_that_finds_its_work_done_warns_again(
    ours: Path, tmp_path: Path, verb: str, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture
) -> None:
    flip(ours, 0.5)
    call = readers(ours, tmp_path / "out")[verb]
    call(bad_records="skip")
    caplog.clear()
    call(bad_records="skip")
    assert "was there already" in capsys.readouterr().out
    assert "1 bad record left out: damaged file: 1" in caplog.text
    assert f"{ours}:" in caplog.text


@pytest.mark.parametrize("verb", ["corpus build", "tokenizer train", "tokens build"])
def test_documents_that_are_not_those_of_the_manifest_are_refused(
    ours: Path, tmp_path: Path, verb: str
) -> None:
    compressor = zstandard.ZstdCompressor(level=3)
    longer = compressor.compress(b"".join(lines()[:100]))
    size = ours.stat().st_size
    for content, says in (
        (longer, rf"has {len(longer):,} bytes, .*manifest.json records 400 documents in {size:,} bytes"),
        (same_size(ours.read_bytes()), "does not match its checksum: .* records 400 documents"),
    ):
        ours.write_bytes(content)
        with pytest.raises(DataError, match=says):
            readers(ours, tmp_path / "out")[verb]()
    (ours.parent / "manifest.json").unlink()  # a file of the user's own
    readers(ours, tmp_path / "out")[verb]()


def same_size(content: bytes) -> bytes:
    """Other documents in a file of as many bytes: a skippable frame fills it up."""
    other = zstandard.ZstdCompressor().compress(b"".join(lines()[:100]))
    filling = len(content) - len(other) - 8
    return other + b"\x50\x2a\x4d\x18" + filling.to_bytes(4, "little") + bytes(filling)


def test_a_wrong_size_is_told_before_anything_is_read(ours: Path, tmp_path: Path) -> None:
    ours.write_bytes(ours.read_bytes()[:-100])
    strict = BadRecords(BadRecordPolicy())
    with pytest.raises(DataError, match="records 400 documents"):
        next(read_documents([ours], bad_records=strict))
    with BadRecords(SKIP) as bad:  # then it is read as far as it goes, and counted once
        kept = len(list(read_documents([ours], bad_records=bad)))
    assert 0 < kept < NUMBER and bad.by_reason == {"damaged file": 1}


def test_somebody_elses_manifest_says_nothing(ours: Path) -> None:
    for foreign in ("not JSON", "[1]", json.dumps({"kind": "corpus"}), json.dumps({"name": "an extension"})):
        (ours.parent / "manifest.json").write_text(foreign)
        with BadRecords(BadRecordPolicy()) as bad:
            assert len(list(read_documents([ours], bad_records=bad))) == NUMBER


@pytest.mark.parametrize("name", ["f.jsonl.gz", "f.jsonl.zst", "f.txt.gz"])
def test_no_byte_is_no_compressed_stream(tmp_path: Path, name: str) -> None:
    (tmp_path / name).touch()
    with pytest.raises(DataError, match=rf"{name}.*: the file is damaged: no byte is in it"):
        list(read_documents([tmp_path / name], bad_records=BadRecords(BadRecordPolicy())))


@pytest.mark.parametrize("pack", [gzip.compress, zstandard.compress])
def test_several_frames_and_members_are_one_stream(tmp_path: Path, pack) -> None:
    path = tmp_path / ("f.jsonl.gz" if pack is gzip.compress else "f.jsonl.zst")
    half = NUMBER // 2
    path.write_bytes(b"".join([pack(b"".join(lines()[:half])), pack(b""), pack(b"".join(lines()[half:]))]))
    with BadRecords(BadRecordPolicy()) as bad:
        assert len(list(read_documents([path], bad_records=bad))) == NUMBER
    path.write_bytes(path.read_bytes() + b"trailing garbage")
    with BadRecords(SKIP) as bad:
        assert len(list(read_documents([path], bad_records=bad))) <= NUMBER
    assert bad.by_reason == {"damaged file": 1}


def test_a_model_is_not_measured_on_half_a_file(ours: Path) -> None:
    flip(ours, 0.9)
    with pytest.raises(DataError, match="the file is damaged"):
        open_tokens([ours], load_tokenizer("bytes"))


def test_a_damaged_file_among_many_bad_records_ends_the_join(tmp_path: Path) -> None:
    """Parts that an earlier policy has done are judged by the policy of the run that joins them."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jsonl").write_bytes(b"nonsense\n" * 30 + b"".join(lines()))
    packed = gzip.compress(b"".join(lines()))
    (tmp_path / "in" / "b.jsonl.gz").write_bytes(packed[:-2000])
    words = {
        "prefix": tmp_path / "data",
        "tokenizer": TokenizerOptions(tokenizer=Path("bytes")),
        "workers": 0,
        "max_bad": 1.0,
    }
    tokens.build(tmp_path / "in", **words, bad_records="skip", rank=0, world_size=1)
    with pytest.raises(DataError, match=r"b\.jsonl\.gz:\d+: the file is damaged"):
        tokens.build(tmp_path / "in", **words)
    tokens.build(tmp_path / "in", **words, bad_records="skip")
    recorded = read_json(tmp_path / "data_text_document.json")["counts"]["bad_records"]
    assert recorded["by_reason"] == {"not JSON": 30, "damaged file": 1}
    assert any("damaged file" in offender for offender in recorded["offenders"])


def test_every_flip_in_a_parquet_file_is_read_or_named(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "a.parquet"
    texts = [line.decode() for line in lines()[:40]]
    parquet.write_table(
        pyarrow.table({"text": texts, "meta": [{"url": text[:9]} for text in texts]}),
        path,
        row_group_size=10,
        write_page_checksum=True,
    )
    content = path.read_bytes()
    draw = random.Random(1)
    footer = range(len(content) - 2000, len(content))
    for place in [*draw.sample(range(len(content)), 60), *draw.sample(footer, 150)]:
        flipped = bytearray(content)
        flipped[place] ^= 1 << draw.randrange(8)
        path.write_bytes(flipped)
        for policy in (BadRecordPolicy(), BadRecordPolicy(action="skip", max_bad=1.0)):
            try:
                with BadRecords(policy) as bad:
                    kept = list(read_documents([path], bad_records=bad))
            except DataError:
                continue
            assert len(kept) == len(texts) or bad.bad, place


def test_the_command_line_ends_in_one_sentence(
    ours: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ours.write_bytes(ours.read_bytes() * 5)  # frames: more than is read at once, so that some is kept
    (ours.parent / "manifest.json").unlink()
    flip(ours, 0.95)
    words = ["tokens", "build", str(ours), "--prefix", str(tmp_path / "data"), "--tokenizer", "bytes"]
    for more, code in ((["--bad-records", "skip"], 0), ([], 1)):
        monkeypatch.setattr(sys, "argv", ["groundup", *words, "--workers", "0", *more])
        with pytest.raises(SystemExit) as ended:
            main()
        assert (ended.value.code or 0) == code
    assert capsys.readouterr().err.splitlines()[-1].startswith(f"groundup: {ours}:")
    assert (tmp_path / "data_text_document.idx").exists()
