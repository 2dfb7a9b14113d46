"""Fused attention on a GPU, forward, for cases that cuDNN does not take: dropped weights, masks in addition to windows,
addends of any element type, Float32. The scores stay in registers.

The algorithm is that of Dao et al. (arXiv 2205.14135, 2307.08691): a block holds some queries and loops over the keys
in tiles, keeping each query's largest score and sum so far.
"""

from __future__ import annotations

import math
from functools import partial

import numpy as np

from mspc.ir.late_dataclass import dataclass
from mspc.ops.cuda.attention_kernels import Attention, first_row
from mspc.ops.cuda.flash_parts import (
    LONG,
    MIDDLE,
    PANEL,
    SHORT,
    bits_bytes,
    can_group,
    draw,
    has_tail,
    has_terms,
    has_terms_of_queries,
    padded,
    row_bytes,
    source_of,
    strides_of,
    takes,
    terms_of,
)
from mspc.ops.device import Array, Device, Launch, in_order


@dataclass(frozen=True, slots=True)
class ForwardTiles:
    """How the forward kernel divides its work.

    warps: of a block. bands: of 16 queries, that a warp holds. keys: of a tile, a multiple of 16 and no more than
    threads of a block. held: steps of 32 bytes of a query's elements that are in registers; the others are read from
    shared memory. blocks: that a multiprocessor should hold at once, which limits the registers. grouped: whether the
    warps, fours of one band each, multiply together (flash_groups.cuh); keys is 64 then, and held 0.
    """

    warps: int
    bands: int
    keys: int
    held: int
    blocks: int
    grouped: bool = False

    def source(self, device: Device, attention: Attention) -> str:
        sizes = {
            "WARPS": self.warps, "BANDS": self.bands, "KEYS": self.keys, "HELD": self.held, "BLOCKS": self.blocks,
            "GROUPED": int(self.grouped), "SHARED": self.shared(attention),
            "TAIL": int(has_tail(attention, attention.shape.keys, self.keys)),
        }  # fmt: skip
        return source_of(device, attention, "flash_forward.cu", **sizes)

    def shared(self, attention: Attention) -> int:
        """Return the bytes of shared memory: the queries, and two tiles of keys and values, with a number for each
        key."""
        return row_bytes(attention, self.grouped) * (self.rows() + 4 * self.keys) + 8 * self.keys

    def rows(self) -> int:
        return 16 * self.bands * self.warps


ALL = 64
"""More steps than a row has."""


def tiles_of(device: Device, attention: Attention) -> ForwardTiles:
    """Return how the forward kernel divides its work on this attention, by the times of tests/gpu/test_flash_gpu.py."""
    row, terms, by_query = row_bytes(attention), has_terms(attention), has_terms_of_queries(attention)
    if can_group(device, attention):
        blocks = 2 if padded(attention.shape.depth) > PANEL else 3 if by_query else 4
        return ForwardTiles(4, 1, PANEL, 0, blocks, grouped=True)
    if attention.operands[0].itemsize > 2:
        if row > MIDDLE:
            return ForwardTiles(8, 1, 64, ALL, 1) if row <= LONG else ForwardTiles(4, 1, 16, 0, 1)
        if by_query or not device.tf32:
            return ForwardTiles(4, 1, 64, ALL, 2)
        return ForwardTiles(4, 2, 64, 0 if terms else 7, 2)
    if row > MIDDLE:
        return ForwardTiles(4, 1, 32, 0, 2)
    if row > SHORT:
        return ForwardTiles(4, 1, 64, ALL, 2)
    return ForwardTiles(8, 1, 32, ALL, 2) if by_query else ForwardTiles(4, 1, 64, ALL, 3)


def flash_forward(
    device: Device, attention: Attention, result: Array, tiles: ForwardTiles | None = None
) -> Launch | None:
    """Fill result (by head) and the statistics; return None if the kernels do not support the operands."""
    shape = attention.shape
    arrays = [*attention.operands[:3], result]
    if not takes(attention, arrays):
        return None
    tiles = tiles or tiles_of(device, attention)
    bits = device.scratch(max(1, bits_bytes(attention)))
    kernel = device.kernel(tiles.source(device, attention), "flash_forward")
    grid = shape.batch * shape.heads * math.ceil(shape.queries / tiles.rows())
    arguments = [
        *map(first_row, arrays), attention.statistics, *terms_of(device, attention, bits), np.int32(shape.heads),
        np.int32(shape.group), np.int32(shape.queries), np.int32(shape.keys), np.float32(attention.scores.scale),
        *strides_of(*arrays),
    ]  # fmt: skip

    launch = partial(kernel, grid, 32 * tiles.warps, arguments, tiles.shared(attention))
    return in_order(draw(device, attention, bits), launch)
