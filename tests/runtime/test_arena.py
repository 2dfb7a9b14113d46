"""Blocks find room that none of the orders leaves them."""

from __future__ import annotations

from mspc.ir.types import FLOAT32, TensorType
from mspc.runtime.arena import MemoryBlock, ResultMemory, assign, assign_with_adjacent, peak_live_bytes

BLOCKS = [(1, 6, 8), (4, 0, 5), (2, 7, 11), (5, 3, 6), (2, 3, 7), (3, 0, 4), (5, 1, 3), (6, 4, 5), (6, 5, 10)]
"""(size, first node, the one behind the last); every order alone takes 20 where 17 are alive at most."""


def test_what_lies_beyond_the_bound_is_placed_first() -> None:
    blocks = [MemoryBlock(256 * size, begin, last=end - 1, free=end, free_on_side=end) for size, begin, end in BLOCKS]
    assert peak_live_bytes(blocks) == 17 * 256
    assert assign(blocks, 256) == 17 * 256
    check_apart(blocks)


def check_apart(blocks: list[MemoryBlock]) -> None:
    for i, one in enumerate(blocks):
        for other in blocks[:i]:
            together = one.start < other.free and other.start < one.free
            apart = one.offset + one.nbytes <= other.offset or other.offset + other.nbytes <= one.offset
            assert apart or not together


def test_blocks_of_one_life_lie_side_by_side() -> None:
    lives = [(300, 1, 5), (100, 1, 5), (500, 2, 4), (700, 1, 5), (0, 1, 5), (256, 2, 4), (400, 3, 6)]
    blocks = [MemoryBlock(size, begin, last=end - 1, free=end, free_on_side=end) for size, begin, end in lives]
    results = [ResultMemory(TensorType(FLOAT32, (1,)), [b.start], block=b) for b in blocks]
    assert assign_with_adjacent(blocks, [results[:5], [], results[4:], results[:2]], 256) >= peak_live_bytes(blocks)
    check_apart(blocks)
    assert [blocks[i].offset - blocks[0].offset for i in (0, 1, 3)] == [0, 512, 768]
