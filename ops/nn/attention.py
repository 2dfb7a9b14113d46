"""Attention is one operator here, with its gradients: the scores of queries and keys are never in memory all at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from mspc.ir.builder import Builder
from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Value
from mspc.ir.layout import Layout
from mspc.ir.named_layout import NamedLayout
from mspc.ir.types import FLOAT32, FLOAT64, DType, TensorType, TupleType, Type
from mspc.ops.control.structural import TupleGetItem
from mspc.ops.device import Array, Device, Launch
from mspc.ops.nn.attention_base import COMPRESSED, ENDS, KEY_SHIFT, OPTIONAL, AttentionOp, text_of_scores
from mspc.ops.nn.attention_forms import AttentionForms
from mspc.ops.nn.attention_kernel import backward, by_head, forward, four_dimensions, shift_gradient
from mspc.ops.nn.attention_launch import launch_backward, launch_forward, launch_shift_gradient
from mspc.ops.nn.attention_order import ByLayout
from mspc.ops.nn.attention_ring import ring_bytes
from mspc.ops.nn.context_attention import context_backward, context_forward
from mspc.ops.nn.context_choice import DEGREE, RING, in_context, names_dimensions, shards_sequence
from mspc.ops.nn.gathered_keys import keys_gathered
from mspc.ops.nn.packed_attention import packed
from mspc.ops.op import ArrayBackend, NotDifferentiable, Op, RankPlacement, RequestedSharding, Sample, sample

Gradients = Sequence[Value | None]


def statistics_dtype(dtype: DType) -> DType:
    """The element type of the softmax's statistics."""
    return FLOAT64 if dtype == FLOAT64 else FLOAT32


def _as_ends(ends: Any) -> Any:
    """Ends that are written as a list or a tuple, as an array."""
    return np.array(ends, np.int64) if isinstance(ends, (tuple, list)) else ends


def _sample(*shapes: tuple[int, ...], dtypes: Sequence[str] = (), **attributes: Any) -> Sample:
    """Small numbers. The result's gradient has a test of its own, since the statistics beside it have none."""
    return sample(*shapes, dtypes=dtypes, low=-1.0, high=1.0, gradient=False, **attributes)


_MASKED = ("Float64", "Float64", "Float64", "Bool")


class FlashAttentionScore(AttentionForms):
    """softmax(scale_value * query @ key^T + real_shift) @ value for every head: a tuple (softmax_max, softmax_sum,
    softmax_out, attention_out).

    query has `head_num` heads; key and value may have fewer, if their number divides it. `input_layout` is one of
    "BSH" (hidden = heads and their depth in one dimension), "SBH", "BNSD", "BSND", "TND" (see
    packed_attention). `actual_seq_qlen` and `actual_seq_kvlen` list where the documents of every sequence end: a query
    looks at keys of its own document alone, and at none behind the last end. real_shift, drop_mask and attn_mask
    are broadcast to [batch, heads, queries, keys]; where attn_mask (Bool or UInt8) is true a query does not look at a
    key. drop_mask (Bool or UInt8, a number for every weight; MindSpore packs bits) says which weights of the softmax
    remain, and count 1 / keep_prob times.
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

    A strategy may shard the sequence of query, key and value alike; see context_choice. The attributes
    `enable_ring_attention` and `enable_flash_sp` ask for a ring then, `ulysses_degree` says how many ranks exchange
    heads. With real_shift, and fewer heads than ranks, keys and values are gathered; see gathered_keys.
    """

    first_optional = 3
    requests = (*RING, DEGREE)

    def call(
        self, query: Any, key: Any, value: Any, real_shift: Any = None, drop_mask: Any = None, padding_mask: Any = None,
        attn_mask: Any = None, prefix: Any = None, actual_seq_qlen: Any = None, actual_seq_kvlen: Any = None,
    ) -> tuple[Op, tuple[Any, ...]]:  # fmt: skip
        refused = {"padding_mask": padding_mask, "prefix": prefix}
        if self.input_layout == "TND":
            self.require_none(refused | {"real_shift": real_shift, "drop_mask": drop_mask})
            return packed(self, (query, key, value), (actual_seq_qlen, actual_seq_kvlen), attn_mask, COMPRESSED)
        self.check_settings()
        if self.packed:
            raise MspcError(f"{self.name}: packed is {self.packed}; it is for the compiler alone")
        self.require_none(refused)
        ends = [None if x is None else _as_ends(x) for x in (actual_seq_qlen, actual_seq_kvlen)]
        if len({None if x is None else tuple(x.shape) for x in ends}) != 1:
            raise MspcError(f"{self.name}: actual_seq_qlen and actual_seq_kvlen must list as many ends of documents")
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
        if self.keep_prob < 1 and drop_mask is None:
            raise MspcError(f"{self.name}: keep_prob {self.keep_prob} needs drop_mask", kind=ValueError)
        given = {"real_shift": real_shift, "drop_mask": drop_mask, "attn_mask": attn_mask}
        given |= dict(zip(ENDS, ends, strict=True))
        there = {name: operand for name, operand in given.items() if operand is not None}
        return replace(self, optional=tuple(there)), (query, key, value, *there.values())

    def require_none(self, operands: dict[str, Any]) -> None:
        """Raises MspcError for an operand that was given and is not built."""
        for name, operand in operands.items():
            if operand is not None:
                raise MspcError(f"{self.name}: {name} must be None; it is not built")

    def asks(self, asked: RequestedSharding, ranks: int) -> bool:
        given = asked.in_strategy or ()
        named = any(isinstance(entry, NamedLayout) for entry in given)
        return super().asks(asked, ranks) or named or shards_sequence(self.input_layout, given)

    def decompose(self, b: Builder, asked: RequestedSharding, inputs: Sequence[Value]) -> Sequence[Value] | None:
        if self.context or not names_dimensions(asked.in_strategy, inputs):
            return None
        results = in_context(b, self, asked, inputs)
        if results is not None:
            return results
        sliced = shards_sequence(self.input_layout, asked.in_strategy) or any(asked.attrs.get(name) for name in RING)
        found = keys_gathered(
            b, self, self.input_layout, asked, inputs, sequence=sliced, key_heads=self.shape_of(inputs).key_heads
        )
        return None if found is None else [b.emit(TupleGetItem(i), found) for i in range(4)]

    def rule(self, *types: TensorType) -> str:
        self.check_rule(types, 3)
        texts = self.texts(types)
        ins = ", ".join(texts[name] for name in ("query", "key", "value", *self.optional))
        return f"{ins} -> {texts['statistics']}, {texts['statistics']}, 1, {texts['out']}"

    def expand(self, b: Builder, placement: RankPlacement, inputs: Sequence[Value]) -> Value | None:
        return context_forward(b, self, placement, inputs)

    def moved_bytes(self, types: Sequence[TensorType], layouts: Sequence[Layout]) -> float:
        return ring_bytes(self, types, layouts, 1)

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
        if KEY_SHIFT in self.optional:
            raise MspcError(f"{self.name} with {KEY_SHIFT} is of a rank's own graph: it has no gradient")
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
            found.append(b.emit(FlashAttentionScoreShiftGrad(**attributes), *operands, result) if shift else None)
        return found

    def fill(self, be: ArrayBackend, inputs: Sequence[Any], out: Any) -> Any:
        if self.packed:
            return self.apart.fill(be, self.separated(inputs), out)
        shape = self.shape_of(inputs)
        n, m = shape.heads, shape.key_heads
        top, total, none, result = out
        views = self.views(shape, (*inputs[:3], result), (n, m, m, n))
        forward(be.xp, shape, self.scores(shape, inputs, be), views, top)
        total[...] = 1
        none[...] = 0
        return out

    def launch(self, device: Device, inputs: Sequence[Array], out: Any) -> Launch | None:
        if self.by_arrays:
            return None
        if self.packed:
            return self.apart.launch(device, self.separated(inputs), out)
        shape = self.shape_of(inputs)
        n, m = shape.heads, shape.key_heads
        top, total, none, result = out
        return launch_forward(
            device, self.attention(inputs, top, (n, m, m)), by_head(result, self.input_layout, n), total, none
        )

    samples = (
        _sample((4, 4, 16), (4, 6, 16), (4, 6, 16), head_num=8, scale_value=0.5),
        _sample((4, 4, 4, 2), (4, 2, 6, 2), (4, 2, 6, 2), head_num=4, input_layout="BNSD", sparse_mode=2),
        _sample((4, 4, 4, 2), (4, 6, 2, 2), (4, 6, 2, 3), head_num=4, input_layout="BSND", sparse_mode=3),
        _sample((4, 2, 16), (4, 2, 8), (4, 2, 8), head_num=8, input_layout="SBH", scale_value=0.3),
        _sample((2, 4, 4, 2), (2, 4, 4, 2), (2, 4, 4, 2), (4, 1, 4), (2, 1, 4, 4), head_num=4, input_layout="BNSD",
                optional=OPTIONAL[::2], dtypes=(*_MASKED[:3], "Float64", "Bool")),
        _sample((4, 4, 8), (4, 4, 8), (4, 4, 8), (4, 4), head_num=4, pre_tokens=2, next_tokens=1,
                optional=("attn_mask",), dtypes=_MASKED),
        _sample((8, 3, 8), (8, 5, 8), (8, 5, 8), head_num=2, pre_tokens=1, next_tokens=0, sparse_mode=4),
        _sample((4, 4, 8), (4, 4, 8), (4, 4, 8), (4, 4, 4, 4), (4, 4), head_num=4, keep_prob=0.5,
                optional=OPTIONAL[1:], dtypes=(*_MASKED, "Bool")),
        _sample((4, 4, 4, 4), (4, 2, 6, 4), (4, 2, 6, 4), head_num=4, keep_prob=0.5, Seed0=1, input_layout="BNSD"),
        _sample((4, 3, 4, 2), (4, 2, 4, 2), (4, 2, 4, 2), (1, 4, 3, 2), (4, 1, 1, 2), head_num=4, input_layout="BSND",
                optional=("real_shift", KEY_SHIFT)),
        sample((4, 4, 8), (4, 4, 8), (4, 4, 8), (2,), (2,), head_num=4, optional=ENDS, low=0, high=5, gradient=False,
               dtypes=(*_MASKED[:3], "Int64", "Int64")),
        _sample((2, 8, 8), (2, 8, 4), (2, 8, 4), head_num=4, context=8),  # what nobody sees spreads no NaN in a ring
        _sample((2, 4, 8, 2), (2, 4, 16, 2), (2, 4, 16, 3), (2, 1, 1, 16), head_num=4, input_layout="BNSD", context=4,
                optional=("attn_mask",), dtypes=_MASKED),
    )  # fmt: skip


class FlashAttentionScoreGrad(AttentionForms):
    """Gradients of FlashAttentionScore in query, key and value, of (query, key, value, dy, the optional operands,
    softmax_max, attention_out). softmax_max is the logarithm of the sum of exp(score)."""

    bprop = NotDifferentiable("it is a gradient, and its second derivative is not built")
    linear_in = (3,)
    work = "attention_gradients"
    by_layout = ByLayout((0, 1, 2, 3, -1), (0, 1, 2))
    products = 5

    def expand(self, b: Builder, placement: RankPlacement, inputs: Sequence[Value]) -> Value | None:
        return context_backward(b, self, placement, inputs)

    def moved_bytes(self, types: Sequence[TensorType], layouts: Sequence[Layout]) -> float:
        return ring_bytes(self, types, layouts, 2)

    def infer(self, *types: Any) -> Type:
        inferred = super().infer(*types)
        return types[0] if self.packed else inferred

    def rule(self, *types: TensorType) -> str:
        self.check_rule(types, 6)
        texts = self.texts(types)
        names = ("query", "key", "value", "out", *self.optional, "statistics", "out")
        ins = ", ".join(texts[name] for name in names)
        return f"{ins} -> {texts['query']}, +{texts['key']}, +{texts['value']}"

    def fill(self, be: ArrayBackend, inputs: Sequence[Any], out: Any) -> Any:
        if self.packed:
            self.apart.fill(be, self.separated(inputs), self.parts(out))
            return out
        shape = self.shape_of(inputs)
        n, m = shape.heads, shape.key_heads
        views = self.views(shape, inputs[:4], (n, m, m, n))
        if self.key_slice:  # then the sums of rows are not of these keys alone
            views += self.views(shape, inputs[-1:], (n,))
        backward(be.xp, shape, self.scores(shape, inputs, be), views, inputs[-2], self.views(shape, out, (n, m, m)))
        return out

    def launch(self, device: Device, inputs: Sequence[Array], out: Any) -> Launch | None:
        if self.by_arrays:
            return None
        if self.packed:
            return self.apart.launch(device, self.separated(inputs), self.parts(out))
        shape = self.shape_of(inputs)
        n, m = shape.heads, shape.key_heads
        attention = self.attention(inputs, inputs[-2], (n, m, m, n))
        result = by_head(inputs[-1], self.input_layout, n)
        return launch_backward(device, attention, result, self.views(shape, out, (n, m, m)), not self.key_slice)

    samples = (
        _sample((4, 4, 16), (4, 6, 16), (4, 6, 16), (4, 4, 16), (4, 8, 4, 1), (4, 4, 16), head_num=8),
        _sample((4, 4, 4, 2), (4, 2, 6, 2), (4, 2, 6, 2), (4, 4, 4, 2), (4, 4, 4, 1), (4, 4, 4, 2),
                head_num=4, input_layout="BNSD", sparse_mode=2),
        _sample((2, 4, 8), (2, 4, 8), (2, 4, 8), (2, 4, 8), (2, 4, 4, 4), (2, 4, 4, 1), (2, 4, 8), head_num=4,
                keep_prob=0.5, optional=("drop_mask",), dtypes=("Float64",) * 4 + ("Bool", "Float64", "Float64")),
        _sample((4, 4, 8), (4, 6, 8), (4, 6, 8), (4, 4, 8), (4, 4, 4, 1), (4, 4, 8), head_num=4, keep_prob=0.5,
                Seed1=2),
        _sample((4, 4, 8), (4, 6, 8), (4, 6, 8), (4, 4, 8), (4, 1, 6), (4, 1, 1, 6), (4, 4, 4, 1), (4, 4, 8),
                head_num=4, optional=("real_shift", KEY_SHIFT)),
        _sample((2, 4, 4, 2), (2, 4, 4, 2), (2, 4, 4, 3), (2, 4, 4, 3), (4, 4), (2, 4, 4, 1), (2, 4, 4, 3), head_num=4,
                input_layout="BSND", optional=("attn_mask",), dtypes=("Float64",) * 4 + ("Bool", "Float64", "Float64")),
    )  # fmt: skip


class FlashAttentionScoreShiftGrad(AttentionOp):
    """Gradient of FlashAttentionScore in real_shift, of (query, key, value, dy, the optional operands, softmax_max,
    attention_out).

    An operator of its own, because it writes what the others avoid: a number for every query and key. result_shape:
    where it is not (), the gradient is summed to this shape, which has one element where real_shift may have several;
    only a rank's own graph has it.
    """

    result_shape: tuple[int, ...] = ()
    omitted = (*AttentionOp.omitted, "result_shape")

    bprop = NotDifferentiable("it is a gradient, and its second derivative is not built")
    linear_in = (3,)
    work = "attention_addend_gradients"
    by_layout = ByLayout((0, 1, 2, 3, -1), ())

    def rule(self, *types: TensorType) -> str:
        self.check_rule(types, 6)
        texts = self.texts(types)
        if "real_shift" not in texts:
            raise MspcError(f"{self.name} needs real_shift among its operands")
        ins = ", ".join(texts[name] for name in ("query", "key", "value", "out", *self.optional, "statistics", "out"))
        out = text_of_scores(self.result_shape, texts["heads"]) if self.result_shape else texts["real_shift"]
        return f"{ins} -> {out}"

    def summed_to(self, types: Sequence[TensorType]) -> tuple[int, ...]:
        """The shape of its result for operands of which none is packed."""
        return self.result_shape or self.named(types)["real_shift"].shape

    def result_dtype(self, *types: TensorType) -> DType:
        return self.named(types)["real_shift"].dtype

    def summed_over(self, axes: Sequence[int], *types: TensorType) -> Op | None:
        """Over the batch and over heads, as a kernel has the sum in registers."""
        shape = self.summed_to(self.separated(types) if self.packed else types)
        if any(axis + 4 - len(shape) > 1 for axis in axes):
            return None
        return replace(self, result_shape=tuple(1 if d in axes else n for d, n in enumerate(shape)))

    def fill(self, be: ArrayBackend, inputs: Sequence[Any], out: Any) -> Any:
        if self.packed:
            return self.apart.fill(be, self.separated(inputs), out)
        shape = self.shape_of(inputs)
        n, m = shape.heads, shape.key_heads
        views = self.views(shape, inputs[:4], (n, m, m, n))
        total = be.xp.zeros(four_dimensions(out).shape, inputs[-2].dtype)
        shift_gradient(be.xp, shape, self.scores(shape, inputs, be), views, inputs[-2], total)
        out[...] = total.reshape(out.shape)
        return out

    def launch(self, device: Device, inputs: Sequence[Array], out: Any) -> Launch | None:
        if self.by_arrays:
            return None
        if self.packed:
            return self.apart.launch(device, self.separated(inputs), out)
        shape = self.shape_of(inputs)
        n, m = shape.heads, shape.key_heads
        result = by_head(inputs[-1], self.input_layout, n)
        return launch_shift_gradient(device, self.attention(inputs, inputs[-2], (n, m, m, n)), result, out)

    samples = (
        _sample((4, 4, 16), (4, 4, 16), (4, 4, 16), (4, 4, 16), (4, 8, 4, 4), (4, 8, 4, 1), (4, 4, 16), head_num=8,
                optional=("real_shift",)),
        _sample((4, 2, 3, 2), (4, 2, 4, 2), (4, 2, 4, 2), (4, 2, 3, 2), (2, 1, 4), (3, 4), (4, 2, 3, 1), (4, 2, 3, 2),
                head_num=2, input_layout="BNSD", optional=OPTIONAL[::2],
                dtypes=("Float64",) * 5 + ("Bool", "Float64", "Float64")),
        _sample((4, 4, 3, 2), (4, 2, 4, 2), (4, 2, 4, 2), (4, 4, 3, 2), (1, 4), (4, 4, 3, 1), (4, 4, 3, 2), head_num=4,
                input_layout="BNSD", optional=("real_shift",), keep_prob=0.5, Seed0=4),
        _sample((4, 4, 8), (4, 6, 8), (4, 6, 8), (4, 4, 8), (4, 4, 6), (1, 4, 1, 6), (4, 4, 4, 1), (4, 4, 8),
                head_num=4, optional=("real_shift", KEY_SHIFT)),
    )  # fmt: skip
