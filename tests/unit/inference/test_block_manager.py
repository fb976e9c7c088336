"""The block manager under any order of requests, and what it promises of prefixes."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from groundup.inference.block_manager import BlockManager

ACTIONS = st.lists(
    st.tuples(st.sampled_from(["allocate", "publish", "share", "release"]), st.integers(0, 11)), max_size=80
)


@given(st.integers(1, 8), ACTIONS)
def test_every_block_is_free_or_owned_as_often_as_it_was_given(
    num_blocks: int, actions: list[tuple[str, int]]
) -> None:
    """Compares with lists: what is owned is never given, what is known has the content it had."""
    blocks = BlockManager(num_blocks)
    owned: list[int] = []  # a block stands here once for each owner
    content: dict[int, bytes] = {}  # of blocks since they were published; allocation overwrites
    for action, number in actions:
        digest = bytes([number])
        if action == "allocate":
            block = blocks.allocate()
            if block is None:
                assert len(set(owned)) == num_blocks
            else:
                assert block not in owned
                content.pop(block, None)
                owned.append(block)
        elif action == "publish" and owned:
            block = owned[number % len(owned)]
            known = blocks.find([digest])
            blocks.publish(block, digest)
            if not known and block not in content:
                content[block] = digest
        elif action == "share":
            found = blocks.find([digest])
            assert found == [block for block, kept in content.items() if kept == digest]
            fits = blocks.can_take(found, 1)
            blocks.share(found)
            owned += found
            assert fits == (blocks.num_free >= 1)
        elif action == "release" and owned:
            blocks.release([owned.pop(number % len(owned))])
        assert blocks.num_free == num_blocks - len(set(owned))
    for block, owners in Counter(owned).items():
        for _ in range(owners):
            blocks.release([block])
    assert blocks.num_free == num_blocks
    assert {blocks.allocate() for _ in range(num_blocks)} == set(range(num_blocks))
    assert blocks.allocate() is None


def test_a_prefix_is_found_as_far_as_it_is_known_and_its_end_is_forgotten_first() -> None:
    blocks = BlockManager(4)
    first = [blocks.allocate() for _ in range(3)]
    owned = [block for block in first if block is not None]
    for block, digest in zip(owned, (b"a", b"ab", b"abc"), strict=True):
        blocks.publish(block, digest)
    blocks.release(owned)
    assert blocks.find([b"a", b"ab", b"abd"]) == owned[:2]
    assert blocks.find([b"x", b"ab"]) == []
    blocks.allocate()  # the one that never had an owner
    blocks.allocate()
    assert blocks.find([b"a", b"ab", b"abc"]) == owned[:2]
