"""Who holds which block of the key/value cache."""

from collections.abc import Sequence


class BlockManager:
    """Counts the owners of each block; equal prefixes of texts share blocks.

    A block that is full can be published under a digest of its tokens and all before them. It stays known
    after its last owner left it, until it is needed for something else: the block that was left first goes
    first.
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._num_owners = [0] * num_blocks
        self._free: dict[int, None] = dict.fromkeys(range(num_blocks))  # in the order of reuse
        self._block_of: dict[bytes, int] = {}
        self._digest_of: dict[int, bytes] = {}

    @property
    def num_free(self) -> int:
        """Returns the number of blocks without an owner."""
        return len(self._free)

    def num_owners(self, block: int) -> int:
        """Returns how many texts hold a block."""
        return self._num_owners[block]

    def find(self, digests: Sequence[bytes]) -> list[int]:
        """Returns the blocks of the longest prefix that is known; they are not owned by this."""
        found = []
        for digest in digests:
            if (block := self._block_of.get(digest)) is None:
                break
            found.append(block)
        return found

    def can_take(self, shared: Sequence[int], count: int) -> bool:
        """Returns whether there are ``count`` more free blocks besides these found ones."""
        return count <= self.num_free - sum(not self._num_owners[block] for block in shared)

    def share(self, blocks: Sequence[int]) -> None:
        """Adds an owner to blocks that ``find`` found."""
        for block in blocks:
            self._free.pop(block, None)
            self._num_owners[block] += 1

    def allocate(self) -> int | None:
        """Returns a block for one owner, whose content is no longer known; None when all are owned."""
        if not self._free:
            return None
        block = next(iter(self._free))
        del self._free[block]
        self._num_owners[block] = 1
        self.forget(block)
        return block

    def publish(self, block: int, digest: bytes) -> None:
        """Makes a full block known; of two with the same content the first stays the known one."""
        assert self._num_owners[block], "a block without an owner may be overwritten"
        if digest not in self._block_of and block not in self._digest_of:
            self._block_of[digest] = block
            self._digest_of[block] = digest

    def forget(self, block: int) -> None:
        """Makes a block unknown."""
        if (digest := self._digest_of.pop(block, None)) is not None:
            del self._block_of[digest]

    def release(self, blocks: Sequence[int]) -> None:
        """Takes one owner from each block; of those that become free the last are reused first.

        A block is of no use without those before it.
        """
        for block in reversed(blocks):
            assert self._num_owners[block], "the block has no owner"
            self._num_owners[block] -= 1
            if not self._num_owners[block]:
                self._free[block] = None
