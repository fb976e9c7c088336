"""GPT-2's two files when only the name ``gpt2`` is given: found on this machine, or fetched once."""

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

from groundup.core.errors import MachineError
from groundup.core.files import atomic_write, user_cache_dir
from groundup.core.log import logger
from groundup.tokens.tokenizer.gpt2_files import NAMES

VOCAB_SHA256 = "196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783"
MERGES_SHA256 = "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5"
GPT2_FINGERPRINT = "0ace6e27e4cb9499"
"""That of the tokenizer that the two files make."""

SOURCES = (
    (
        "https://huggingface.co/openai-community/gpt2/resolve/main/vocab.json",
        "https://huggingface.co/openai-community/gpt2/resolve/main/merges.txt",
    ),
    (
        "https://openaipublic.blob.core.windows.net/gpt-2/encodings/main/encoder.json",
        "https://openaipublic.blob.core.windows.net/gpt-2/encodings/main/vocab.bpe",
    ),
)
"""Where the vocabulary and the merges are published, the first choice first."""

_MAX_BYTES = 4_000_000  # the larger one has 1,042,301
_TIMEOUT_SECONDS = 20


def cache_dir() -> Path:
    """Where the two files are kept: ``groundup/gpt2`` in ``$XDG_CACHE_HOME``, or in ``~/.cache``."""
    return user_cache_dir("gpt2")


def is_gpt2(vocab_file: Path, merge_file: Path) -> bool:
    """Whether these are GPT-2's own two files, byte for byte."""
    return all(
        path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest() == expected
        for path, expected in ((vocab_file, VOCAB_SHA256), (merge_file, MERGES_SHA256))
    )


def gpt2_at_hand() -> tuple[Path, Path] | None:
    """GPT-2's vocabulary and merges where this machine has them; None when it has not.

    Looks in the working directory, in ``cache_dir()`` and in the cache of ``huggingface_hub``, under each
    name of ``NAMES``, and takes only files whose content is right.
    """
    for folder in (Path(), cache_dir(), *_hub_snapshots()):
        for vocab_name, merge_name in NAMES:
            files = folder / vocab_name, folder / merge_name
            if is_gpt2(*files):
                return files
    return None


def gpt2_files(sources: Sequence[tuple[str, str]] = SOURCES) -> tuple[Path, Path]:
    """GPT-2's vocabulary and merges: those at hand, else fetched into ``cache_dir()``.

    Nothing is written unless both files came with the right content.

    Args:
        sources: URLs of the vocabulary and the merges, tried in this order.

    Raises:
        MachineError: They are not here and could not be fetched.
    """
    found = gpt2_at_hand()
    if found:
        return found
    folder = cache_dir()
    failures = []
    for urls in sources:
        logger.info("gpt2: fetching its two files, 1.5 MB, from %s", urls[0].rpartition("/")[0])
        try:
            contents = [_fetch(urls[0], VOCAB_SHA256), _fetch(urls[1], MERGES_SHA256)]
        except _FetchError as error:
            failures.append(str(error))
            continue
        files = folder / NAMES[0][0], folder / NAMES[0][1]
        for path, content in zip(files, contents, strict=True):
            with atomic_write(path) as file:
                file.write(content)
        logger.info("gpt2: kept in %s", folder)
        return files
    raise MachineError(
        f"its vocabulary and merges are not on this machine and could not be fetched: {'; '.join(failures)}",
        where="tokenizer gpt2",
        fix=f"Where there is a network, get {SOURCES[0][0]} and {SOURCES[0][1]}; put them into {folder}"
        " or into the working directory, or name them with --vocab-file and --merge-file.",
    )


class _FetchError(Exception):
    """Why one URL did not give the file."""


def _fetch(url: str, expected_sha256: str) -> bytes:
    import http.client  # 30 ms, for the one time that it is needed
    import urllib.request

    try:
        # The scheme is that of SOURCES: never a file of this machine.
        with urllib.request.urlopen(url, timeout=_TIMEOUT_SECONDS) as response:  # noqa: S310
            content: bytes = response.read(_MAX_BYTES)
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        raise _FetchError(f"{url} ({reason})") from None
    found = hashlib.sha256(content).hexdigest()
    if found != expected_sha256:
        raise _FetchError(
            f"{url} (its {len(content):,} bytes are another file: sha256 {found[:12]}..., not"
            f" {expected_sha256[:12]}...)"
        )
    return content


def _hub_snapshots() -> list[Path]:
    """The folders in which ``huggingface_hub`` keeps its downloads of GPT-2."""
    home = os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface"
    hub = Path(os.environ.get("HF_HUB_CACHE") or Path(home, "hub"))
    names = ("models--openai-community--gpt2", "models--gpt2")
    return sorted(path for name in names for path in hub.glob(f"{name}/snapshots/*"))
