import base64
import json
import random
import re
from pathlib import Path

import pytest
import requests
import tiktoken
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from groundup.core.errors import DataError, MachineError
from groundup.tokens.tokenizer.base import Tokenizer
from groundup.tokens.tokenizer.bpe import ByteLevelTokenizer
from groundup.tokens.tokenizer.load_tokenizer import load_tokenizer
from groundup.tokens.tokenizer.tiktoken import CL100K_PATTERN, O200K_PATTERN

# As tiktoken 0.14 has it, with the possessive quantifiers that Oniguruma reads otherwise.
POSSESSIVE_CL100K = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+"
    r"|\s++$|\s*[\r\n]|\s+(?!\S)|\s"
)
TRICKY = st.text(
    st.sampled_from(list(" \n\r\t'sStTlLveVEaé\u0301ſ1٣½你.-/\u3000\u0085\u00a0👩")), max_size=12
)


def _write(path: Path, ranks: dict[bytes, int], pattern: str, specials: dict[str, int]) -> Path:
    lines = [base64.b64encode(token) + b" %d\n" % rank for token, rank in ranks.items()]
    path.write_bytes(b"".join(reversed(lines)))  # reversed, it is no file that is published
    path.with_suffix(".json").write_text(json.dumps({"pattern": pattern, "special_tokens": specials}))
    return path


def _reference(folder: Path) -> tokenizers.Tokenizer:
    reference = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    reference.encode_special_tokens = True
    return reference


@pytest.fixture(scope="session")
def gpt2_ranks(gpt2: Tokenizer) -> dict[bytes, int]:
    return {gpt2.token_bytes(number): number for number in range(50256)}


@pytest.mark.parametrize("pattern", [CL100K_PATTERN, O200K_PATTERN], ids=["cl100k", "o200k"])
def test_ranks_of_a_file_encode_as_tiktoken_and_are_saved_as_the_same(
    gpt2_ranks: dict[bytes, int], tmp_path: Path, pattern: str
) -> None:
    specials = {"<|endoftext|>": 50300, "<|fim|>": 50256}
    path = _write(tmp_path / "own.tiktoken", gpt2_ranks, pattern, specials)
    ours = load_tokenizer(path)
    theirs = tiktoken.Encoding("own", pat_str=pattern, mergeable_ranks=gpt2_ranks, special_tokens=specials)
    assert (ours.vocab_size, ours.end_of_document_id, dict(ours.special_tokens)) == (50301, 50300, specials)
    ours.save(tmp_path / "saved")
    reference = _reference(tmp_path / "saved")
    again = load_tokenizer(tmp_path / "saved")
    assert isinstance(again, ByteLevelTokenizer)
    assert again.fingerprint == ours.fingerprint

    @given(text=TRICKY | st.text())
    @settings(max_examples=300)
    def check(text: str) -> None:
        expected = theirs.encode_ordinary(text)
        assert ours.encode(text) == ours.encode_array(text).tolist() == again.encode(text) == expected
        assert reference.encode(text, add_special_tokens=False).ids == expected
        assert ours.decode(expected) == text

    check()


def test_the_same_ranks_make_the_same_tokenizer_as_vocab_and_merges(
    gpt2: Tokenizer, gpt2_ranks: dict[bytes, int], tmp_path: Path
) -> None:
    assert isinstance(gpt2, ByteLevelTokenizer)
    path = _write(tmp_path / "gpt2.tiktoken", gpt2_ranks, gpt2.bpe.pattern, {"<|endoftext|>": 50256})
    assert load_tokenizer(path).fingerprint == gpt2.fingerprint


def test_a_published_file_is_known_by_its_content(
    gpt2: Tokenizer, gpt2_ranks: dict[bytes, int], tmp_path: Path
) -> None:
    # OpenAI's r50k_base.tiktoken is GPT-2's ranks in their order.
    lines = [base64.b64encode(token) + b" %d\n" % rank for token, rank in gpt2_ranks.items()]
    (tmp_path / "tokenizer.model").write_bytes(b"".join(lines))
    assert load_tokenizer(tmp_path).fingerprint == gpt2.fingerprint


def test_the_plain_pattern_gives_the_ids_of_tiktokens_own(gpt2_ranks: dict[bytes, int]) -> None:
    # Without the tokens that go on behind a line break: cl100k_base has none.
    ranks = {token: rank for token, rank in gpt2_ranks.items() if not re.search(rb"[\r\n][^\r\n]+\Z", token)}
    assert len(gpt2_ranks) - 10 < len(ranks) < len(gpt2_ranks)
    specials = {"<|endoftext|>": 50256}
    plain, possessive = (
        tiktoken.Encoding("own", pat_str=pattern, mergeable_ranks=ranks, special_tokens=specials)
        for pattern in (CL100K_PATTERN, POSSESSIVE_CL100K)
    )

    @given(text=TRICKY | st.text())
    @settings(max_examples=500)
    def check(text: str) -> None:
        assert plain.encode_ordinary(text) == possessive.encode_ordinary(text)

    check()


@given(seed=st.integers(0, 10**9))
@settings(max_examples=50)
def test_any_ranks_are_saved_as_the_same(tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    # Tokens that no joining makes, and tokens made from later ones: Llama 3 has both.
    chance = random.Random(seed)
    words = {bytes(chance.choices(b"ab", k=chance.randint(2, 6))) for _ in range(chance.randint(1, 12))}
    tokens = [bytes([byte]) for byte in range(256)] + chance.sample(sorted(words), len(words))
    ranks = {token: rank for rank, token in enumerate(tokens)}
    specials = {"<|endoftext|>": len(ranks)}
    folder = tmp_path_factory.mktemp("ranks")
    ours = load_tokenizer(_write(folder / "own.tiktoken", ranks, CL100K_PATTERN, specials))
    theirs = tiktoken.Encoding("o", pat_str=CL100K_PATTERN, mergeable_ranks=ranks, special_tokens=specials)
    ours.save(folder / "saved")
    reference, again = _reference(folder / "saved"), load_tokenizer(folder / "saved")
    assert again.fingerprint == ours.fingerprint
    for text in ["".join(chance.choices("ab", k=chance.randint(1, 12))) for _ in range(30)]:
        expected = theirs.encode_ordinary(text)
        assert ours.encode(text) == again.encode(text) == expected
        assert reference.encode(text, add_special_tokens=False).ids == expected, (words, text)


def test_a_named_encoding_comes_through_tiktoken(
    gpt2_ranks: dict[bytes, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    encoding = tiktoken.Encoding(
        "cl100k_base",
        pat_str=POSSESSIVE_CL100K,
        mergeable_ranks=gpt2_ranks,
        special_tokens={"<|endoftext|>": 50257, "<|fim_prefix|>": 50258},
    )
    monkeypatch.setattr(tiktoken, "get_encoding", lambda name: encoding)
    ours = load_tokenizer(Path("tiktoken:cl100k_base"))
    assert isinstance(ours, ByteLevelTokenizer)
    assert ours.bpe.pattern == CL100K_PATTERN
    assert (ours.vocab_size, ours.end_of_document_id) == (50259, 50257)
    assert ours.encode("12345 \n") == encoding.encode("12345 \n")


def test_what_a_missing_encoding_needs_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str) -> None:
        url = "https://example.org/cl100k_base.tiktoken"
        raise requests.ConnectionError("no route", request=requests.Request("GET", url).prepare())

    monkeypatch.setattr(tiktoken, "get_encoding", fail)
    with pytest.raises(MachineError, match=r"TIKTOKEN_CACHE_DIR .* under the name e?[0-9a-f]{39}") as caught:
        load_tokenizer("tiktoken:cl100k_base")
    assert "https://example.org/cl100k_base.tiktoken could not be downloaded (no route)" in str(caught.value)
    with pytest.raises(DataError, match="Did you mean cl100k_base"):
        load_tokenizer("tiktoken:cl100k-base")


def test_bad_rank_files_are_refused(gpt2_ranks: dict[bytes, int], tmp_path: Path) -> None:
    path = tmp_path / "own.tiktoken"
    specials = {"<|endoftext|>": 300}
    some = {token: rank for token, rank in gpt2_ranks.items() if rank < 300}
    for ranks, pattern, numbers, message in (
        (some, CL100K_PATTERN, {"<|endoftext|>": 299}, "gives 1 ids twice"),
        ({k: v for k, v in some.items() if k != b"a"}, CL100K_PATTERN, specials, "no token for the byte 97"),
        (some, POSSESSIVE_CL100K, specials, r"has \$ and \{1,3\}\+, which tiktoken and tokenizers read"),
        (some, CL100K_PATTERN, {}, "no end-of-document token"),
        (some, CL100K_PATTERN, {"<|endoftext|>": "300"}, "holds no"),
    ):
        _write(path, ranks, pattern, numbers)  # type: ignore[arg-type]
        with pytest.raises(DataError, match=message):
            load_tokenizer(path)
    path.with_suffix(".json").unlink()
    with pytest.raises(DataError, match=r"Write .*pattern.* to .*own\.json"):
        load_tokenizer(path)
    path.write_bytes(path.read_bytes() + b"YQ== one\n")
    with pytest.raises(DataError, match=r"own\.tiktoken:301: b'YQ== one'"):
        load_tokenizer(path)
