"""Where the documents of shards without an index begin, kept so that the shards are read for it once.

One file for each set of shards in ``groundup/documents`` of the user's cache, eight bytes a document. Its
name is the hash of what was read, so that a shard that changed is read again. Any file may be deleted.
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from groundup.core.files import atomic_write, user_cache_dir
from groundup.core.log import logger

_WORTH_KEEPING_TOKENS = 1 << 22  # fewer are read in some milliseconds


def kept_begins(
    key: str, num_tokens: int, find: Callable[[], npt.NDArray[np.int64]]
) -> npt.NDArray[np.int64]:
    """What ``find`` returns, or returned for this key before; then memory-mapped.

    Args:
        key: Hash of the shards and of the id that opens documents.
        num_tokens: In the shards; for few of them nothing is kept.
        find: Reads them: tokens before each document, and their number at the end.
    """
    if num_tokens < _WORTH_KEEPING_TOKENS:
        return find()
    try:
        path = user_cache_dir("documents") / f"{key}.npy"
    except RuntimeError as error:  # a user without a home
        logger.info("where the documents begin cannot be kept (%s): they will be found again", error)
        return find()
    try:
        kept: npt.NDArray[np.int64] = np.load(path, mmap_mode="r", allow_pickle=False).view(np.ndarray)
        if (
            kept.dtype == np.int64
            and kept.ndim == 1
            and len(kept) > 1
            and kept[0] == 0
            and kept[-1] == num_tokens
        ):
            return kept
        logger.info("%s is not what was kept there: the documents are found again", path)
    except FileNotFoundError:
        pass
    except (OSError, ValueError, EOFError) as error:
        logger.info("%s cannot be read (%s): the documents are found again", path, error)
    begins = find()
    try:
        with atomic_write(path) as file:
            np.save(file, begins)
    except OSError as error:
        logger.info("where the documents begin cannot be kept (%s): they will be found again", error)
    return begins
