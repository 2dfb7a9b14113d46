"""Dropout of fused attention's weights on a GPU: numbers that its kernels draw, or bits that were drawn before.

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

from mspc.ir.types import FLOAT32, HALVES, DType, dtype_of
from mspc.ops.cuda.attention_kernels import Attention, addends
from mspc.ops.cuda.text import address, macros
from mspc.ops.device import Array, Device, Launch, c_type
from mspc.ops.nn.attention_kernel import Draws, Shape, draws_source, seed_of
from mspc.ops.random.words import count_of, merged_slice
from mspc.ops.source_files import source_text

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
