import json
from pathlib import Path

import orjson
import pytest
import tokenizers
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models, normalizers, pre_tokenizers

from groundup.core.errors import ConfigError, DataError
from groundup.core.vocabulary import padded_vocab_size
from groundup.tokens.tokenizer.base import Tokenizer
from groundup.tokens.tokenizer.bpe import ByteLevelTokenizer
from groundup.tokens.tokenizer.huggingface import HuggingFaceTokenizer
from groundup.tokens.tokenizer.load_tokenizer import holds_tokenizer, load_gpt2_files, load_tokenizer
from groundup.tokens.tokenizer.train_bpe import train_tokenizer

TRICKY = [
    "",
    " ",
    "\n\n \t  x  \r\n ",
    "don't DON'T we'll  they've I'm 'tis",
    "0123 ½ Ⅷ ١٢٣",
    "<|endoftext|>a<|endoftext|>",
    "你好，世界。 日本語 한국어 👩‍👩‍👧 \u200b \u00a0 \u2028 \x85 \x1c",
    "e\u0301 \u0000 \ufeff \U0010ffff",
    "a" * 700 + " " * 700,
    "\ud7ff\ue000",
]


def _reference(folder: Path) -> tokenizers.Tokenizer:
    reference = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    reference.encode_special_tokens = True
    return reference


def _documents(path: Path, key: str, num_bytes: int) -> list[str]:
    with path.open("rb") as file:
        content = zstandard.ZstdDecompressor().stream_reader(file).read(num_bytes)
    return [orjson.loads(line)[key] for line in content.splitlines()[:-1]]


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("corpus_en/reddit_selfposts", "text"),
        ("corpus_zh/wudao_like", "content"),
        ("corpus_code/python_stdlib", "content"),
    ],
)
def test_gpt2_equals_the_tokenizers_library_on_real_text(
    gpt2: Tokenizer, shared_data: Path, tmp_path: Path, name: str, key: str
) -> None:
    assert isinstance(gpt2, ByteLevelTokenizer)
    gpt2.save(tmp_path)
    texts = _documents(shared_data / f"{name}.jsonl.zst", key, 300_000)
    assert sum(map(len, texts)) > 80_000
    expected = [found.ids for found in _reference(tmp_path).encode_batch(texts, add_special_tokens=False)]
    assert list(map(gpt2.encode, texts)) == expected
    assert [gpt2.encode_array(text).tolist() for text in texts] == expected
    assert [gpt2.decode(ids) for ids in expected] == texts


def test_gpt2_ids_are_openais(gpt2: Tokenizer) -> None:
    assert gpt2.vocab_size == 50257
    assert gpt2.end_of_document_id == 50256
    assert gpt2.encode("Hello world") == [15496, 995]
    assert gpt2.encode("<|endoftext|>") == [27, 91, 437, 1659, 5239, 91, 29]
    assert gpt2.decode([15496, 50256]) == "Hello<|endoftext|>"


@given(text=st.text())
@settings(max_examples=300, deadline=None)
def test_gpt2_equals_the_tokenizers_library_on_any_text(
    gpt2: Tokenizer, tmp_path_factory: pytest.TempPathFactory, text: str
) -> None:
    folder = tmp_path_factory.getbasetemp() / "gpt2"
    if not folder.exists():
        gpt2.save(folder)
        _any_text["reference"] = _reference(folder)
    assert gpt2.encode(text) == _any_text["reference"].encode(text).ids
    assert gpt2.decode(gpt2.encode(text)) == text


_any_text: dict[str, tokenizers.Tokenizer] = {}


@pytest.mark.parametrize("text", TRICKY)
def test_a_trained_tokenizer_equals_the_tokenizers_library(
    small_tokenizer: Tokenizer, tmp_path: Path, text: str
) -> None:
    small_tokenizer.save(tmp_path)
    ids = small_tokenizer.encode(text)
    assert ids == _reference(tmp_path).encode(text).ids
    assert small_tokenizer.encode_array(text).tolist() == ids
    assert small_tokenizer.end_of_document_id not in ids
    assert small_tokenizer.decode(ids) == text
    assert b"".join(map(small_tokenizer.token_bytes, ids)) == text.encode()


def test_a_lone_surrogate_is_replaced(small_tokenizer: Tokenizer) -> None:
    for ids in (small_tokenizer.encode("a\ud800b"), small_tokenizer.encode_array("a\ud800b").tolist()):
        assert small_tokenizer.decode(ids) == "a\ufffdb"


def test_part_of_a_character_decodes_to_the_replacement_character(small_tokenizer: Tokenizer) -> None:
    assert small_tokenizer.decode(["你".encode()[0]]) == "\ufffd"


def test_a_saved_folder_loads_in_transformers(small_tokenizer: Tokenizer, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    small_tokenizer.save(tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    for text in TRICKY:
        if "<|endoftext|>" not in text:
            assert theirs.encode(text) == small_tokenizer.encode(text)
            assert theirs.decode(small_tokenizer.encode(text)) == text
    assert theirs.eos_token_id == small_tokenizer.end_of_document_id
    assert len(theirs) == small_tokenizer.vocab_size


def test_all_forms_of_one_tokenizer_have_one_fingerprint(
    texts: list[str], small_tokenizer: Tokenizer, tmp_path: Path
) -> None:
    small_tokenizer.save(tmp_path)
    for path in (tmp_path, tmp_path / "tokenizer.json"):
        assert load_tokenizer(path).fingerprint == small_tokenizer.fingerprint
    (tmp_path / "tokenizer.json").unlink()
    assert load_tokenizer(tmp_path).fingerprint == small_tokenizer.fingerprint
    for old, new in (("vocab.json", "gpt2-vocab.json"), ("merges.txt", "gpt2-merges.txt")):
        (tmp_path / old).rename(tmp_path / new)
    again = load_tokenizer(tmp_path)
    assert again.fingerprint == small_tokenizer.fingerprint
    assert train_tokenizer(texts, vocab_size=290).fingerprint != again.fingerprint


def test_bytes_by_name(small_tokenizer: Tokenizer, tmp_path: Path) -> None:
    tokenizer = load_tokenizer(Path("bytes"))
    assert (tokenizer.vocab_size, tokenizer.end_of_document_id) == (257, 256)
    tokenizer.save(tmp_path)
    again = load_tokenizer(tmp_path)
    assert (again.kind, again.fingerprint) == ("bytes", tokenizer.fingerprint)
    for text in TRICKY:
        assert tokenizer.encode(text) == tokenizer.encode_array(text).tolist() == list(text.encode())
        assert _reference(tmp_path).encode(text).ids == list(text.encode())
    assert train_tokenizer(["ab"], vocab_size=257).fingerprint == tokenizer.fingerprint
    small_tokenizer.save(tmp_path / "own")
    assert dict(load_tokenizer(str(tmp_path / "own")).special_tokens) == {"<|endoftext|>": 290}


def test_saving_is_stable(small_tokenizer: Tokenizer, tmp_path: Path) -> None:
    small_tokenizer.save(tmp_path / "a")
    load_tokenizer(tmp_path / "a").save(tmp_path / "b")
    for name in ("tokenizer.json", "tokenizer_config.json", "vocab.json", "merges.txt"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_another_pattern_is_kept(small_tokenizer: Tokenizer, tmp_path: Path) -> None:
    assert isinstance(small_tokenizer, ByteLevelTokenizer)
    pattern = r"(?i:'s|'t)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s+(?!\S)|\s+"
    document = small_tokenizer.bpe.document()
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    by_bytes = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    document["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [split, by_bytes]}
    (tmp_path / "tokenizer.json").write_text(json.dumps(document))
    loaded = load_tokenizer(tmp_path)
    assert isinstance(loaded, ByteLevelTokenizer)
    assert loaded.fingerprint != small_tokenizer.fingerprint
    for text in TRICKY:
        assert loaded.encode(text) == _reference(tmp_path).encode(text).ids


def test_any_other_tokenizer_goes_through_the_library(tmp_path: Path) -> None:
    words = {"<unk>": 0, "</s>": 1, "\u2581hello": 2, "\u2581world": 3, "<0x0A>": 4}
    other = tokenizers.Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    other.normalizer = normalizers.NFC()
    other.pre_tokenizer = pre_tokenizers.Metaspace()
    other.decoder = decoders.Metaspace()
    other.add_special_tokens(["</s>"])
    other.save(str(tmp_path / "tokenizer.json"))
    loaded = load_tokenizer(tmp_path)
    assert isinstance(loaded, HuggingFaceTokenizer)
    assert (loaded.vocab_size, loaded.end_of_document_id) == (5, 1)
    assert loaded.encode("hello world") == [2, 3]
    assert 1 not in loaded.encode("hello </s>")
    assert [loaded.token_bytes(number) for number in (1, 2, 4)] == [b"", b" hello", b"\n"]
    loaded.save(tmp_path / "again")
    assert load_tokenizer(tmp_path / "again").fingerprint == loaded.fingerprint
    with pytest.raises(DataError, match="outside the vocabulary of 5 ids"):
        loaded.token_bytes(5)


def test_merges_that_tiktoken_would_misread_go_through_the_library(
    small_tokenizer: Tokenizer, tmp_path: Path
) -> None:
    assert isinstance(small_tokenizer, ByteLevelTokenizer)
    document = small_tokenizer.bpe.document()
    document["model"]["vocab"] = {**{chr(byte): byte for byte in range(33, 127)}, "zq": 400, "zqz": 401}
    full = small_tokenizer.bpe.vocab
    document["model"]["vocab"] |= {name: number for name, number in full.items() if len(name) == 1}
    document["model"]["merges"] = [["z", "q"], ["q", "z"], ["z", "qz"]]
    document["model"]["vocab"]["qz"] = 402
    (tmp_path / "tokenizer.json").write_text(json.dumps(document))
    loaded = load_tokenizer(tmp_path)
    assert isinstance(loaded, HuggingFaceTokenizer)
    assert loaded.encode("zqz") == [400, ord("z")]


def test_refuses_ids_outside_the_vocabulary(small_tokenizer: Tokenizer) -> None:
    with pytest.raises(DataError, match="token 291 is outside the vocabulary of 291 ids"):
        small_tokenizer.decode([291])


def test_what_is_missing_is_named(small_tokenizer: Tokenizer, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="absent: no such tokenizer"):
        load_tokenizer(tmp_path / "absent")
    with pytest.raises(DataError, match=r"neither tokenizer\.json nor vocab\.json"):
        load_tokenizer(tmp_path)
    for name in ("GPTSentencePieceTokenizer", "Llama2Tokenizer"):
        with pytest.raises(DataError, match=f"{name}: a kind of tokenizer in Megatron-LM"):
            load_tokenizer(name)
    assert not holds_tokenizer(tmp_path)
    small_tokenizer.save(tmp_path)
    assert holds_tokenizer(tmp_path)
    with pytest.raises(DataError, match=r"vocab\.json: is not a tokenizer\.json"):
        load_tokenizer(tmp_path / "vocab.json")
    with pytest.raises(DataError, match=r"merges\.txt: is no file of a tokenizer"):
        load_tokenizer(tmp_path / "merges.txt")
    merges = (tmp_path / "merges.txt").read_text()
    (tmp_path / "merges.txt").write_text(merges + "one\n")
    with pytest.raises(DataError, match=r"merges\.txt:36: 'one' is not a pair"):
        load_gpt2_files(tmp_path / "vocab.json", tmp_path / "merges.txt")
    (tmp_path / "merges.txt").write_text(merges + "Q Q\n")
    with pytest.raises(DataError, match="has no token 'QQ'"):
        load_gpt2_files(tmp_path / "vocab.json", tmp_path / "merges.txt")
    document = json.loads((tmp_path / "tokenizer.json").read_text())
    (tmp_path / "tokenizer.json").write_text(json.dumps({**document, "added_tokens": []}))
    with pytest.raises(DataError, match="no end-of-document token"):
        load_tokenizer(tmp_path / "tokenizer.json")


def test_training_is_reproducible_and_the_special_token_is_last(texts: list[str], tmp_path: Path) -> None:
    first, second = (train_tokenizer(iter(texts), vocab_size=300) for _ in range(2))
    assert first.fingerprint == second.fingerprint
    assert first.vocab_size == 300
    assert first.end_of_document_id == 299
    assert first.encode("\x00\xff".encode("latin-1").decode("latin-1"))[0] == 0


def test_too_little_text_says_how_far_it_reached(texts: list[str]) -> None:
    with pytest.raises(DataError, match=r"only 258 ids .* 1,000 were asked for") as caught:
        train_tokenizer(["ab ab"], vocab_size=1000)
    assert "258 or fewer" in str(caught.value)
    assert train_tokenizer(["ab ab"], vocab_size=258).vocab_size == 258
    with pytest.raises(ConfigError, match="at least 257"):
        train_tokenizer(texts, vocab_size=256)


@pytest.mark.parametrize("within", ["tokenizer", "checkpoints/latest/tokenizer"])
def test_a_checkpoint_and_a_run_hold_one(small_tokenizer: Tokenizer, tmp_path: Path, within: str) -> None:
    with pytest.raises(DataError, match="holds no tokenizer"):
        load_tokenizer(tmp_path)
    small_tokenizer.save(tmp_path / within)
    assert load_tokenizer(tmp_path).fingerprint == small_tokenizer.fingerprint


def test_padding() -> None:
    assert [padded_vocab_size(size) for size in (1, 128, 129, 50257)] == [128, 128, 256, 50304]
    assert padded_vocab_size(50257, 256) == 50432
