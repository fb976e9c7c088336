from pathlib import Path

import numpy as np
import pytest

from groundup.core.config import resolve
from groundup.core.errors import ConfigError, DataError
from groundup.tokens.dataset.dataset_manifest import describe_dataset
from groundup.tokens.dataset.indexed_writer import IndexedWriter
from groundup.tokens.sampling.batch_ramp import BatchSizes
from groundup.tokens.sampling.data_config import DataConfig, SourceConfig
from groundup.tokens.sampling.dataset import TokenDataset
from groundup.tokens.sampling.splits import open_splits, require_plan, tokenizer_of_data
from groundup.tokens.tokenizer.train_bpe import train_tokenizer


def _write(prefix: Path, num_documents: int, length: int = 10, first: int = 0) -> Path:
    """Documents of ``length`` tokens; token = ``first`` + document."""
    with IndexedWriter(prefix, vocab_size=60000) as writer:
        writer.add(np.repeat(np.arange(first, first + num_documents), length), np.full(num_documents, length))
    return prefix


@pytest.fixture
def prefix(tmp_path: Path) -> Path:
    return _write(tmp_path / "data", 100)


def test_splits_are_neighbouring_documents(prefix: Path) -> None:
    config = DataConfig(path=prefix.with_name("data.idx"), split="80,15,5", sequence_length=9)
    splits = open_splits(config, seed=0)
    assert splits.train and splits.validation and splits.test
    assert [len(set(split.tokens.tolist())) for split in (splits.train, splits.validation, splits.test)] == [
        80,
        15,
        5,
    ]
    assert splits.validation.tokens[0] == 80
    assert (splits.test.num_documents, splits.test.num_tokens, splits.test.num_samples) == (5, 50, 5)


def test_splits_equal_megatrons(megatron: Path) -> None:
    config = DataConfig(path=megatron / "indexed" / "wt2_200_text_document", sequence_length=128)
    splits = open_splits(config, seed=1234)
    one_epoch = megatron / "sample_order" / "one_epoch_969_30_1_s128"
    for split, name in ((splits.train, "train"), (splits.validation, "valid")):
        assert split
        index = np.load(one_epoch / f"{name}_index.npz")
        assert split.num_documents == len(index["doc_idx"])
        assert split.num_samples == len(index["sample_idx"]) - 1
    assert splits.test is None


def test_messages_name_the_smallest_change(prefix: Path) -> None:
    def refusal(validation: bool = False, test: bool = False, **changes: object) -> str:
        settings = {"split": "969,30,1", "sequence_length": 16, "max_epochs": 1, **changes}
        splits = open_splits(DataConfig(path=prefix, **settings), seed=0)  # type: ignore[arg-type]
        with pytest.raises(DataError) as caught:
            require_plan(splits, num_steps=20, batch_sizes=BatchSizes(4), validation=validation, test=test)
        return str(caught.value)

    assert "the test split is empty: split 969,30,1 gives it 0 of 100 documents" in refusal(test=True)
    assert "Set data.split=97,1,2" in refusal(test=True)
    assert "validation split is smaller than one sample" in refusal(validation=True, sequence_length=40)
    assert "data.sequence_length=29" in refusal(validation=True, sequence_length=40)
    assert "the corpus has 1,000 tokens, one sample needs 2,001" in refusal(sequence_length=2000)
    long = refusal(sequence_length=2000)  # of the shorter samples, too, the steps take more than an epoch
    assert long.endswith("Set data.sequence_length=969. Then plan again: that alone is not enough.")
    steps = refusal()
    assert "20 steps of 4 samples are 1.33 epochs of the 60 training samples" in steps
    assert "Set data.max_epochs=2, or num_steps=15." in steps
    splits = open_splits(DataConfig(path=prefix, sequence_length=16), seed=0)
    require_plan(splits, num_steps=10**9, batch_sizes=BatchSizes(4), validation=True)


def test_a_blend_takes_each_source_by_its_weight(tmp_path: Path) -> None:
    web, books = _write(tmp_path / "web", 100), _write(tmp_path / "books", 50, first=1000)
    config = DataConfig(
        sources={"web": SourceConfig(path=web, weight=3), "books": SourceConfig(path=books, weight=1)},
        split="80,20,0",
        sequence_length=9,
    )
    train = open_splits(config, seed=5).train
    assert train
    tokens = train.batch(0, 400)[:, 0]
    assert [int((tokens[:n] >= 1000).sum()) for n in (4, 40, 400)] == [1, 10, 100]
    alone = open_splits(DataConfig(path=books, split="80,20,0", sequence_length=9), seed=5).train
    assert alone  # a source's own order does not depend on its company
    blended = train.batch(0, 400)
    assert np.array_equal(blended[blended[:, 0] >= 1000], alone.batch(0, 100))
    assert (train.num_documents, train.num_tokens) == (120, 1200)
    # 88 + 44 samples of an epoch of each; web gives three of four, so it is the first to begin again.
    assert train.num_samples == pytest.approx(88 / 3 * 4, abs=1)


def test_proportional_weights_read_every_source_once_in_an_epoch(tmp_path: Path) -> None:
    sizes = {"a": 100, "b": 7, "c": 33}
    sources = {name: SourceConfig(path=_write(tmp_path / name, size)) for name, size in sizes.items()}
    splits = open_splits(DataConfig(sources=sources, split="1", sequence_length=9), seed=5)
    assert splits.train
    assert splits.train.num_samples == sum(size * 10 // 9 for size in sizes.values())
    assert splits.validation is None


def test_own_validation_sources_leave_training_what_the_split_would_give_them(tmp_path: Path) -> None:
    web, held_out = _write(tmp_path / "web", 100), _write(tmp_path / "held", 20, first=1000)
    config = DataConfig(
        path=web, validation={"held": SourceConfig(path=held_out)}, split="80,10,10", sequence_length=9
    )
    splits = open_splits(config, seed=5)
    assert splits.train and splits.validation and splits.test
    assert (splits.train.num_documents, splits.validation.num_documents) == (89, 20)
    assert splits.validation.batch(0, 1, ordered=True).min() == 1000
    require_plan(splits, num_steps=1, batch_sizes=BatchSizes(1), validation=True)
    short = open_splits(
        DataConfig(
            path=web, validation={"held": SourceConfig(path=_write(tmp_path / "s", 1))}, sequence_length=20
        ),
        seed=5,
    )
    with pytest.raises(DataError, match=r"validation have at most 10 tokens.*Set data.sequence_length=9"):
        require_plan(short, num_steps=1, batch_sizes=BatchSizes(1), validation=True)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["data.sources.a.weight=-1"], r"data.sources.a: the weight of a source is at least 0, not -1"),
        (["data.sources.a.weight=0", "data.sources.b.weight=0"], "the weights of sources are all 0"),
        (["data.sources.a.weight=1"], 'either each of sources has a weight, or each is "proportional"'),
        (["data.path=x"], "data has either a path, or sources"),
        (["data.sources.a.wieght=1"], r"unknown key data.sources.a.wieght. Did you mean 'weight'"),
        (["data.order=megatron"], 'order "megatron" needs a weight for each of sources'),
        (["data.sources.c.weight=1"], r"data.sources.c.path is required"),
    ],
)
def test_refuses_a_blend_that_makes_no_sense(tmp_path: Path, overrides: list[str], message: str) -> None:
    from groundup.core.config import config

    @config
    class Holder:
        data: DataConfig

    paths = [f"data.sources.{name}.path={tmp_path / name}" for name in "ab"]
    with pytest.raises(ConfigError, match=message):
        resolve(Holder, overrides=[*paths, *overrides])


def test_a_blend_that_reads_a_source_too_often_is_refused_with_what_mends_it(tmp_path: Path) -> None:
    config = DataConfig(
        sources={
            "web": SourceConfig(path=_write(tmp_path / "web", 1000), weight=0.9),
            "books": SourceConfig(path=_write(tmp_path / "books", 10), weight=0.1, max_epochs=2),
        },
        split="1",
        sequence_length=9,
    )
    splits = open_splits(config, seed=1)
    with pytest.raises(DataError) as caught:
        require_plan(splits, num_steps=100, batch_sizes=BatchSizes(8))
    assert "80 come from data.sources.books, and these are 7.27 epochs of its 11" in str(caught.value)
    assert "Set data.sources.books.max_epochs=8, or num_steps=2" in str(caught.value)
    assert "or data.sources.books.weight=0.024" in str(caught.value)


def test_a_source_without_a_validation_sample_is_left_out_there(tmp_path: Path, caplog) -> None:
    sources = {
        "a": SourceConfig(path=_write(tmp_path / "a", 100)),
        "b": SourceConfig(path=_write(tmp_path / "b", 3)),
    }
    with caplog.at_level("WARNING", logger="groundup"):
        splits = open_splits(DataConfig(sources=sources, split="90,10", sequence_length=9), seed=1)
    assert splits.validation
    assert splits.validation.num_documents == 10
    assert "b gives no validation sample (0 tokens): left out there" in caplog.text
    require_plan(splits, num_steps=1, batch_sizes=BatchSizes(1), validation=True)


def test_an_empty_source_is_an_error(tmp_path: Path) -> None:
    with IndexedWriter(tmp_path / "none", vocab_size=10):
        pass
    with pytest.raises(DataError, match="holds no tokens"):
        open_splits(DataConfig(path=tmp_path / "none"), seed=1)


def test_the_fingerprint_tells_blends_apart(tmp_path: Path) -> None:
    a, b = _write(tmp_path / "a", 100), _write(tmp_path / "b", 100, first=7)

    def fingerprint(first: Path, second: Path, weight: float) -> str:
        sources = {"x": SourceConfig(path=first, weight=weight), "y": SourceConfig(path=second, weight=1)}
        return open_splits(DataConfig(sources=sources, sequence_length=9), seed=1).fingerprint

    prints = [fingerprint(a, b, 1), fingerprint(b, a, 1), fingerprint(a, b, 2)]
    assert len(set(prints)) == 3
    moved = tmp_path / "elsewhere"
    moved.mkdir()
    for file in ("a.bin", "a.idx"):
        (moved / file).write_bytes((tmp_path / file).read_bytes())
    assert fingerprint(moved / "a", b, 1) == prints[0]


def test_sources_of_different_tokenizers_are_refused(tmp_path: Path) -> None:
    paths, tokenizers = [], []
    for number, name in enumerate(("a", "b")):
        paths.append(_write(tmp_path / name, 10))
        tokenizers.append(train_tokenizer(["the cat the dog"], vocab_size=257 + number))
        describe_dataset(paths[-1], tokenizers[-1], inputs={})
    prints = [tokenizer.fingerprint for tokenizer in tokenizers]
    config = DataConfig(sources={path.name: SourceConfig(path=path) for path in paths})
    with pytest.raises(DataError, match=f"b: was built with the tokenizer {prints[1]}, .*a with {prints[0]}"):
        tokenizer_of_data(config)
    assert tokenizer_of_data(DataConfig(path=paths[1])).fingerprint == prints[1]
    with pytest.raises(DataError, match=f"a_tokenizer: holds .* {prints[0]}, b was built with {prints[1]}"):
        tokenizer_of_data(DataConfig(path=paths[1], tokenizer=tmp_path / "a_tokenizer"))


def test_one_source_is_a_plain_dataset(prefix: Path) -> None:
    splits = open_splits(DataConfig(sources={"a": SourceConfig(path=prefix)}, sequence_length=9), seed=1)
    assert isinstance(splits.train, TokenDataset)


@pytest.fixture
def fineweb(tmp_path: Path) -> Path:
    """Shards as build-nanogpt writes them: documents begin with GPT-2's end of text, shards anywhere."""
    folder = tmp_path / "edu_fineweb10B"
    folder.mkdir()
    documents = [np.array([50256, *range(n, n + 9)], dtype=np.uint16) for n in range(300)]
    stream = np.concatenate(documents)
    for number, piece in enumerate(np.split(stream, [1005, 2010])):
        kind = "val" if number == 0 else "train"
        np.save(folder / f"edufineweb_{kind}_{number:06d}.npy", piece)
    return folder


def test_the_names_of_shards_say_their_split(fineweb: Path) -> None:
    splits = open_splits(DataConfig(path=fineweb, sequence_length=9), seed=1)
    assert splits.train and splits.validation
    assert splits.test is None
    assert (splits.validation.num_tokens, splits.train.num_tokens) == (1005, 1995)
    assert splits.validation.batch(0, 1, ordered=True)[0, 0] == 50256
    require_plan(splits, num_steps=10, batch_sizes=BatchSizes(4), validation=True)
    with pytest.raises(DataError, match="no source has files for test"):
        require_plan(splits, num_steps=10, batch_sizes=BatchSizes(4), test=True)


def test_shards_without_split_names_are_split_by_their_documents(fineweb: Path, shared_data: Path) -> None:
    config = DataConfig(
        path=fineweb / "*_train_*.npy", tokenizer=shared_data / "gpt2", split="50,50", sequence_length=9
    )
    splits = open_splits(config, seed=1)
    assert splits.train and splits.validation
    # The first document was begun in another shard; what is here of it counts as one.
    assert splits.train.num_documents + splits.validation.num_documents == 200
    assert splits.validation.batch(0, 1, ordered=True)[0, 0] == 50256
    starts = splits.train.document_starts(0, 5)
    assert np.array_equal(starts[:, 1:], splits.train.batch(0, 5)[:, 1:] == 50256)


def test_a_folder_of_parts_is_one_source(tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    for number in range(3):
        _write(tmp_path / "parts" / f"part_{number}_text_document", 10, first=100 * number)
    splits = open_splits(DataConfig(path=tmp_path / "parts", split="2,1", sequence_length=9), seed=1)
    assert splits.train and splits.validation
    assert (splits.train.num_documents, splits.validation.num_documents) == (20, 10)
    assert splits.validation.batch(0, 1, ordered=True).min() == 200
