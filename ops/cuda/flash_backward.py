"""This is fused attention on a GPU, backward; the scores are computed again, tile by tile.

With weights P = exp(scale Q K^T + shift - statistics), of which a mask Z (0 or 1 / keep_prob) drops some, and slopes
dP = Z * (dO V^T): dV = (Z * P)^T dO, dS = P (dP - rowsum(dO O)), dQ = scale dS K, dK = scale dS^T Q (Dao et al., arXiv
2205.14135). One kernel in two forms, so that every sum has one owner and the same bits each time:

* of queries: a block holds Q and dO of some queries, goes over K and V and writes dQ. It also writes, for the other
  form, each query's statistics (to the base 2), rowsum(dO O) and the factor of its weights.
* of keys: a block holds K and V of some keys, goes over Q and dO of all queries that look at them and writes dK and dV.

That factor is 1, but for a query to all of whose keys a number as -1e9 is added: beside it the logarithm of the sum is
rounded away, and the weights are added up again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from mspc.ir.late_dataclass import dataclass
from mspc.ir.types import dtype_of
from mspc.ops.cuda.attention_kernels import Attention, aligned_bytes, first_row
from mspc.ops.cuda.flash_parts import (
    LONG,
    MIDDLE,
    PANEL,
    SHORT,
    bits_bytes,
    can_group,
    column_bytes,
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
from mspc.ops.device import Array, Device, Launch, c_type, in_order
from mspc.ops.nn.attention_kernel import LARGE
from mspc.ops.source_files import source_text

# This is the text of the kernel of fused attention's backward pass; see `flash_backward`.


NOTE = 16
"""Bytes that the form of queries notes of each."""

FIRST, SECOND = 1, 2
"""Flags for a form's first and second result."""


@dataclass(frozen=True, slots=True)
class BackwardTiles:
    """How one form of the kernel divides its work.

    warps: of a block. bands: of 16 own rows, that a warp holds. columns: of a tile of the others, a multiple of 16 and
    no more than threads of a block. held: how many of its two matrices a warp keeps in registers; the others are read
    from shared memory. blocks: that a multiprocessor should hold at once, which limits the registers. grouped: whether
    the warps, fours of one band each, multiply together (flash_groups.cuh); columns is 64 or 32 then, and held 0.
    """

    warps: int
    bands: int
    columns: int
    held: int
    blocks: int
    grouped: bool = False

    def source(self, device: Device, attention: Attention, of_keys: bool, sums: int) -> str:
        columns = attention.shape.queries if of_keys else attention.shape.keys
        sizes = {
            "WARPS": self.warps, "BANDS": self.bands, "COLUMNS": self.columns, "HELD": self.held,
            "BLOCKS": self.blocks, "OF_KEYS": int(of_keys), "SUMS": sums, "LARGE": LARGE,
            "GROUPED": int(self.grouped), "SHARED": self.shared(attention),
            "TAIL": int(has_tail(attention, columns, self.columns)),
        }  # fmt: skip
        return source_of(device, attention, "flash_backward.cu", **sizes)

    def shared(self, attention: Attention) -> int:
        """Return the bytes of shared memory: own rows, and two buffers with notes, words and terms of the columns."""
        row = row_bytes(attention, self.grouped)
        buffer = self.columns * (2 * row + NOTE + column_bytes(attention, self.rows()) + 4)
        aligned = 1024 if self.grouped else 16
        return 2 * self.rows() * row + 2 * (-(-buffer // aligned) * aligned)

    def rows(self) -> int:
        return 16 * self.bands * self.warps


def tiles_of_queries(device: Device, attention: Attention) -> BackwardTiles:
    """Return how the form of queries divides its work, by the times of tests/gpu/test_flash_gpu.py."""
    row, terms = row_bytes(attention), has_terms(attention)
    if can_group(device, attention):
        blocks = 2 if padded(attention.shape.depth) > PANEL else 3 if terms or attention.scores.draws else 4
        return BackwardTiles(4, 1, PANEL // 2 if has_terms_of_queries(attention) else PANEL, 0, blocks, grouped=True)
    if row > MIDDLE:
        return _deep(attention)
    if attention.operands[0].itemsize > 2:
        return BackwardTiles(4, 1, 32, 0, 3) if terms or not device.tf32 else BackwardTiles(4, 2, 32, 1, 2)
    if row > SHORT:
        return BackwardTiles(4, 1, 32, 1, 2)
    return BackwardTiles(4, 1, 32, 0, 4) if terms else BackwardTiles(4, 1, 64, 2, 2)


def tiles_of_keys(device: Device, attention: Attention) -> BackwardTiles:
    """Return how the form of keys divides its work; many terms take registers."""
    row, by_query = row_bytes(attention), has_terms_of_queries(attention)
    if can_group(device, attention):
        blocks = 2 if padded(attention.shape.depth) > PANEL else 3
        return BackwardTiles(4, 1, PANEL // 2 if by_query else PANEL, 0, blocks, grouped=True)
    if row > MIDDLE:
        return _deep(attention)
    if attention.operands[0].itemsize > 2:
        return BackwardTiles(4, 1, 32, 0, 3) if by_query or not device.tf32 else BackwardTiles(4, 2, 32, 0, 2)
    if row > SHORT:
        return BackwardTiles(4, 1, 32, 0, 2)
    return BackwardTiles(4, 1, 32, 1, 3) if by_query else BackwardTiles(4, 1, 64, 1, 2)


def _deep(attention: Attention) -> BackwardTiles:
    """Return True for long rows, of which few fit into shared memory."""
    if row_bytes(attention) > LONG:
        return BackwardTiles(2, 1, 16, 0, 1)
    return BackwardTiles(8, 1, 32, 0, 1) if padded(attention.shape.depth) <= 128 else BackwardTiles(4, 1, 16, 0, 2)


def flash_backward(
    device: Device, attention: Attention, result: Array, grads: Sequence[Array],
    of_queries: BackwardTiles | None = None, of_keys: BackwardTiles | None = None,
) -> Launch | None:  # fmt: skip
    """Fill the gradients of query, key and value (by head); return None if the kernels do not support the operands."""
    q, k, v, dout = attention.operands
    dq, dk, dv = grads
    if not takes(attention, [q, k, v, dout, result, *grads]):
        return None
    of_queries, of_keys = of_queries or tiles_of_queries(device, attention), of_keys or tiles_of_keys(device, attention)
    _, *scratch = _scratch(device, attention)
    arrays = (q, dout, k, v, result, dq, dq)
    launches = [_form(device, attention, scratch, of_queries, arrays, of_keys=False, sums=FIRST)]
    # Sums of both for deep heads do not fit into registers.
    for sums in (FIRST | SECOND,) if padded(attention.shape.depth) <= 128 else (FIRST, SECOND):
        arrays = (k, v, q, dout, result, dk, dv)
        launches.append(_form(device, attention, scratch, of_keys, arrays, of_keys=True, sums=sums))
    return in_order(draw(device, attention, scratch[1]), *launches)


def notes_of(device: Device, attention: Attention, result: Array, ahead: int) -> tuple[Array, Array, Array, Launch]:
    """Return (per-query data, weight bits, the launch that fills both), in scratch memory after `ahead` bytes; `takes`
    must hold."""
    own, *scratch = _scratch(device, attention, ahead)
    q, k, v, dout = attention.operands
    tiles, arrays = tiles_of_queries(device, attention), (q, dout, k, v, result, q, q)
    noting = _form(device, attention, scratch, tiles, arrays, of_keys=False, sums=0)
    drawing = draw(device, attention, scratch[1])

    def launch() -> None:
        drawing()
        noting()

    return own, *scratch, launch


def _scratch(device: Device, attention: Attention, ahead: int = 0) -> tuple[Array, Array, Array]:
    """Return scratch memory: `ahead` bytes, the notes of queries, and the bits of weights if these are drawn before."""
    shape, begin = attention.shape, aligned_bytes(ahead)
    end = begin + NOTE * shape.batch * shape.heads * shape.queries
    memory = device.scratch(end + max(4, bits_bytes(attention)))
    return memory[:ahead], memory[begin:end].view(np.float32), memory[end:]


def _form(
    device: Device, attention: Attention, scratch: Sequence[Array], tiles: BackwardTiles,
    arrays: Sequence[Array], *, of_keys: bool, sums: int,
) -> Launch:  # fmt: skip
    """Return one form of the kernel on its arrays, in the order of its arguments; it writes FIRST and SECOND of the
    last two as `sums` says, or notes alone."""
    shape, (notes, bits) = attention.shape, scratch
    heads, rows = (shape.key_heads, shape.keys) if of_keys else (shape.heads, shape.queries)
    kernel = device.kernel(tiles.source(device, attention, of_keys, sums), "flash_backward")
    grid = shape.batch * heads * math.ceil(rows / tiles.rows())
    arguments: list[Any] = [
        *map(first_row, arrays), attention.statistics, notes, *terms_of(device, attention, bits), np.int32(shape.heads),
        np.int32(shape.group), np.int32(shape.queries), np.int32(shape.keys), np.float32(attention.scores.scale),
        *strides_of(*arrays),
    ]  # fmt: skip

    return partial(kernel, grid, 32 * tiles.warps, arguments, tiles.shared(attention))


# This is the gradient of the addend of the scores of fused attention on a GPU: the gradients of the scores, summed over
# batch and heads as far as the addend is the same for them.
#
# A block owns a tile of queries and keys and loops over the summed dimensions, so that the sum is in registers and has
# the same bits each time; the gradients of the scores of a batch are never in memory. If there are few tiles and much
# to sum, several blocks sum a part each for one tile, and their sums are added up at last. See `flash_backward`.


THREADS = 256
FEWEST = 2
"""Gradients of scores that a block sums: less are not worth the way through memory."""


def _tile(attention: Attention, grouped: bool) -> tuple[int, int]:
    if grouped:
        return 4, PANEL
    row = row_bytes(attention)
    if row > MIDDLE:
        return (2, 32) if row <= LONG else (1, 16)
    return (4, 64) if attention.operands[0].itemsize == 2 else (4, 32)


def _shared(attention: Attention, grouped: bool) -> int:
    """Return the bytes of shared memory: two buffers of rows and columns, with their notes and terms."""
    warps, columns = _tile(attention, grouped)
    buffer = 2 * row_bytes(attention, grouped) * (16 * warps + columns) + NOTE * 16 * warps + 4 * columns
    aligned = 1024 if grouped else 16
    return 2 * (-(-buffer // aligned) * aligned)


def _blocks(attention: Attention, grouped: bool) -> int:
    """Return the blocks of a multiprocessor, which limit the registers."""
    return 3 if grouped and padded(attention.shape.depth) == PANEL else 1


def _source(device: Device, attention: Attention, gradient: str) -> str:
    grouped = can_group(device, attention)
    warps, columns = _tile(attention, grouped)
    sizes = {
        "WARPS": warps, "BANDS": 1, "BLOCKS": _blocks(attention, grouped), "COLUMNS": columns,
        "SHARED": _shared(attention, grouped), "GROUPED": int(grouped),
    }  # fmt: skip
    return f"#define G {gradient}\n" + source_of(device, attention, "flash_shift.cu", **sizes)


def flash_shift(device: Device, attention: Attention, result: Array, out: Array) -> Launch | None:
    """Fill `out`, the gradient of the shift or its sum over batch or heads; `result` is attention_out by head.

    None if the kernels do not take the operands, or `out` is the same for all queries or keys.
    """
    shape, wanted = attention.shape, (1,) * (4 - out.ndim) + tuple(out.shape)
    q, k, v, dout = attention.operands
    if wanted[2:] != (shape.queries, shape.keys) or not takes(attention, [q, k, v, dout, result]):
        return None
    batch, heads = wanted[:2]
    grouped = can_group(device, attention)
    warps, columns = _tile(attention, grouped)
    grid = batch * heads * math.ceil(shape.queries / (16 * warps)) * math.ceil(shape.keys / columns)
    summed = (shape.batch if batch == 1 else 1) * (shape.heads if heads == 1 else 1)
    parts = max(1, min(summed // FEWEST, device.multiprocessors * _blocks(attention, grouped) // grid))
    apart = parts > 1
    room, notes, bits, noting = notes_of(device, attention, result, 4 * parts * out.size * apart)
    element = c_type(dtype_of(out.dtype))
    kernel = device.kernel(_source(device, attention, "float" if apart else element), "flash_shift")
    target = room.view(np.float32) if apart else out
    adding = f"#define G {element}\n" + source_text("ops/cuda/flash_shift_total.cu")
    total = device.kernel(adding, "shift_total") if apart else None
    arrays = (q, dout, k, v)
    sizes = (shape.heads, shape.group, shape.queries, shape.keys)
    arguments: list[Any] = [
        *map(first_row, arrays), target, notes, *terms_of(device, attention, bits), *map(np.int32, sizes),
        np.float32(attention.scores.scale), np.int32(shape.batch), np.int32(batch), np.int32(heads), np.int32(parts),
        *strides_of(*arrays),
    ]  # fmt: skip

    def launch() -> None:
        noting()
        kernel(grid * parts, 32 * warps, arguments, _shared(attention, grouped))
        if total is not None:
            total(math.ceil(out.size / THREADS), THREADS, (target, out, np.int64(out.size), np.int32(parts)))

    return launch
