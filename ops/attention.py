"""Attention as one operator, and its gradients: the scores of queries and keys never stand in memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from mspc.ir.builder import Builder
from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Value
from mspc.ir.types import BOOL, FLOAT32, FLOAT64, UINT8, DType, TensorType, TupleType, Type, dtype_of
from mspc.ops.attention_kernel import (
    UNLIMITED,
    Scores,
    Shape,
    backward,
    by_head,
    forward,
    four_dimensions,
    shift_gradient,
)
from mspc.ops.attention_launch import launch_backward, launch_forward, launch_shift_gradient
from mspc.ops.bases import require_float, require_same
from mspc.ops.cuda_attention import Attention
from mspc.ops.device import Array, Device, Launch
from mspc.ops.op import ArrayBackend, NotDifferentiable, Op, Placement, Sample, sample
from mspc.ops.structural import TupleGetItem

Gradients = Sequence[Value | None]

LAYOUTS = ("BSH", "BNSD", "BSND", "SBH")
OPTIONAL = ("real_shift", "attn_mask")
"""Operands that may be left out, in their order."""
COMPRESSED = (2048, 2048)
"""The shape of the triangle that MindSpore wants as `attn_mask` in the sparse modes that need no mask."""


class _Attention(Op, abstract=True):
    """Attributes, sizes and rules that the operator and its gradients share.

    optional: which of the operands that may be left out are there. The other fields are MindSpore's.
    """

    head_num: int
    keep_prob: float = 1.0
    scale_value: float = 1.0
    pre_tokens: int = UNLIMITED
    next_tokens: int = UNLIMITED
    inner_precise: int = 0
    input_layout: str = "BSH"
    sparse_mode: int = 0
    optional: tuple[str, ...] = ()
    omitted: ClassVar[tuple[str, ...]] = (
        "keep_prob", "scale_value", "pre_tokens", "next_tokens", "inner_precise", "input_layout", "sparse_mode",
        "optional",
    )  # fmt: skip

    def infer(self, *types: Any) -> Type:
        inferred = super().infer(*types)
        query, key, value = types[:3]
        require_float(self.name, query, key, value)
        require_same(self.name, query, key, value)
        for name, operand in self.named(types).items():
            if name == "attn_mask" and operand.dtype not in (BOOL, UINT8):
                raise MspcError(f"{self.name}: attn_mask is {operand.dtype}, not Bool or UInt8")
            if name == "real_shift" and not operand.dtype.is_float:
                raise MspcError(f"{self.name}: real_shift is {operand.dtype}, not a floating-point tensor")
        return inferred

    def named(self, operands: Sequence[Any]) -> dict[str, Any]:
        """The optional operands that are there, by name."""
        first = self.first_optional
        return dict(zip(self.optional, operands[first : first + len(self.optional)], strict=True))

    first_optional: ClassVar[int] = 4

    def sizes(self, types: Sequence[TensorType]) -> Shape:
        """Sizes that follow from the shapes. Raises MspcError where attributes or shapes do not fit."""
        self.check_settings()
        names, rank = ("query", "key", "value"), 3 if self.input_layout in ("BSH", "SBH") else 4
        for name, operand in zip(names, types, strict=False):
            if len(operand.shape) != rank:
                raise MspcError(
                    f"{self.name}: {name} has shape {operand.shape}, but input_layout {self.input_layout!r} has {rank} "
                    f"dimensions",
                    notes=[f"known layouts are {', '.join(LAYOUTS)}"],
                )
        query, key, value = (t.shape for t in types[:3])
        n = self.head_num
        if rank == 3:
            batch, queries, keys = (0, 1, 1) if self.input_layout == "BSH" else (1, 0, 0)
            if query[2] % n:
                raise MspcError(f"{self.name}: head_num {n} does not divide the hidden size {query[2]} of query")
            depth = query[2] // n
            if key[2] % depth or not key[2]:
                raise MspcError(
                    f"{self.name}: the hidden size {key[2]} of key is no multiple of the head size {depth} "
                    f"(query has {n} heads in {query[2]})"
                )
            heads = key[2] // depth
            if value[2] % heads:
                raise MspcError(f"{self.name}: key has {heads} heads, which do not divide value's hidden {value[2]}")
            shape = Shape(query[batch], n, heads, query[queries], key[keys], depth, value[2] // heads)
        else:
            head, sequence = (1, 2) if self.input_layout == "BNSD" else (2, 1)
            if query[head] != n:
                raise MspcError(
                    f"{self.name}: dimension {head} of query is {query[head]}, but head_num is {n}",
                    notes=[f"input_layout is {self.input_layout!r}"],
                )
            shape = Shape(query[0], n, key[head], query[sequence], key[sequence], query[3], value[3])
        if not shape.key_heads or shape.heads % shape.key_heads:
            raise MspcError(f"{self.name}: the {shape.key_heads} heads of key do not divide the {n} heads of query")
        return shape

    def check_settings(self) -> None:
        """Raises MspcError for attributes that mspc does not know."""
        if self.input_layout not in LAYOUTS:
            note = "sequences of several lengths in one tensor are not built" if self.input_layout == "TND" else ""
            raise MspcError(
                f"{self.name}: input_layout is {self.input_layout!r}, not one of {', '.join(LAYOUTS)}",
                notes=[note] if note else (),
            )
        if self.keep_prob != 1.0:
            raise MspcError(
                f"{self.name}: keep_prob is {self.keep_prob}; dropout of attention weights is not built",
                notes=["leave keep_prob 1.0, or write the attention with BatchMatMul, Softmax and Dropout"],
            )
        if self.sparse_mode not in range(5):
            raise MspcError(f"{self.name}: sparse_mode is {self.sparse_mode}; known are 0 to 4")
        if self.head_num < 1:
            raise MspcError(f"{self.name}: head_num is {self.head_num}")
        if any(name not in OPTIONAL for name in self.optional):
            raise MspcError(f"{self.name}: optional is {self.optional}; known operands are {', '.join(OPTIONAL)}")

    def window(self, shape: Shape) -> tuple[int | None, int | None]:
        """(least, greatest) distance key - query that a query looks at, None for no limit."""
        offset = shape.keys - shape.queries if self.sparse_mode in (3, 4) else 0
        if self.sparse_mode in (2, 3):
            return None, offset
        if self.sparse_mode == 4 or (self.sparse_mode == 0 and "attn_mask" in self.optional):
            low = None if self.pre_tokens >= UNLIMITED else offset - self.pre_tokens
            return low, None if self.next_tokens >= UNLIMITED else offset + self.next_tokens
        return None, None

    def texts(self, types: Sequence[TensorType]) -> dict[str, str]:
        """The rule's text of every tensor. Batch and heads may be cut, sequences and the depth of a head must stay
        whole. A head of key and value goes with all heads of the query that look at it."""
        shape = self.sizes(types)
        group = f" g={shape.group}!" if shape.group > 1 else ""
        m = f"m={shape.key_heads}"
        heads = f"({m}{group})" if group else m
        q, k, v = {
            "BSH": (f"b s! ({m}{group} d!)", f"b t! ({m} d!)", f"b t! ({m} e!)"),
            "SBH": (f"s! b ({m}{group} d!)", f"t! b ({m} d!)", f"t! b ({m} e!)"),
            "BNSD": (f"b {heads} s! d!", f"b {m} t! d!", f"b {m} t! e!"),
            "BSND": (f"b s! {heads} d!", f"b t! {m} d!", f"b t! {m} e!"),
        }[self.input_layout]
        texts = {"query": q, "key": k, "value": v, "out": q.replace("d!", "e!"), "statistics": f"b {heads} s! 1"}
        for name, operand in self.named(types).items():
            if len(operand.shape) > 4:
                raise MspcError(f"{self.name}: {name} has shape {operand.shape}, more than 4 dimensions")
            sides = ("b", heads, "s!", "t!")[4 - len(operand.shape) :]
            texts[name] = " ".join("1" if n == 1 else side for n, side in zip(operand.shape, sides, strict=True))
        return texts

    def localize(self, placement: Placement) -> Op:
        dimension = {"BNSD": 1, "BSND": 2}.get(self.input_layout, 2)
        return replace(self, head_num=self.head_num // placement.in_layouts[0].strategy[dimension])

    def scores(self, shape: Shape, operands: Sequence[Any]) -> Scores:
        low, high = self.window(shape)
        found = {name: four_dimensions(operand) for name, operand in self.named(operands).items()}
        return Scores(self.scale_value, found.get("real_shift"), found.get("attn_mask"), low, high)

    def shape_of(self, operands: Sequence[Any]) -> Shape:
        return self.sizes([TensorType(FLOAT32, tuple(x.shape)) for x in operands[:3]])

    def views(self, shape: Shape, arrays: Sequence[Any], heads: Sequence[int]) -> list[Any]:
        """Arrays in the operator's layout by head."""
        return [by_head(x, self.input_layout, n) for x, n in zip(arrays, heads, strict=True)]

    def attention(self, operands: Sequence[Array], statistics: Array, heads: Sequence[int]) -> Attention:
        """What a GPU needs to know; `operands` begin with query, key, value."""
        shape = self.shape_of(operands)
        arrays = [operands[0], operands[1], operands[2], *operands[3 : len(heads)]]
        return Attention(shape, self.scores(shape, operands), self.views(shape, arrays, heads), statistics)

    def allocated(self, be: ArrayBackend, inputs: Sequence[Any]) -> tuple[Any, ...] | Any:
        """Empty results for these operands."""
        inferred = self.infer(*[TensorType(dtype_of(x.dtype), tuple(x.shape)) for x in inputs])
        if isinstance(inferred, TensorType):
            return be.xp.empty(inferred.shape, inferred.dtype.numpy)
        assert isinstance(inferred, TupleType)
        return tuple(be.xp.empty(t.shape, t.dtype.numpy) for t in inferred.elements)

    def kernel(self, be: ArrayBackend) -> Callable[..., Any]:
        def kernel(*inputs: Any) -> Any:
            return self.fill(be, inputs, self.allocated(be, inputs))

        return kernel

    def kernel_into(self, be: ArrayBackend) -> Callable[..., Any] | None:
        def into(*inputs: Any, out: Any) -> Any:
            return self.fill(be, inputs, out)

        return into

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        return self.kernel(be)(*inputs)

    def fill(self, be: ArrayBackend, inputs: Sequence[Any], out: Any) -> Any:
        """Compute the results into `out` and return it."""
        raise NotImplementedError(self.name)


def statistics_dtype(dtype: DType) -> DType:
    """The element type of the softmax's statistics."""
    return FLOAT64 if dtype == FLOAT64 else FLOAT32


def _sample(*shapes: tuple[int, ...], dtypes: Sequence[str] = (), **attributes: Any) -> Sample:
    """Small numbers. The result's gradient has a test of its own, since the statistics beside it have none."""
    return sample(*shapes, dtypes=dtypes, low=-1.0, high=1.0, gradient=False, **attributes)


_MASKED = ("Float64", "Float64", "Float64", "Bool")


class FlashAttentionScore(_Attention):
    """softmax(scale_value * query @ key^T + real_shift) @ value for every head: a tuple (softmax_max, softmax_sum,
    softmax_out, attention_out).

    query has `head_num` heads; key and value may have fewer, if their number divides it. `input_layout` is one of
    "BSH" (hidden = heads and their depth in one dimension), "SBH", "BNSD", "BSND". real_shift and attn_mask are
    broadcast to [batch, heads, queries, keys]; where attn_mask (Bool or UInt8) is true a query does not look at a key.
    A query that looks at no key gives zeros, and is the only case in which ways to compute it may differ.

    sparse_mode: 0 attn_mask, and where it is given only keys from `pre_tokens` before the query's place to
    `next_tokens` behind it; 1 attn_mask alone; 2 only keys up to the query's place (causal), counted from the
    beginnings; 3 the same counted from the ends; 4 like 0, counted from the ends. For 2, 3 and 4 MindSpore wants a
    triangle of (2048, 2048) as attn_mask, which is taken and not read.

    softmax_max and softmax_sum [batch, heads, queries, 1] stand for any two numbers with which a weight is
    exp(score - softmax_max) / softmax_sum: here the logarithm of the sum of exp(score), and 1, which is what fused
    kernels hand out. (MindSpore repeats them 8 times in the last dimension.) softmax_out is a placeholder of one
    element. Only attention_out can be differentiated.

    Operands of Float16 and BFloat16 are summed in Float32.
    """

    first_optional: ClassVar[int] = 3

    def call(
        self, query: Any, key: Any, value: Any, real_shift: Any = None, drop_mask: Any = None, padding_mask: Any = None,
        attn_mask: Any = None, prefix: Any = None, actual_seq_qlen: Any = None, actual_seq_kvlen: Any = None,
    ) -> tuple[Op, tuple[Any, ...]]:  # fmt: skip
        self.check_settings()
        refused = {
            "drop_mask": drop_mask, "padding_mask": padding_mask, "prefix": prefix, "actual_seq_qlen": actual_seq_qlen,
            "actual_seq_kvlen": actual_seq_kvlen,
        }  # fmt: skip
        for name, operand in refused.items():
            if operand is not None:
                raise MspcError(f"{self.name}: {name} must be None; it is not built")
        if self.sparse_mode == 1 and attn_mask is None:
            raise MspcError(f"{self.name}: sparse_mode 1 needs attn_mask")
        if self.sparse_mode >= 2 and attn_mask is not None:
            if tuple(attn_mask.shape) != COMPRESSED:
                raise MspcError(
                    f"{self.name}: attn_mask of sparse_mode {self.sparse_mode} is a triangle of {COMPRESSED} or None, "
                    f"not a tensor of {tuple(attn_mask.shape)}",
                    notes=["a mask of your own goes with sparse_mode 0 or 1"],
                )
            attn_mask = None
        given = {"real_shift": real_shift, "attn_mask": attn_mask}
        there = {name: operand for name, operand in given.items() if operand is not None}
        return replace(self, optional=tuple(there)), (query, key, value, *there.values())

    def rule(self, *types: TensorType) -> str:
        _count(self, types, 3)
        texts = self.texts(types)
        ins = ", ".join(texts[name] for name in ("query", "key", "value", *self.optional))
        return f"{ins} -> {texts['statistics']}, {texts['statistics']}, 1, {texts['out']}"

    def infer(self, *types: Any) -> Type:
        inferred = super().infer(*types)
        assert isinstance(inferred, TupleType)
        top, total, none, out = inferred.elements
        statistics = statistics_dtype(types[0].dtype)
        return TupleType((TensorType(statistics, top.shape), TensorType(statistics, total.shape), none, out))

    def bprop(self, b: Builder, *values: Any) -> Gradients:
        *inputs, out, dout = values
        if any(dout[i] is not None for i in range(3)):
            raise MspcError(f"{self.name}: only attention_out has a gradient, not the softmax's statistics")
        if dout[3] is None:
            return [None] * len(inputs)
        query, key, value = inputs[:3]
        top, result = b.emit(TupleGetItem(0), out), b.emit(TupleGetItem(3), out)
        operands = (query, key, value, dout[3], *inputs[3:], top)
        attributes = {name: getattr(self, name) for name in ("head_num", *self.omitted)}
        grads = b.emit(FlashAttentionScoreGrad(**attributes), *operands, result)
        found: list[Value | None] = [b.emit(TupleGetItem(i), grads) for i in range(3)]
        for name in self.optional:
            shift = name == "real_shift"
            found.append(b.emit(FlashAttentionScoreShiftGrad(**attributes), *operands) if shift else None)
        return found

    def fill(self, be: ArrayBackend, inputs: Sequence[Any], out: Any) -> Any:
        shape = self.shape_of(inputs)
        n, m = shape.heads, shape.key_heads
        top, total, none, result = out
        views = self.views(shape, (*inputs[:3], result), (n, m, m, n))
        forward(be.xp, shape, self.scores(shape, inputs), views, top)
        total[...] = 1
        none[...] = 0
        return out

    def launch(self, device: Device, inputs: Sequence[Array], out: Any) -> Launch | None:
        shape = self.shape_of(inputs)
        n, m = shape.heads, shape.key_heads
        top, total, none, result = out
        return launch_forward(
            device, self.attention(inputs, top, (n, m, m)), by_head(result, self.input_layout, n), total, none
        )

    samples: ClassVar[Any] = (
        _sample((4, 4, 16), (4, 6, 16), (4, 6, 16), head_num=8, scale_value=0.5),
        _sample((4, 4, 4, 2), (4, 2, 6, 2), (4, 2, 6, 2), head_num=4, input_layout="BNSD", sparse_mode=2),
        _sample((4, 4, 4, 2), (4, 6, 2, 2), (4, 6, 2, 3), head_num=4, input_layout="BSND", sparse_mode=3),
        _sample((4, 2, 16), (4, 2, 8), (4, 2, 8), head_num=8, input_layout="SBH", scale_value=0.3),
        _sample((2, 4, 4, 2), (2, 4, 4, 2), (2, 4, 4, 2), (4, 1, 4), (2, 1, 4, 4), head_num=4, input_layout="BNSD",
                optional=OPTIONAL, dtypes=(*_MASKED[:3], "Float64", "Bool")),
        _sample((4, 4, 8), (4, 4, 8), (4, 4, 8), (4, 4), head_num=4, pre_tokens=2, next_tokens=1,
                optional=("attn_mask",), dtypes=_MASKED),
        _sample((8, 3, 8), (8, 5, 8), (8, 5, 8), head_num=2, pre_tokens=1, next_tokens=0, sparse_mode=4),
    )  # fmt: skip


class FlashAttentionScoreGrad(_Attention):
    """Gradients of FlashAttentionScore in query, key and value, of (query, key, value, dy, the optional operands,
    softmax_max, attention_out). softmax_max is the logarithm of the sum of exp(score)."""

    bprop: ClassVar[Any] = NotDifferentiable("it is a gradient, and its second derivative is not built")
    linear_in: ClassVar[tuple[int, ...]] = (3,)

    def rule(self, *types: TensorType) -> str:
        _count(self, types, 6)
        texts = self.texts(types)
        names = ("query", "key", "value", "out", *self.optional, "statistics", "out")
        ins = ", ".join(texts[name] for name in names)
        return f"{ins} -> {texts['query']}, {texts['key']}, {texts['value']}"

    def fill(self, be: ArrayBackend, inputs: Sequence[Any], out: Any) -> Any:
        shape = self.shape_of(inputs)
        n, m = shape.heads, shape.key_heads
        views = self.views(shape, inputs[:4], (n, m, m, n))
        backward(be.xp, shape, self.scores(shape, inputs), views, inputs[-2], self.views(shape, out, (n, m, m)))
        return out

    def launch(self, device: Device, inputs: Sequence[Array], out: Any) -> Launch | None:
        shape = self.shape_of(inputs)
        n, m = shape.heads, shape.key_heads
        attention = self.attention(inputs, inputs[-2], (n, m, m, n))
        result = by_head(inputs[-1], self.input_layout, n)
        return launch_backward(device, attention, result, self.views(shape, out, (n, m, m)))

    samples: ClassVar[Any] = (
        _sample((4, 4, 16), (4, 6, 16), (4, 6, 16), (4, 4, 16), (4, 8, 4, 1), (4, 4, 16), head_num=8),
        _sample((4, 4, 4, 2), (4, 2, 6, 2), (4, 2, 6, 2), (4, 4, 4, 2), (4, 4, 4, 1), (4, 4, 4, 2),
                head_num=4, input_layout="BNSD", sparse_mode=2),
        _sample((2, 4, 4, 2), (2, 4, 4, 2), (2, 4, 4, 3), (2, 4, 4, 3), (4, 4), (2, 4, 4, 1), (2, 4, 4, 3), head_num=4,
                input_layout="BSND", optional=("attn_mask",), dtypes=("Float64",) * 4 + ("Bool", "Float64", "Float64")),
    )  # fmt: skip


class FlashAttentionScoreShiftGrad(_Attention):
    """Gradient of FlashAttentionScore in real_shift, of (query, key, value, dy, the optional operands, softmax_max).

    An operator of its own, because it writes what the others avoid: a number for every query and key.
    """

    bprop: ClassVar[Any] = NotDifferentiable("it is a gradient, and its second derivative is not built")
    linear_in: ClassVar[tuple[int, ...]] = (3,)

    def rule(self, *types: TensorType) -> str:
        _count(self, types, 5)
        texts = self.texts(types)
        if "real_shift" not in texts:
            raise MspcError(f"{self.name} needs real_shift among its operands")
        ins = ", ".join(texts[name] for name in ("query", "key", "value", "out", *self.optional, "statistics"))
        return f"{ins} -> {texts['real_shift']}"

    def result_dtype(self, *types: TensorType) -> DType:
        return self.named(types)["real_shift"].dtype

    def fill(self, be: ArrayBackend, inputs: Sequence[Any], out: Any) -> Any:
        shape = self.shape_of(inputs)
        n, m = shape.heads, shape.key_heads
        views = self.views(shape, inputs[:4], (n, m, m, n))
        total = be.xp.zeros(four_dimensions(out).shape, inputs[-1].dtype)
        shift_gradient(be.xp, shape, self.scores(shape, inputs), views, inputs[-1], total)
        out[...] = total.reshape(out.shape)
        return out

    def launch(self, device: Device, inputs: Sequence[Array], out: Any) -> Launch | None:
        shape = self.shape_of(inputs)
        n, m = shape.heads, shape.key_heads
        return launch_shift_gradient(device, self.attention(inputs, inputs[-1], (n, m, m, n)), out)

    samples: ClassVar[Any] = (
        _sample((4, 4, 16), (4, 4, 16), (4, 4, 16), (4, 4, 16), (4, 8, 4, 4), (4, 8, 4, 1), head_num=8,
                optional=("real_shift",)),
        _sample((4, 2, 3, 2), (4, 2, 4, 2), (4, 2, 4, 2), (4, 2, 3, 2), (2, 1, 4), (3, 4), (4, 2, 3, 1), head_num=2,
                input_layout="BNSD", optional=OPTIONAL, dtypes=("Float64",) * 5 + ("Bool", "Float64")),
        _sample((4, 4, 3, 2), (4, 2, 4, 2), (4, 2, 4, 2), (4, 4, 3, 2), (1, 4), (4, 4, 3, 1), head_num=4,
                input_layout="BNSD", optional=("real_shift",)),
    )  # fmt: skip


def _count(op: _Attention, types: Sequence[object], fixed: int) -> None:
    wanted = fixed + len(op.optional)
    if len(types) != wanted:
        raise MspcError(f"{op.name} takes {wanted} tensors, not {len(types)}")
