"""The numbers that compiled attention is given: sizes, steps in memory, limits, and how work is shared out."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from mspc.ir.late_dataclass import dataclass
from mspc.ir.types import TensorType
from mspc.ops.cpu.blocks import scratch, written
from mspc.ops.cpu.loops.kernel import Function, Kernel, address, shared
from mspc.ops.device import c_type, source_text
from mspc.ops.nn.attention import FlashAttentionScore, FlashAttentionScoreGrad, FlashAttentionScoreShiftGrad
from mspc.ops.nn.attention_base import KEY_SHIFT, AttentionOp
from mspc.ops.nn.attention_kernel import LARGE, Draws, Scores, Shape, four_dimensions
from mspc.ops.random.words import count_of, key_of

ROWS = 72
"""Queries of a block at most."""
KEYS = 64
"""Keys of a block."""
DRAWN_DIMS = 8
"""Dimensions of rows that draws are numbered by, at most."""

STRIDED = ("q", "k", "v", "g", "o", "dq", "dk", "dv")
"""Operands and results with heads: queries, keys, values, the result's gradient, the result, and three gradients."""
ADDED = ("shift", "mask", "keep", "total")
"""Operands with numbers for each query and key, or fewer: the step along a missing dimension is 0."""
NUMBERS: Mapping[str, int] = {
    **dict.fromkeys((
        "pairs", "pieces", "block", "heads", "key_heads", "queries", "keys", "depth", "value_depth", "low", "high",
        "has_shift", "has_mask", "has_keep", "has_draws", "drawn_dims", "count", "key", "own_batch", "own_heads",
        "own_queries", "of_shift",
        *(f"{name}_{side}" for name in STRIDED for side in ("batch", "head", "row")),
        *(f"{name}_{side}" for name in ADDED for side in ("batch", "head", "row", "key")),
    ), 1),
    **dict.fromkeys(("drawn", "begin", "local"), DRAWN_DIMS),
}  # fmt: skip
"""Number of Int64 values passed to a function for each name, in their order; `scale` and `factor` follow in Float64."""
POINTERS = (*STRIDED, *ADDED, "statistics", "shares", "numbers", "odd")
"""Names of the addresses, in their order. shares: memory for the sums of pieces. odd: an Int64 that is set to 1 if an
operand is not finite, and results are to be made otherwise."""
PARTS = 16
"""Minimum number of parts of the work, if there are as many blocks of queries."""
_ROWS_AT_ONCE = 6
"""Rows of a full block that a matmul computes at once; a block is best a multiple of them."""
_FAR = 1 << 40
"""A distance that no two places have."""
_LANES = 16
"""Elements that rows are filled up to, at most."""


@dataclass(frozen=True, slots=True)
class Sharing:
    """pairs: of a batch entry and a head of the keys. pieces: of the queries of each. block: queries of a block."""

    pairs: int
    pieces: int
    block: int

    @property
    def parts(self) -> int:
        return self.pairs * self.pieces


def sharing(shape: Shape) -> Sharing:
    """Return how results and gradients of operands are shared out."""
    block, blocks = _blocks(shape)
    pairs = shape.batch * shape.key_heads
    return Sharing(pairs, min(shape.group * blocks, -(-PARTS // pairs)), block)


def sharing_of_shift(shape: Shape, total: Sequence[int]) -> Sharing:
    """Return the division of a shift's gradient of these four sizes, along dimensions with elements of their own."""
    block, blocks = _blocks(shape)
    places = total[0] * total[1]
    return Sharing(places, min(blocks, -(-PARTS // places)) if total[2] > 1 else 1, block)


def _blocks(shape: Shape) -> tuple[int, int]:
    """Return (queries of a block, blocks): of equal length except for the last one."""
    rows = -(-shape.queries // -(-shape.queries // ROWS))
    block = min(ROWS, -(-rows // _ROWS_AT_ONCE) * _ROWS_AT_ONCE)
    return block, -(-shape.queries // block)


def elements_of_sums(shape: Shape, shared: Sharing) -> int:
    """Return the number of elements of the memory for sums of pieces."""
    if shared.pieces == 1:
        return 0
    keys = -(-shape.keys // KEYS) * KEYS
    return shared.parts * keys * sum(-(-depth // _LANES) * _LANES for depth in (shape.depth, shape.value_depth))


class Numbers:
    """The numbers in memory of an attention with fixed sizes."""

    def __init__(self, shape: Shape, shared: Sharing) -> None:
        places: dict[str, int] = {}
        size = 0
        for name, count in NUMBERS.items():
            places[name] = size
            size += count
        self._places = places
        self.memory = np.zeros(size + 2, np.int64)
        self._reals = self.memory[size:].view(np.float64)
        self.put(
            pairs=shape.batch * shape.key_heads, pieces=shared.pieces, block=shared.block, heads=shape.heads,
            key_heads=shape.key_heads, queries=shape.queries, keys=shape.keys, depth=shape.depth,
            value_depth=shape.value_depth, own_batch=1, own_heads=1, own_queries=1,
        )  # fmt: skip

    def put(self, **numbers: int) -> None:
        for name, number in numbers.items():
            self.memory[self._places[name]] = number

    def put_heads(self, arrays: Mapping[str, Any]) -> None:
        """Write the steps of views [batch, heads, sequence, depth], in elements."""
        for name, array in arrays.items():
            first = self._places[f"{name}_batch"]
            self.memory[first : first + 3] = [stride // array.itemsize for stride in array.strides[:3]]

    def put_added(self, name: str, array: Any) -> None:
        """Write steps along each of four dimensions for an array with one element or all."""
        first = self._places[f"{name}_batch"]
        self.memory[first : first + 4] = [
            0 if size == 1 else stride // array.itemsize
            for size, stride in zip(array.shape, array.strides, strict=True)
        ]

    def put_scores(self, scores: Scores) -> None:
        """Write the numbers of scores, without addresses."""
        self.put(
            low=-_FAR if scores.low is None else scores.low, high=_FAR if scores.high is None else scores.high,
            has_shift=scores.shift is not None, has_mask=scores.mask is not None, has_draws=scores.draws is not None,
            has_keep=scores.draws is None and scores.keep_mask is not None,
        )  # fmt: skip
        self._reals[:] = scores.scale, 1 / scores.keep_prob
        if scores.draws is not None:
            self._put_draws(scores.draws, scores.step)

    def _put_draws(self, draws: Draws, step: int) -> None:
        dims = len(draws.local) - 1
        self.put(drawn_dims=dims, count=count_of(draws.keep_prob))
        self.memory[self._places["key"] :][:1].view(np.uint64)[0] = key_of(*draws.seeds, step)
        for name, sizes in (("drawn", draws.shape), ("begin", draws.begin), ("local", draws.local)):
            first = self._places[name]
            self.memory[first : first + dims] = sizes[:-1]


# Attention and its gradients get kernels of compiled functions.


_FASTER = 16
"""Floating-point operations of a matmul that take the time of one operation of a loop over elements."""


class AttentionSource(NamedTuple):
    """text: C++ of a function, called NAME. op: the operator, on query, key and value as separate operands. packed: the
    same on one operand that holds them, if any. operations: floating-point operations of matmuls."""

    text: str
    op: AttentionOp
    packed: AttentionOp | None
    shape: Shape
    operations: int


def compiled_attention(op: AttentionOp, types: Sequence[TensorType]) -> AttentionSource | None:
    """Return the compiled form of an operator on these types; None in Float64, with an addend of keys, or without
    elements."""
    dtype = types[0].dtype
    if dtype.name not in ("Float32", "Float16", "BFloat16") or any(not type.size for type in types):
        return None
    if KEY_SHIFT in op.optional:
        return None
    apart = op.apart if op.packed else op
    given = op.separated(types) if op.packed else list(types)
    shape = apart.sizes(given)
    if len(apart.local or shape.weights) - 1 > DRAWN_DIMS:
        return None
    made = "result" if isinstance(op, FlashAttentionScore) else "gradients"
    text = source_text(
        f"ops/cpu/loops/attention_{made}.cpp",
        element=c_type(dtype), rows=ROWS, keys=KEYS, large=LARGE, pointers=", ".join(f"P_{name}" for name in POINTERS),
        numbers=", ".join(f"{name}[{count}]" if count > 1 else name for name, count in NUMBERS.items()),
    )  # fmt: skip
    return AttentionSource(text, apart, op if op.packed else None, shape, int(op.operations(types)))


def attention_kernel(be: Any, made: AttentionSource, function: Function, plain: Kernel) -> Kernel:
    """Return the kernel `function(*operands, out=None)`. plain: NumPy's, for operands that are not finite: factors of
    skipped elements would make NaN of them."""
    call = _CALLS[type(made.op)](be, made, function)

    def kernel(*operands: Any, out: Any = None) -> Any:
        found = (made.packed or made.op).allocated(be, operands) if out is None else out
        given = made.packed.separated(operands) if made.packed else list(operands)
        results = made.packed.parts(found) if made.packed and isinstance(call, _OfGradients) else found
        if not call(given, results):
            written(plain(*operands), found)
        return found

    return kernel


class _Call:
    """Calls of a function: numbers and addresses are written to the arrays it reads."""

    def __init__(self, be: Any, made: AttentionSource, function: Function) -> None:
        self.be, self.op, self.shape = be, made.op, made.shape
        self.function, self.operations = function, made.operations // _FASTER
        self.sharing = sharing(made.shape)
        self.numbers = Numbers(made.shape, self.sharing)
        self.table = (ctypes.c_void_p * len(POINTERS))()
        self.odd = np.zeros(1, np.int64)
        self.held: list[Any] = [self.numbers.memory, self.odd]
        self.put(numbers=self.numbers.memory, odd=self.odd)
        self.always = len(self.held)

    def put(self, **arrays: Any) -> None:
        """Put arrays, which stay alive until the call ends."""
        for name, array in arrays.items():
            self.table[POINTERS.index(name)] = address(array)
            self.held.append(array)

    def put_heads(self, **arrays: Any) -> None:
        """Write views by head; operands with steps within rows are copied first."""
        found = {name: x if _in_rows(x) else np.ascontiguousarray(x) for name, x in arrays.items()}
        self.numbers.put_heads(found)
        self.put(**found)

    def put_scores(self, operands: Sequence[Any]) -> None:
        scores = self.op.scores(self.shape, operands, self.be)
        self.numbers.put_scores(scores)
        added = {"shift": (scores.shift, np.float32), "mask": (scores.mask, None), "keep": (scores.keep_mask, None)}
        for name, (array, dtype) in added.items():
            if array is None:
                continue
            there = np.ascontiguousarray(array, dtype)
            self.numbers.put_added(name, there)
            self.put(**{name: there})

    def put_gradient_operands(self, operands: Sequence[Any]) -> None:
        n, m = self.shape.heads, self.shape.key_heads
        q, k, v, g = self.by_head(operands[:4], n, m, m, n)
        (o,) = self.by_head(operands[-1:], n)
        self.put_heads(q=q, k=k, v=v, g=g, o=o)
        self.put_scores(operands)
        self.put(statistics=np.ascontiguousarray(operands[-2]))

    def by_head(self, arrays: Sequence[Any], *heads: int) -> list[Any]:
        return self.op.views(self.shape, arrays, heads)

    def ended(self, *runs: Callable[[Any], None]) -> bool:
        """Run the function; False if an operand is not finite."""
        self.odd[0] = 0
        for run in runs:
            run(self.table)
        del self.held[self.always :]
        return not self.odd[0]


class _OfResult(_Call):
    def __init__(self, be: Any, made: AttentionSource, function: Function) -> None:
        super().__init__(be, made, function)
        self.run = shared(function, self.sharing.parts, self.operations)

    def __call__(self, operands: Sequence[Any], out: Any) -> bool:
        top, total, none, result = out
        n, m = self.shape.heads, self.shape.key_heads
        q, k, v = self.by_head(operands[:3], n, m, m)
        (o,) = self.by_head([result], n)
        target = o if _in_rows(o) else np.empty(o.shape, o.dtype)
        statistics = top if top.flags.c_contiguous else np.empty(top.shape, top.dtype)
        self.put_heads(q=q, k=k, v=v, o=target)
        self.put_scores(operands)
        self.put(statistics=statistics)
        fine = self.ended(self.run)
        _written((o, target), (top, statistics))
        total[...] = 1
        none[...] = 0
        return fine


class _OfGradients(_Call):
    def __init__(self, be: Any, made: AttentionSource, function: Function) -> None:
        super().__init__(be, made, function)
        own = self.sharing
        self.sums = elements_of_sums(made.shape, own)
        self.runs = [shared(function, own.parts, self.operations)]
        if self.sums:
            self.runs.append(shared(function, own.pairs, self.sums, own.parts))

    def __call__(self, operands: Sequence[Any], out: Any) -> bool:
        n, m = self.shape.heads, self.shape.key_heads
        grads = self.by_head(out, n, m, m)
        targets = [x if _in_rows(x) else np.empty(x.shape, x.dtype) for x in grads]
        self.put_gradient_operands(operands)
        self.put_heads(**dict(zip(("dq", "dk", "dv"), targets, strict=True)))
        if self.sums:
            self.put(shares=scratch("attention", (self.sums,), np.float32))
        fine = self.ended(*self.runs)
        _written(*zip(grads, targets, strict=True))
        return fine


class _OfShift(_Call):
    def __init__(self, be: Any, made: AttentionSource, function: Function) -> None:
        super().__init__(be, made, function)
        self.numbers.put(of_shift=1)

    def __call__(self, operands: Sequence[Any], out: Any) -> bool:
        sizes = four_dimensions(out).shape
        found = sharing_of_shift(self.shape, sizes)
        direct = out.dtype == np.float32 and out.flags.c_contiguous
        total = out.reshape(sizes) if direct else np.empty(sizes, np.float32)
        total[...] = 0
        self.numbers.put(pieces=found.pieces, own_batch=sizes[0], own_heads=sizes[1], own_queries=sizes[2])
        self.numbers.put_added("total", total)
        self.put_gradient_operands(operands)
        self.put(total=total)
        fine = self.ended(shared(self.function, found.parts, self.operations))
        if not direct:
            out[...] = total.reshape(out.shape)
        return fine


_CALLS: Mapping[type[AttentionOp], Any] = {
    FlashAttentionScore: _OfResult, FlashAttentionScoreGrad: _OfGradients, FlashAttentionScoreShiftGrad: _OfShift,
}  # fmt: skip


def _in_rows(x: Any) -> bool:
    return x.shape[-1] == 1 or x.strides[-1] == x.itemsize


def _written(*pairs: tuple[Any, Any]) -> None:
    for place, made in pairs:
        if place is not made:
            np.copyto(place, made)
