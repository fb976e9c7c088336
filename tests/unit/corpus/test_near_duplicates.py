"""Near-duplicates: signatures follow the theory, and clusters are those of a search by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from groundup.core.errors import ConfigError
from groundup.corpus.dedup import minhash
from groundup.corpus.dedup.clusters import BandFile, find_clusters, keep_longest
from groundup.corpus.dedup.minhash import MinHash, derive_banding, jaccard

WORDS = st.lists(st.sampled_from(["one", "two", "three", "four", "Übung", "你好", "naïve"]), max_size=30)


def by_hand(text: str, settings: MinHash) -> set[tuple[str, ...]]:
    """The shingles as tuples of words, or of characters, with a loop over characters."""
    words: list[str] = []
    before = " "
    for character in text.lower():
        is_ideograph = "\u4e00" <= character <= "\u9fff"
        if character.isalnum():
            if is_ideograph or not before.isalnum() or "\u4e00" <= before <= "\u9fff":
                words.append("")
            words[-1] += character
        before = character
    if settings.shingle == "characters":
        spaced = " ".join("".join(c if c.isalnum() else " " for c in text.lower()).split())
        units = list(spaced)
    else:
        units = words
    size = min(settings.shingle_size, len(units))
    return {tuple(units[at : at + size]) for at in range(len(units) - size + 1)} if units else set()


@given(WORDS, WORDS, st.sampled_from(["words", "characters"]), st.integers(1, 6))
def test_shingles_are_those_of_a_loop(one, other, shingle, size):
    settings = MinHash(shingle=shingle, shingle_size=size)
    texts = [" ".join(one), ", ".join(other) + "!"]
    found = [settings.shingles(text) for text in texts]
    expected = [by_hand(text, settings) for text in texts]
    assert [len(set(hashes.tolist())) for hashes in found] == [len(shingles) for shingles in expected]
    union = expected[0] | expected[1]
    assert jaccard(*found) == pytest.approx(len(expected[0] & expected[1]) / len(union) if union else 0.0)


def test_case_punctuation_and_white_space_do_not_count():
    settings = MinHash()
    one = settings.signature("The quick brown fox -- jumps over the lazy dog.")
    assert one is not None
    assert np.array_equal(one, settings.signature(" the QUICK,\nbrown fox jumps over (the) lazy dog"))
    assert not np.array_equal(one, settings.signature("the quick brown fox jumps over the lazy cat"))
    assert settings.signature(" ... \n") is None and settings.signature("") is None
    assert settings.signature("one") is not None  # shorter than a shingle


@given(st.lists(WORDS, max_size=12), st.sampled_from(["words", "characters"]), st.integers(1, 6))
def test_texts_hashed_together_are_as_alone(words, shingle, size):
    settings = MinHash(shingle=shingle, shingle_size=size, bands=3, rows=2)
    texts = [" ".join(some) + "\n." * (len(some) % 3) for some in words]
    together, known = settings.signatures(texts)
    for text, signature, has_words in zip(texts, together, known, strict=True):
        alone = settings.signature(text)
        assert has_words == (alone is not None) and (alone is None or np.array_equal(alone, signature))


def test_long_texts_are_hashed_in_blocks(monkeypatch):
    settings = MinHash(bands=3, rows=2)
    words = np.random.default_rng(0).integers(0, 3000, 2000).astype(str)
    texts = [
        " ".join(words[begin:end]) for begin, end in ((0, 3), (3, 900), (900, 900), (900, 1300), (1300, 2000))
    ]
    whole = [settings.signature(text) for text in texts]
    monkeypatch.setattr(minhash, "_BLOCK", 64)
    monkeypatch.setattr(minhash, "_BATCH_CHARACTERS", 3000)
    parted, known = settings.signatures(texts)
    assert known.tolist() == [True, True, False, True, True] and whole[2] is None
    for one, other in zip(whole, parted, strict=True):
        assert one is None or np.array_equal(one, other)


def test_signatures_never_change():
    """Signatures on disk are compared with new ones."""
    settings = MinHash(bands=1, rows=2, seed=7)
    signature = settings.signature("Never change a running hash, 你好 über alles.")
    assert signature is not None
    assert (signature.tolist(), settings.band_hashes(signature[None]).tolist()) == GOLDEN


GOLDEN = ([3286794700, 615812518], [[6485097609810762350]])


@pytest.mark.parametrize("similarity", [0.5, 0.6, 0.7, 0.8, 0.9])
def test_pairs_are_found_as_often_as_theory_says(similarity):
    settings = MinHash(shingle_size=1)
    rng = np.random.default_rng(int(100 * similarity))
    size, trials = 150, 400
    shared = round(2 * size * similarity / (1 + similarity))
    texts = []
    for _ in range(trials):
        words = rng.permutation(100_000)[: 2 * size - shared].astype(str)
        texts += [" ".join(words[:size]), " ".join(words[size - shared :])]
    hashes = settings.band_hashes(np.stack([settings.signature(text) for text in texts]))
    found = (hashes[::2] == hashes[1::2]).any(axis=1).mean()
    expected = settings.probability(shared / (2 * size - shared))
    assert found == pytest.approx(expected, abs=4 * np.sqrt(expected * (1 - expected) / trials) + 0.005)


def test_banding_is_derived_from_the_threshold():
    assert derive_banding(0.7, 128) == (14, 9)
    bands = [derive_banding(threshold, 128) for threshold in (0.3, 0.5, 0.7, 0.9)]
    midpoints = [(1 / b) ** (1 / r) for b, r in bands]
    assert midpoints == pytest.approx([0.3, 0.5, 0.7, 0.9], abs=0.06)
    assert MinHash(bands=20, rows=5).banding == (20, 5)
    with pytest.raises(ConfigError, match="too few"):
        derive_banding(0.95, 1)
    with pytest.raises(ValueError, match="together"):
        MinHash(bands=3)
    with pytest.raises(ValueError, match="between 0 and 1"):
        MinHash(threshold=1.0)


def write_bands(path, hashes) -> None:
    with path.open("wb") as file:
        BandFile.write(file, hashes)


def clusters_by_hand(hashes: np.ndarray) -> list[int]:
    first = list(range(len(hashes)))
    changed = True
    while changed:
        changed = False
        for one in range(len(hashes)):
            for other in range(len(hashes)):
                if first[one] > first[other] and ((hashes[one] == hashes[other]) & (hashes[one] != 0)).any():
                    first[one], changed = first[other], True
    return first


@given(
    st.integers(0, 2**32 - 1), st.integers(1, 40), st.integers(1, 3), st.integers(1, 4), st.integers(2, 60)
)
def test_clusters_are_those_of_a_search_by_hand(tmp_path_factory, seed, num_texts, num_files, bands, variety):
    rng = np.random.default_rng(seed)
    hashes = rng.integers(0, variety, (num_texts, bands), dtype=np.uint64) << np.uint64(58)
    folder = tmp_path_factory.mktemp("bands")
    files = []
    for number, some in enumerate(np.array_split(hashes, num_files)):
        write_bands(folder / str(number), some)
        files.append(BandFile(folder / str(number), bands))
    expected = clusters_by_hand(hashes)
    lengths = rng.integers(0, 5, num_texts)
    for memory in (1 << 30, 1):
        first = find_clusters(files, bands, folder / "first", memory_bytes=memory)
        assert first.tolist() == expected
        longest = [
            max((other for other in range(num_texts) if expected[other] == cluster),
                key=lambda other: (lengths[other], -other))
            for cluster in expected
        ]  # fmt: skip
        keep_longest(first, lengths, np.empty(num_texts, np.int64))
        assert first.tolist() == longest


def test_partitions_on_disk_change_nothing(tmp_path, monkeypatch):
    from groundup.corpus.dedup import clusters

    monkeypatch.setattr(clusters, "_CHUNK", 64)
    monkeypatch.setattr(clusters, "BLOCK", 96)
    hashes = np.random.default_rng(0).integers(1, 700, (1000, 3), dtype=np.uint64) * np.uint64(1 << 54)
    write_bands(tmp_path / "bands", hashes)
    files = [BandFile(tmp_path / "bands", 3)]
    whole = np.array(find_clusters(files, 3, tmp_path / "whole", memory_bytes=1 << 30))
    parted = find_clusters(files, 3, tmp_path / "parted", memory_bytes=9000)
    assert len(np.unique(whole)) < 1000 and np.array_equal(whole, parted)
    lengths = np.random.default_rng(1).integers(0, 9, 1000)
    keep_longest(parted, lengths, np.empty(1000, np.int64))
    for cluster in np.unique(whole):
        members = np.flatnonzero(whole == cluster)
        assert (parted[members] == members[np.argmax(lengths[members])]).all()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bands", "parted", "whole"]


def test_no_texts_have_no_clusters(tmp_path):
    write_bands(tmp_path / "bands", np.zeros((0, 3), np.uint64))
    assert len(find_clusters([BandFile(tmp_path / "bands", 3)], 3, tmp_path / "first", memory_bytes=1)) == 0
