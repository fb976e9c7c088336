import builtins
import contextlib
import multiprocessing
import pickle
from pathlib import Path
from typing import Any

import orjson
import pytest
import tokenizers
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from groundup.core.errors import DataError, MachineError
from groundup.tokens.tokenizer.base import Tokenizer
from groundup.tokens.tokenizer.huggingface import HuggingFaceTokenizer
from groundup.tokens.tokenizer.load_tokenizer import holds_tokenizer, load_tokenizer
from groundup.tokens.tokenizer.sentencepiece import SentencePieceTokenizer, obstacle
from groundup.tokens.tokenizer.sentencepiece_model import ModelType, PieceType, SentencePieceModel

sentencepiece = pytest.importorskip("sentencepiece")

ANY = st.text() | st.text(st.sampled_from(list("  \n\tthecatond.é你\u2581<s>/\x00ﬁ２")), max_size=20)
LLAMA = {"normalization_rule_name": "identity", "remove_extra_whitespaces": False}
KINDS: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "bpe", "byte_fallback": True, **LLAMA},
    "bpe": {"model_type": "bpe", "normalization_rule_name": "identity"},
    "bpe-without-prefix": {"model_type": "bpe", "byte_fallback": True, "add_dummy_prefix": False, **LLAMA},
    "bpe-nfkc": {"model_type": "bpe", "byte_fallback": True},
    "unigram": {"model_type": "unigram"},
    "unigram-bytes": {"model_type": "unigram", "byte_fallback": True, **LLAMA},
}
CONVERTED = ("llama", "bpe", "bpe-without-prefix")


@pytest.fixture(scope="session")
def models(texts: list[str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("sentencepiece")
    for name, options in KINDS.items():
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(
                f"{text} of the cats and hats, sat on that: {i}" for i, text in enumerate(texts)
            ),
            model_prefix=str(folder / name),
            vocab_size=330 if options.get("byte_fallback") else 80,
            hard_vocab_limit=False,
            minloglevel=2,
            **options,
        )
    return {name: folder / f"{name}.model" for name in KINDS}


def _load(path: Path) -> SentencePieceTokenizer:
    loaded = load_tokenizer(path)
    assert isinstance(loaded, SentencePieceTokenizer)
    return loaded


def _documents(path: Path, key: str) -> list[str]:
    with path.open("rb") as file:
        content = zstandard.ZstdDecompressor().stream_reader(file).read(300_000)
    return [orjson.loads(line)[key] for line in content.splitlines()[:-1]]


@pytest.fixture(scope="session")
def llama(shared_data: Path) -> SentencePieceTokenizer:
    return _load(shared_data / "models" / "stories260K" / "tokenizer.model")


@pytest.mark.parametrize(
    ("name", "key"), [("corpus_en/reddit_selfposts", "text"), ("corpus_zh/wudao_like", "content")]
)
def test_a_real_model_encodes_real_text_as_sentencepiece_and_is_saved_as_the_same(
    llama: SentencePieceTokenizer, shared_data: Path, tmp_path: Path, name: str, key: str
) -> None:
    transformers = pytest.importorskip("transformers")
    file = shared_data / "models" / "stories260K" / "tokenizer.model"
    theirs = sentencepiece.SentencePieceProcessor(model_file=str(file))
    texts = _documents(shared_data / f"{name}.jsonl.zst", key)
    expected = [theirs.encode(text) for text in texts]
    assert sum(map(len, expected)) > 100_000
    assert list(map(llama.encode, texts)) == expected
    assert [llama.encode_array(text).tolist() for text in texts] == expected
    assert [llama.decode(ids) for ids in expected] == theirs.decode(expected)
    llama.save(tmp_path)
    loaded = transformers.AutoTokenizer.from_pretrained(tmp_path, local_files_only=True)
    assert [loaded.encode(text) for text in texts] == expected
    assert (loaded.eos_token_id, loaded.bos_token) == (2, "<s>")
    again = load_tokenizer(tmp_path)
    assert isinstance(again, HuggingFaceTokenizer)
    assert list(map(again.encode, texts)) == expected
    assert again.fingerprint == llama.fingerprint


@pytest.mark.parametrize("kind", KINDS)
def test_any_model_encodes_any_text_as_sentencepiece(
    models: dict[str, Path], tmp_path: Path, kind: str
) -> None:
    ours = _load(models[kind])
    theirs = sentencepiece.SentencePieceProcessor(model_file=str(models[kind]))
    ours.save(tmp_path)
    again = load_tokenizer(tmp_path)
    assert isinstance(again, HuggingFaceTokenizer if kind in CONVERTED else SentencePieceTokenizer)
    assert again.fingerprint == ours.fingerprint
    assert (again.end_of_document_id, again.vocab_size) == (ours.end_of_document_id, ours.vocab_size)

    @given(text=ANY)
    @settings(max_examples=300)
    def check(text: str) -> None:
        expected = theirs.encode(text)
        assert ours.encode(text) == ours.encode_array(text).tolist() == expected
        assert again.encode(text) == expected
        assert ours.end_of_document_id not in expected
        if kind in ("llama", "bpe-without-prefix", "unigram-bytes") and "\u2581" not in text:
            assert ours.decode(expected) == text
            content = b"".join(map(ours.token_bytes, expected))
            assert content == (b"" if kind == "bpe-without-prefix" or not text else b" ") + text.encode()

    check()


def test_follows_megatrons_conventions(models: dict[str, Path]) -> None:
    ours = _load(models["llama"])
    ids = ours.encode("the cat</s>")
    assert ours.decode(ids) == "the cat</s>"
    assert not {1, 2} & set(ids)
    assert (ours.end_of_document_id, ours.special_tokens) == (2, {"<unk>": 0, "<s>": 1, "</s>": 2})
    assert ours.decode([1, *ours.encode(" the"), 2, *ours.encode("cat")]) == "<s> the</s>cat"
    assert [ours.token_bytes(number) for number in (0, 1, 2, 3 + 0xE4)] == [b"", b"", b"", b"\xe4"]
    assert ours.decode([3 + 0xE4]) == "\ufffd"
    assert ours.kind == "SentencePiece BPE with byte fallback"
    for number in (-1, ours.vocab_size):
        with pytest.raises(DataError, match=f"outside the vocabulary of {ours.vocab_size} ids"):
            ours.decode([number])


def test_a_lone_surrogate_is_replaced(models: dict[str, Path], tmp_path: Path) -> None:
    ours = _load(models["llama"])
    ours.save(tmp_path)
    for tokenizer in (ours, load_tokenizer(tmp_path)):
        for ids in (tokenizer.encode("a\ud800b"), tokenizer.encode_array("a\ud800b").tolist()):
            assert tokenizer.decode(ids) == "a\ufffdb"


def test_goes_to_other_processes(models: dict[str, Path]) -> None:
    ours = _load(models["unigram"])
    copied: Tokenizer = pickle.loads(pickle.dumps(ours))
    assert copied.encode("the cat") == ours.encode("the cat")
    assert copied.fingerprint == ours.fingerprint
    with multiprocessing.get_context("fork").Pool(1) as pool:
        assert pool.map(ours.encode, ["the cat"]) == [ours.encode("the cat")]


def test_the_content_decides_the_fingerprint(models: dict[str, Path]) -> None:
    assert len({_load(path).fingerprint for path in models.values()}) == len(models)


def test_what_is_not_the_same_is_not_written(
    models: dict[str, Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    _load(models["llama"]).save(tmp_path)
    assert holds_tokenizer(tmp_path)
    _load(models["bpe-nfkc"]).save(tmp_path)
    assert not (tmp_path / "tokenizer.json").exists()
    assert "its normalisation, nmt_nfkc, changes characters" in caplog.text
    assert load_tokenizer(tmp_path).fingerprint == _load(models["bpe-nfkc"]).fingerprint
    assert holds_tokenizer(tmp_path)


def test_the_order_of_merges_is_that_of_the_scores(models: dict[str, Path]) -> None:
    # Ordered by id, as some conversions do, the merges give other ids once scores and ids disagree.
    from sentencepiece import sentencepiece_model_pb2

    changed = sentencepiece_model_pb2.ModelProto()
    changed.ParseFromString(models["llama"].read_bytes())
    joined = [piece for piece in changed.pieces if piece.type == PieceType.NORMAL and len(piece.piece) > 1]
    for piece, score in zip(joined, sorted(piece.score for piece in joined), strict=True):
        piece.score = score
    path = models["llama"].with_name("reversed.model")
    path.write_bytes(changed.SerializeToString())
    ours = _load(path)
    theirs = sentencepiece.SentencePieceProcessor(model_file=str(path))
    ours.save(path.with_name("reversed"))
    again = load_tokenizer(path.with_name("reversed"))
    assert isinstance(again, HuggingFaceTokenizer)

    @given(text=st.text(st.sampled_from(list(" thecatondsm")), max_size=30))
    def check(text: str) -> None:
        assert again.encode(text) == theirs.encode(text)

    check()
    for score, reason in ((0.0, "pieces with equal scores"), (-1000.0, "")):
        joined[1].score = score or joined[0].score
        path.write_bytes(changed.SerializeToString())
        assert obstacle(SentencePieceModel.read(path)) == reason
    joined[0].type = PieceType.USER_DEFINED
    path.write_bytes(changed.SerializeToString())
    assert obstacle(SentencePieceModel.read(path)) == "it has user-defined or unused pieces"


def test_reads_what_the_library_reads(models: dict[str, Path]) -> None:
    for kind, path in models.items():
        model = SentencePieceModel.read(path)
        theirs = sentencepiece.SentencePieceProcessor(model_file=str(path))
        every = range(theirs.get_piece_size())
        assert [piece.text for piece in model.pieces] == [theirs.id_to_piece(number) for number in every]
        assert [piece.score for piece in model.pieces] == [theirs.get_score(number) for number in every]
        for test, kind_of_piece in ((theirs.is_control, PieceType.CONTROL), (theirs.is_byte, PieceType.BYTE)):
            assert [piece.type == kind_of_piece for piece in model.pieces] == [
                test(number) for number in every
            ]
        options = KINDS[kind]
        assert model.type == ModelType[options["model_type"].upper()]
        assert model.byte_fallback == options.get("byte_fallback", False)
        assert model.remove_extra_whitespaces == options.get("remove_extra_whitespaces", True)
        assert model.add_dummy_prefix == options.get("add_dummy_prefix", True)
        assert model.changes_characters == ("normalization_rule_name" not in options)


def test_bad_files_are_refused(models: dict[str, Path], tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.model"
    content = models["llama"].read_bytes()
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:9e55\nsize 499723\n"
    for bad in (b"", pointer, content[: len(content) // 2], content[5:], b"\xff" * 50):
        path.write_bytes(bad)
        with pytest.raises(DataError, match=r"tokenizer\.model: (is not a Sente|the sente.* cannot read)"):
            load_tokenizer(tmp_path)


@given(place=st.integers(0, 2000), value=st.integers(0, 255))
@settings(max_examples=200)
def test_damage_is_told_or_harmless(models: dict[str, Path], place: int, value: int) -> None:
    content = bytearray(models["llama"].read_bytes())
    content[place % len(content)] = value
    path = models["llama"].with_name("damaged.model")
    path.write_bytes(content)
    with contextlib.suppress(DataError):
        SentencePieceModel.read(path)


def test_a_model_without_an_end_is_refused(texts: list[str], tmp_path: Path) -> None:
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts),
        model_prefix=str(tmp_path / "tokenizer"),
        vocab_size=60,
        hard_vocab_limit=False,
        eos_id=-1,
        minloglevel=2,
    )
    with pytest.raises(DataError, match="no end-of-sentence piece"):
        load_tokenizer(tmp_path)


def test_says_which_library_is_missing(models: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any, **more: Any) -> Any:
        if name == "sentencepiece":
            raise ModuleNotFoundError(name)
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MachineError, match=r"pip install 'groundup\[sentencepiece\]'"):
        load_tokenizer(models["llama"])


def test_tokenizers_reads_what_is_written(models: dict[str, Path], tmp_path: Path) -> None:
    _load(models["llama"]).save(tmp_path)
    reference = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert reference.decode(reference.encode("the cat, 你!").ids) == "the cat, 你!"


def test_the_models_own_file_goes_along(models: dict[str, Path], tmp_path: Path) -> None:
    """From folder to folder, though the folders' tokenizer.json is what is read."""
    load_tokenizer(models["llama"]).save(tmp_path / "first")
    load_tokenizer(tmp_path / "first").save(tmp_path / "second")
    assert (tmp_path / "second/tokenizer.model").read_bytes() == models["llama"].read_bytes()
