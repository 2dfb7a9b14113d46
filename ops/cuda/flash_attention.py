"""Fused attention on a GPU: the dropout of its weights, the forward kernel and the backward kernels.

Kernels draw the numbers of a dropout, or read bits that were drawn before.

If rows of weights begin with groups of elements that words of the generator decide together (see
`ops/nn/attention_kernel.py`), a thread draws a word for four of its weights. Elsewhere every weight would need one of
its own, in each of the three kernels: a kernel before them draws all weights, a word for four, and leaves a bit of each
in scratch memory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from mspc.ir.late_dataclass import dataclass
from mspc.ir.types import FLOAT32, HALVES, DType, dtype_of
from mspc.ops.cuda.attention_kernels import Attention, addends, aligned_bytes, first_row
from mspc.ops.cuda.text import address, macros
from mspc.ops.device import Array, Device, Launch, c_type, in_order, source_text
from mspc.ops.nn.attention_kernel import LARGE, Draws, Shape, draws_source, seed_of
from mspc.ops.random.words import count_of, merged_slice

_THREADS = 256
_WORD = 32
"""Bits of a word in memory."""
_MAX_ROWS = 128
"""Rows of a kernel's tile. Those of the last tile that are after all rows read bits, too."""


def drawn_before(attention: Attention) -> bool:
    """Return whether a mask in memory says which weights are dropped: not if threads can draw cheaply, or if the mask
    would be larger than attention's operands."""
    draws, shape = attention.scores.draws, attention.shape
    if draws is None or draws.aligned:
        return False
    operands = sum(array.nbytes for array in attention.operands[:3])
    return math.prod(shape.weights) // 8 <= operands


def bits_bytes(attention: Attention) -> int:
    """Return the bytes of scratch memory for the bits of all weights, and of unused rows after the last; 0 if nothing
    is drawn before."""
    if not drawn_before(attention):
        return 0
    shape = attention.shape
    return _WORD // 8 * (-(-(math.prod(shape.weights) + _MAX_ROWS * shape.keys) // _WORD) + _MAX_ROWS // _WORD + 1)


def column_bytes(attention: Attention, rows: int) -> int:
    """Return the bytes that the form of keys holds of each query; rows: keys of a block."""
    draws = attention.scores.draws
    if draws is None:
        return 1
    if drawn_before(attention):
        return _WORD // 8 * -(-rows // _WORD)
    return 8 if draws.aligned else 16


def draws_of(attention: Attention) -> str:
    """Return C++ of the functions that tell kernels which weights remain, see flash_dropout.cuh."""
    draws = attention.scores.draws
    if draws is None:
        form, known = 0, ""
    elif drawn_before(attention):
        form, known = 1, macros(KEPT_FACTOR=f"((float){1 / draws.keep_prob!r})")
    else:
        form = 2 if draws.aligned else 3
        known = draws_source(draws) + macros(STAYING=f"{count_of(draws.keep_prob)}u")
    return known + macros(DROPOUT=form) + source_text("ops/cuda/flash_dropout.cuh")


def draw(device: Device, attention: Attention, bits: Array) -> Launch:
    """Return the launch that fills `bits`, of `bits_bytes` bytes; it does nothing without a mask in memory."""
    draws = attention.scores.draws
    if draws is None or not drawn_before(attention):
        return lambda: None
    known = macros(STAYING=f"{count_of(draws.keep_prob)}u", BEGIN=f"{_begin(draws)}ll")
    kernel = device.kernel(draws_source(draws) + known + source_text("ops/cuda/flash_draws.cu"), "flash_draws")
    words = -(-math.prod(attention.shape.weights) // _WORD)
    arguments: list[Any] = [bits, np.int64(words), np.int32(attention.shape.keys), device.step, seed_of(draws)]

    return partial(kernel, -(-words // _THREADS), _THREADS, arguments)


def _begin(draws: Draws) -> int:
    """Return the position of the first of a rank's weights if they are one run of all, else -1."""
    merged, starts, _ = merged_slice(draws.shape, draws.begin, draws.local)
    return starts[0] if len(merged) == 1 else -1


PANEL = 64
"""Columns of a panel, halves in 128 bytes, and rows of a group."""
MAX_PANELS = 2
"""Upper bound of the panels of a row, whose sums fit into registers."""


_ALIGNMENT = 16
_MIN_STEP = 16
"""The depth in shared memory is a multiple of this number of elements."""
DEEPEST = 256
"""The largest head whose sums fit into registers."""
SHORT, MIDDLE, LONG = (n + _ALIGNMENT for n in (128, 256, 512))
"""Bytes in shared memory of a row of 64 halves; of 128 halves or 64 of Float32; of 256 halves or 128 of Float32."""
UNBOUNDED = 1 << 30
"""The value for no limit of key - query."""


def strides_of(*arrays: Array) -> list[np.int64]:
    """Return the strides of batch, head and sequence in elements."""
    return [np.int64(stride // array.itemsize) for array in arrays for stride in array.strides[:3]]


def padded(depth: int) -> int:
    """Return the depth of a head as kernels pad it."""
    return -(-depth // _MIN_STEP) * _MIN_STEP


def row_bytes(attention: Attention, grouped: bool = False) -> int:
    """Return the bytes of a row in shared memory. grouped: tiles are in the order of flash_groups.cuh."""
    return padded(attention.shape.depth) * attention.operands[0].itemsize + (0 if grouped else _ALIGNMENT)


def has_kernels(shape: Shape, dtype: DType) -> bool:
    """Whether there are kernels here for attention of these sizes and elements."""
    if dtype not in HALVES and dtype != FLOAT32:
        return False
    if shape.depth != shape.value_depth or shape.depth > DEEPEST or shape.depth * dtype.itemsize % _ALIGNMENT:
        return False
    return 0 < min(shape.batch, shape.queries, shape.keys, shape.depth) and max(shape.queries, shape.keys) < UNBOUNDED


def takes(attention: Attention, arrays: Sequence[Array]) -> bool:
    """Whether the kernels here compute this attention; `arrays` are all by head that they read or write."""
    if len({array.dtype for array in arrays}) != 1 or attention.scores.keep_mask is not None:
        return False
    if not has_kernels(attention.shape, dtype_of(arrays[0].dtype)):
        return False
    strides = [stride for array in arrays for stride in array.strides[:3]]
    return not any(number % _ALIGNMENT for number in (*strides, *map(address, arrays)))


def has_terms(attention: Attention) -> bool:
    """Whether something is added to the scores, or a mask hides some."""
    return attention.scores.shifted or attention.scores.mask is not None


def has_terms_of_queries(attention: Attention) -> bool:
    """Whether one of these differs from query to query."""
    terms = (attention.scores.shift, attention.scores.mask)
    return any(term is not None and term.shape[2] > 1 for term in terms)


def has_tail(attention: Attention, columns: int, tile: int) -> bool:
    """Whether the last tile is half empty and worth a second loop, which takes registers: not with Float32 terms."""
    wide = attention.operands[0].itemsize > 2 and has_terms_of_queries(attention)
    return not wide and 0 < columns % tile <= tile // 2


def can_group(device: Device, attention: Attention) -> bool:
    """Whether four warps can multiply together: halves, of rows that are whole panels."""
    panels, rest = divmod(padded(attention.shape.depth), PANEL)
    halves = attention.operands[0].itemsize == 2
    return device.warp_groups and halves and not rest and panels <= MAX_PANELS


def source_of(device: Device, attention: Attention, kernel: str, **sizes: int) -> str:
    """Return the text of the kernel of a file: constants of the attention, these sizes, the common part, the file."""
    scores, dtype = attention.scores, dtype_of(attention.operands[0].dtype)
    shift = "float" if scores.shift is None else c_type(dtype_of(scores.shift.dtype))
    mask = "bool" if scores.mask is None else c_type(dtype_of(scores.mask.dtype))
    key_shift = "float" if scores.key_shift is None else c_type(dtype_of(scores.key_shift.dtype))
    names = {"E": c_type(dtype), "F": shift, "M": mask, "H": key_shift}
    if dtype in HALVES:
        names["PTX"] = f'"{c_type(dtype)}"'
    terms = ((1, scores.shift), (2, scores.mask), (4, scores.key_shift))
    shift_bit, masked, key_bit = (bit * (array is not None) for bit, array in terms)
    shifted = shift_bit | key_bit
    keyed = sum(bit for bit, array in terms if array is not None and array.shape[2] == 1)
    depth = attention.shape.depth
    raw = int(not has_terms(attention) and scores.scale > 0)
    sizes.setdefault("GROUPED", 0)
    sizes |= {"D": padded(depth), "DEPTH": depth, "SHIFTED": shifted, "MASKED": masked, "KEYED": keyed, "RAW": raw}
    known = macros(**names, TF32=int(device.tf32), **sizes)
    products = "flash_halves.cuh" if dtype in HALVES else "flash_float32.cuh"
    groups = ["flash_groups.cuh"] if sizes["GROUPED"] else []
    files = (source_text(f"ops/cuda/{name}") for name in (products, *groups, kernel))
    return "".join((known, source_text("ops/cuda/flash.cuh"), draws_of(attention), *files))


def terms_of(device: Device, attention: Attention, bits: Array) -> list[Any]:
    """Return the kernels' arguments TERMS. bits: see `draw`; any array if nothing was drawn before."""
    scores = attention.scores
    low, high = (
        limit if bound is None else max(-UNBOUNDED, min(UNBOUNDED, bound))
        for bound, limit in ((scores.low, -UNBOUNDED), (scores.high, UNBOUNDED))
    )
    return [*addends(attention), device.step, seed_of(scores.draws), bits, np.int32(low), np.int32(high)]


# The forward kernel -----------------------------------------------------------------------------------
# Fused attention on a GPU, forward, for cases that cuDNN does not take: dropped weights, masks in addition to
# windows, addends of any element type, Float32. The scores stay in registers.
# The algorithm is that of Dao et al. (arXiv 2205.14135, 2307.08691): a block holds some queries and loops over the
# keys in tiles, keeping each query's largest score and sum so far.


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


# The backward kernels ---------------------------------------------------------------------------------
# This is fused attention on a GPU, backward; the scores are computed again, tile by tile.
# With weights P = exp(scale Q K^T + shift - statistics), of which a mask Z (0 or 1 / keep_prob) drops some, and
# slopes dP = Z * (dO V^T): dV = (Z * P)^T dO, dS = P (dP - rowsum(dO O)), dQ = scale dS K, dK = scale dS^T Q (Dao et
# al., arXiv 2205.14135). One kernel in two forms, so that every sum has one owner and the same bits each time:
# * of queries: a block holds Q and dO of some queries, goes over K and V and writes dQ. It also writes, for the other
# form, each query's statistics (to the base 2), rowsum(dO O) and the factor of its weights. * of keys: a block holds
# K and V of some keys, goes over Q and dO of all queries that look at them and writes dK and dV.
# That factor is 1, but for a query to all of whose keys a number as -1e9 is added: beside it the logarithm of the sum
# is rounded away, and the weights are added up again.


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
