"""Attention and its gradients get kernels of compiled functions."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from mspc.ir.types import TensorType
from mspc.ops.cpu.loops.addresses import address
from mspc.ops.cpu.loops.attention.functions import GRADIENTS, RESULT
from mspc.ops.cpu.loops.attention.numbers import (
    Numbers,
    Sharing,
    can_be_drawn,
    elements_of_sums,
    sharing,
    sharing_of_shift,
)
from mspc.ops.cpu.loops.attention.source import POINTERS, source
from mspc.ops.cpu.loops.kernel import Function, Kernel, shared
from mspc.ops.cpu.scratch import scratch
from mspc.ops.device import c_type
from mspc.ops.nn.attention import FlashAttentionScore, FlashAttentionScoreGrad, FlashAttentionScoreShiftGrad
from mspc.ops.nn.attention_base import KEY_SHIFT, AttentionOp
from mspc.ops.nn.attention_kernel import Shape, four_dimensions

_FASTER = 16
"""Floating-point operations of a product that take the time of one operation of a loop over elements."""
_TEXTS: Mapping[type[AttentionOp], str] = {
    FlashAttentionScore: RESULT, FlashAttentionScoreGrad: GRADIENTS, FlashAttentionScoreShiftGrad: GRADIENTS,
}  # fmt: skip


class AttentionSource(NamedTuple):
    """text: C++ of a function, called NAME. op: the operator, on query, key and value apart. packed: the same on one
    operand that holds them, where it is such a one. operations: floating-point operations of products."""

    text: str
    op: AttentionOp
    packed: AttentionOp | None
    shape: Shape
    operations: int


def compiled_attention(op: AttentionOp, types: Sequence[TensorType]) -> AttentionSource | None:
    """How an operator on operands of these types is compiled; None where it is not: in Float64, with an addend of keys,
    and what has no elements."""
    dtype = types[0].dtype
    if dtype.name not in ("Float32", "Float16", "BFloat16") or any(not type.size for type in types):
        return None
    if KEY_SHIFT in op.optional:
        return None
    apart = op.apart if op.packed else op
    given = op.separated(types) if op.packed else list(types)
    shape = apart.sizes(given)
    if not can_be_drawn(len(apart.local or shape.weights) - 1):
        return None
    text = source(c_type(dtype), _TEXTS[type(op)])
    return AttentionSource(text, apart, op if op.packed else None, shape, int(op.operations(types)))


def attention_kernel(be: Any, made: AttentionSource, function: Function, plain: Kernel) -> Kernel:
    """The kernel `function(*operands, out=None)`. plain: NumPy's, for operands that are not finite, where factors of
    what is left out would make NaN of it."""
    call = _CALLS[type(made.op)](be, made, function)

    def kernel(*operands: Any, out: Any = None) -> Any:
        found = (made.packed or made.op).allocated(be, operands) if out is None else out
        given = made.packed.separated(operands) if made.packed else list(operands)
        results = made.packed.parts(found) if made.packed and isinstance(call, _OfGradients) else found
        if not call(given, results):
            for target, array in zip(_parts(found), _parts(plain(*operands)), strict=True):
                target[...] = array
        return found

    return kernel


def _parts(found: Any) -> Sequence[Any]:
    return found if isinstance(found, (tuple, list)) else (found,)


class _Call:
    """Calls of a function: numbers and addresses are put where it reads them."""

    def __init__(self, be: Any, made: AttentionSource, shared_out: Sharing) -> None:
        self.be, self.op, self.shape = be, made.op, made.shape
        self.numbers = Numbers(made.shape, shared_out)
        self.table = (ctypes.c_void_p * len(POINTERS))()
        self.odd = np.zeros(1, np.int64)
        self.held: list[Any] = [self.numbers.memory, self.odd]
        self.put(numbers=self.numbers.memory, odd=self.odd)
        self.always = len(self.held)

    def put(self, **arrays: Any) -> None:
        """Arrays that stay alive until the call ends."""
        for name, array in arrays.items():
            self.table[POINTERS.index(name)] = address(array)
            self.held.append(array)

    def put_heads(self, **arrays: Any) -> None:
        """Views by head, of which those that are read are copied where a row has steps."""
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

    def by_head(self, arrays: Sequence[Any], *heads: int) -> list[Any]:
        return self.op.views(self.shape, arrays, heads)

    def ended(self, *runs: Callable[[Any], None]) -> bool:
        """Run the function; False where an operand is not finite."""
        self.odd[0] = 0
        for run in runs:
            run(self.table)
        del self.held[self.always :]
        return not self.odd[0]


class _OfResult(_Call):
    def __init__(self, be: Any, made: AttentionSource, function: Function) -> None:
        found = sharing(made.shape)
        super().__init__(be, made, found)
        self.run = shared(function, found.parts, made.operations // _FASTER)

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
        found = sharing(made.shape)
        super().__init__(be, made, found)
        self.sums = elements_of_sums(made.shape, found)
        self.runs = [shared(function, found.parts, made.operations // _FASTER)]
        if self.sums:
            self.runs.append(shared(function, found.pairs, self.sums, found.parts))

    def __call__(self, operands: Sequence[Any], out: Any) -> bool:
        n, m = self.shape.heads, self.shape.key_heads
        q, k, v, g = self.by_head(operands[:4], n, m, m, n)
        (o,) = self.by_head(operands[-1:], n)
        grads = self.by_head(out, n, m, m)
        targets = [x if _in_rows(x) else np.empty(x.shape, x.dtype) for x in grads]
        self.put_heads(q=q, k=k, v=v, g=g, o=o, **dict(zip(("dq", "dk", "dv"), targets, strict=True)))
        self.put_scores(operands)
        self.put(statistics=np.ascontiguousarray(operands[-2]))
        if self.sums:
            self.put(shares=scratch("attention", (self.sums,), np.float32))
        fine = self.ended(*self.runs)
        _written(*zip(grads, targets, strict=True))
        return fine


class _OfShift(_Call):
    def __init__(self, be: Any, made: AttentionSource, function: Function) -> None:
        self.function, self.operations = function, made.operations // _FASTER
        super().__init__(be, made, sharing(made.shape))
        self.numbers.put(of_shift=1)

    def __call__(self, operands: Sequence[Any], out: Any) -> bool:
        n, m = self.shape.heads, self.shape.key_heads
        q, k, v, g = self.by_head(operands[:4], n, m, m, n)
        (o,) = self.by_head(operands[-1:], n)
        sizes = four_dimensions(out).shape
        found = sharing_of_shift(self.shape, sizes)
        direct = out.dtype == np.float32 and out.flags.c_contiguous
        total = out.reshape(sizes) if direct else np.empty(sizes, np.float32)
        total[...] = 0
        self.numbers.put(pieces=found.pieces, own_batch=sizes[0], own_heads=sizes[1], own_queries=sizes[2])
        self.numbers.put_added("total", total)
        self.put_heads(q=q, k=k, v=v, g=g, o=o)
        self.put_scores(operands)
        self.put(statistics=np.ascontiguousarray(operands[-2]), total=total)
        fine = self.ended(shared(self.function, found.parts, self.operations))
        if not direct:
            out[...] = total.reshape(out.shape)
        return fine


_CALLS: Mapping[type[AttentionOp], Any] = {
    FlashAttentionScore: _OfResult, FlashAttentionScoreGrad: _OfGradients, FlashAttentionScoreShiftGrad: _OfShift,
}  # fmt: skip


def _in_rows(x: Any) -> bool:
    """Whether the elements of a row of a head lie side by side."""
    return x.shape[-1] == 1 or x.strides[-1] == x.itemsize


def _written(*pairs: tuple[Any, Any]) -> None:
    """Copy results that were made elsewhere to their place."""
    for place, made in pairs:
        if place is not made:
            np.copyto(place, made)
