"""Which texts go on in the next step, and with how many tokens."""

import dataclasses
from collections import deque
from collections.abc import Callable

from groundup.inference.block_manager import BlockManager
from groundup.inference.sequence import TokenSequence


@dataclasses.dataclass(frozen=True)
class Work:
    """The next tokens of one text: a single one (decode), or a chunk of those not in the cache (prefill)."""

    sequence: TokenSequence
    num_tokens: int

    @property
    def is_last(self) -> bool:
        """Returns whether all tokens are then in the cache, so that the next one can be drawn."""
        return self.num_tokens == self.sequence.pending


class Scheduler:
    """Continuous batching (Yu et al. 2022, "Orca") over a paged cache (Kwon et al. 2023, arXiv:2309.06180).

    Each step continues every text that decodes by one token; what remains of ``max_step_tokens`` goes to
    prompts, in chunks (Agrawal et al. 2023, arXiv:2308.16369), so that a long prompt stalls nobody. When
    blocks run out, the text that came last gives its own back, and is computed anew when there are some.

    Args:
        blocks: Of the cache.
        block_size: Tokens a block.
        max_batch_size: Most texts in work at once.
        max_step_tokens: Most tokens of a step; never less than twice ``max_batch_size``, so that prompts go
            on beside a full batch.
    """

    def __init__(
        self, blocks: BlockManager, *, block_size: int, max_batch_size: int, max_step_tokens: int
    ) -> None:
        self.blocks = blocks
        self.block_size = block_size
        self.max_batch_size = max_batch_size
        self.max_step_tokens = max(max_step_tokens, 2 * max_batch_size)
        self.waiting: deque[TokenSequence] = deque()
        self.running: list[TokenSequence] = []  # in the order of arrival
        self.num_preemptions = 0

    def add(self, sequence: TokenSequence) -> None:
        """Queues a text; it joins the batch at the next step if there is room."""
        self.waiting.append(sequence)

    def remove(self, sequence: TokenSequence) -> None:
        """Ends work on a text, wherever it is, and frees its blocks."""
        if sequence in self.running:
            self.running.remove(sequence)
        else:
            self.waiting.remove(sequence)
        self.drop_cache(sequence)

    def drop_cache(self, sequence: TokenSequence) -> None:
        """Frees a text's blocks; its tokens are to be computed again."""
        self.blocks.release(sequence.blocks)
        sequence.blocks = []
        sequence.computed = sequence.num_published = 0

    def schedule(self) -> list[Work]:
        """Returns the work of the next step, with blocks for all of it; empty when there is nothing to do."""
        work: list[Work] = []
        left = self.max_step_tokens
        preemptions = self.num_preemptions
        for sequence in sorted(self.running, key=lambda one: one.pending > 1):  # those that decode first
            if sequence not in self.running:  # it was preempted for one before it
                continue
            num_tokens = min(sequence.pending, left)
            if num_tokens and self._reserve(sequence, num_tokens, work):
                work.append(Work(sequence, num_tokens))
                left -= num_tokens
        # Of a text that was preempted in this step, what it has given back is not for one that came later.
        if preemptions == self.num_preemptions:
            self._admit(work, left)
        while not work and self.running and any(not one.is_held for one in self.waiting):
            self._preempt(self.running[-1])  # all that run wait for beams that have no blocks
            self._admit(work, left)
        return work

    def fork(self, sequence: TokenSequence, copy: Callable[[int, int], None]) -> TokenSequence:
        """Adds a twin of a text, which shares its full blocks; of the last one it gets a copy.

        Args:
            sequence: All of it that is in work is in the cache.
            copy: Told a block and the one to which its content is to be copied before the next step.
        """
        twin = sequence.fork()
        num_full = sequence.computed // self.block_size
        twin.blocks = sequence.blocks[:num_full]
        self.blocks.share(twin.blocks)
        twin.computed = num_full * self.block_size
        twin.num_published = min(sequence.num_published, num_full)
        if twin.computed < sequence.computed and (block := self.blocks.allocate()) is not None:
            copy(sequence.blocks[num_full], block)
            twin.blocks.append(block)
            twin.computed = sequence.computed
        group: list[TokenSequence] | deque[TokenSequence]
        group = self.running if sequence in self.running else self.waiting
        group.insert(group.index(sequence) + 1, twin)
        return twin

    def computed(self, work: list[Work]) -> None:
        """Records that the tokens of the work are in the cache, and makes full blocks known."""
        for one in work:
            sequence = one.sequence
            sequence.computed += one.num_tokens
            num_full = sequence.computed // self.block_size
            if num_full > sequence.num_published:
                digests = sequence.digests(num_full, self.block_size)
                for index in range(sequence.num_published, num_full):
                    self.blocks.publish(sequence.blocks[index], digests[index])
                sequence.num_published = num_full

    def _admit(self, work: list[Work], left: int) -> None:
        """Lets waiting texts join, as far as tokens, places and blocks go."""
        coming = {digest for one in work for digest in self._full_digests(one.sequence)}
        num_places = sum(one.num_places for one in self.running)
        for sequence in list(self.waiting):
            if sequence.is_held:
                continue
            if not left or num_places + sequence.num_places > self.max_batch_size:
                return
            digests = sequence.digests(sequence.num_reusable // self.block_size, self.block_size)
            shared = self.blocks.find(digests)
            if len(shared) < len(digests) and digests[len(shared)] in coming:
                continue  # another text is about to compute the same: wait for it, and share
            num_blocks = self._num_blocks(sequence.length)
            if not self.blocks.can_take(shared, num_blocks - len(shared)):
                return
            self.blocks.share(shared)
            sequence.blocks = shared
            sequence.num_published = len(shared)
            sequence.computed = len(shared) * self.block_size
            self.waiting.remove(sequence)
            self.running.append(sequence)
            num_places += sequence.num_places
            num_tokens = min(sequence.pending, left)
            reserved = self._reserve(sequence, num_tokens, work)
            assert reserved, "there were enough blocks"
            work.append(Work(sequence, num_tokens))
            left -= num_tokens
            coming.update(digests)

    def _full_digests(self, sequence: TokenSequence) -> list[bytes]:
        """Hashes of the blocks that a text is still filling from its prompt."""
        if sequence.pending == 1:
            return []
        return sequence.digests(sequence.length // self.block_size, self.block_size)[sequence.num_published :]

    def _num_blocks(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def _reserve(self, sequence: TokenSequence, num_tokens: int, work: list[Work]) -> bool:
        """Allocates blocks for the next tokens; False when the text itself had to give way."""
        wanted = self._num_blocks(sequence.computed + num_tokens)
        while len(sequence.blocks) < wanted:
            block = self.blocks.allocate()
            if block is not None:
                sequence.blocks.append(block)
                continue
            last = next(
                one
                for one in reversed(self.running)
                if one is sequence or all(one is not w.sequence for w in work)
            )
            self._preempt(last)
            if last is sequence:
                return False
        return True

    def _preempt(self, sequence: TokenSequence) -> None:
        self.num_preemptions += 1
        self.running.remove(sequence)
        self.drop_cache(sequence)
        self.waiting.appendleft(sequence)
