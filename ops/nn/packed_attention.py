"""Attention and its gradients are here for sequences of several lengths that lie one behind the other (`input_layout`
"TND").

A sequence looks at itself alone. `actual_seq_qlen` and `actual_seq_kvlen` say where each ends among the queries and the
keys; what is behind the last end looks at nothing and is looked at by nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from mspc.ir.builder import Builder
from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Value
from mspc.ir.named_layout import NamedLayout, spread
from mspc.ir.types import FLOAT32, FLOAT64, DType, TensorType, TupleType, Type
from mspc.ops.bases import require_float, require_same
from mspc.ops.control.structural import TupleGetItem
from mspc.ops.nn.attention_kernel import UNLIMITED, Scores, Shape, backward, forward
from mspc.ops.op import ArrayBackend, NotDifferentiable, Op, RankPlacement, RequestedSharding, sample
from mspc.ops.operator_arguments import ints_of

Gradients = Sequence[Value | None]
NAMES = ("query", "key", "value", "actual_seq_qlen", "actual_seq_kvlen")


class _Packed(Op, abstract=True):
    """parts: the sequences lie in so many equal parts of the tokens and of the lists of ends, none across a border.
    first_query, first_key: tokens before this rank's; first_part: before the part of the tokens that it is in.
    Class attributes: ends_at: the operand that lists the ends of queries; that of the ends of keys is the next.
    """

    head_num: int
    scale_value: float = 1.0
    sparse_mode: int = 0
    pre_tokens: int = UNLIMITED
    next_tokens: int = UNLIMITED
    parts: int = 1
    first_query: int = 0
    first_key: int = 0
    first_part: int = 0
    omitted = (
        "scale_value", "sparse_mode", "pre_tokens", "next_tokens", "parts", "first_query", "first_key", "first_part",
    )  # fmt: skip
    work = "attention"
    products: ClassVar[int] = 2
    ends_at: ClassVar[int] = 3

    def sizes(self, types: Sequence[TensorType]) -> Shape:
        """Sizes of the attention. Raises MspcError where attributes or shapes do not fit."""
        for name, operand in zip(NAMES[:3], types, strict=False):
            if len(operand.shape) != 3:
                raise MspcError(f"{self.name}: {name} has shape {operand.shape}; input_layout 'TND' has 3 dimensions")
        (queries, heads, depth), (keys, key_heads, _), (_, _, value_depth) = (t.shape for t in types[:3])
        if heads != self.head_num:
            raise MspcError(f"{self.name}: dimension 1 of query is {heads}, but head_num is {self.head_num}")
        if not key_heads or heads % key_heads:
            raise MspcError(f"{self.name}: the {key_heads} heads of key do not divide the {heads} heads of query")
        return Shape(1, heads, key_heads, queries, keys, depth, value_depth)

    def infer(self, *types: Any) -> Type:
        inferred = super().infer(*types)
        require_float(self.name, *types[:3])
        require_same(self.name, *types[:3])
        for name, operand in zip(NAMES[3:], self.ends_of(types), strict=True):
            if not operand.dtype.is_integer:
                raise MspcError(f"{self.name}: {name} is {operand.dtype}, not of integers", kind=TypeError)
        return inferred

    def ends_of(self, operands: Sequence[Any]) -> tuple[Any, Any]:
        """Both lists of ends."""
        return operands[self.ends_at], operands[self.ends_at + 1]

    def index_limits(self, *types: TensorType) -> Mapping[int, int]:
        """A sequence may end with the last token."""
        shape = self.sizes(types)
        first = self.ends_at
        return {first: shape.queries + 1, first + 1: shape.keys + 1}

    def texts(self, types: Sequence[TensorType]) -> dict[str, str]:
        """The rule's text of every tensor: parts, queries and heads may be sharded."""
        shape = self.sizes(types)
        n = f"(m={shape.key_heads} g={shape.group})" if shape.group > 1 else "m"
        part, inner = (f"(p={self.parts} ", ")") if self.parts > 1 else ("", "")
        queries, keys = f"{part}s{inner}", f"{part}t!{inner}"
        lists = [f"{part}{name}!{inner}" for name in ("u", "w")]
        return {
            "query": f"{queries} {n} d!", "key": f"{keys} m d!", "value": f"{keys} m e!",
            "statistics": f"{queries} {n} 1", "out": f"{queries} {n} e!", "ends": ", ".join(lists),
        }  # fmt: skip

    def localize(self, placement: RankPlacement) -> Op:
        queries, keys = (
            layout.slices_for(placement.rank, type.shape)[0]
            for layout, type in zip(placement.in_layouts[:2], placement.in_types[:2], strict=True)
        )
        mine = self.head_num // placement.in_layouts[0].strategy[1]
        shards = placement.in_layouts[1].strategy[0]
        tokens = placement.in_types[0].shape[0] // shards
        before = queries.start - queries.start % max(1, tokens)
        return replace(
            self, head_num=mine, parts=self.parts // shards, first_query=queries.start, first_key=keys.start,
            first_part=before,
        )  # fmt: skip

    def operations(self, types: Sequence[TensorType]) -> float:
        shape = self.sizes(types)
        return self.products * shape.heads * shape.queries * shape.keys * (shape.depth + shape.value_depth)

    def decompose(self, b: Builder, asked: RequestedSharding, inputs: Sequence[Value]) -> Sequence[Value] | None:
        entries = spread(asked.in_strategy or ())
        if len(entries) < 3 or not isinstance(self, FlashAttentionVarlen):
            return None
        named = any(isinstance(entry, NamedLayout) for entry in entries)
        slice_counts = [entry.strategy if isinstance(entry, NamedLayout) else entry for entry in entries]
        query, key, value, *rest = slice_counts
        if (self.parts,) == key[:1] and rest == [key[:1], key[:1]] and not named:
            return None
        if query[0] % key[0]:
            raise MspcError(f"{self.name}: the strategy shards the keys {key[0]} ways, the queries {query[0]} ways")
        if any(shards not in (1, key[0]) for entry in rest for shards in entry):
            raise MspcError(f"{self.name}: the lists of ends are sharded as the keys are, {key[0]} ways, or not at all")
        for name, value_of in zip(NAMES[3:], self.ends_of(inputs), strict=True):
            if value_of.shape[0] % key[0]:
                raise MspcError(f"{self.name}: {name} has {value_of.shape[0]} ends, which {key[0]} does not divide")
        made = b.emit(replace(self, parts=key[0]), *inputs)
        made.in_strategy = (query, key, value, key[:1], key[:1])
        return [b.emit(TupleGetItem(i), made) for i in range(4)]

    def strategy_mistake(self, asked: RequestedSharding) -> str:
        query, key = (asked.in_strategy or ((), ()))[:2]
        if isinstance(query, tuple) and isinstance(key, tuple) and query[:1] != key[:1]:
            return f"the strategy shards queries {query[:1]} and keys {key[:1]}; only Layouts may shard them apart"
        return ""

    def sequences(self, shape: Shape, operands: Sequence[Any]) -> Iterator[tuple[slice, slice, Scores]]:
        """(queries, keys, scores) of every sequence on this rank. Raises MspcError where ends do not ascend or, of
        several parts, lie in another."""
        lists: list[list[int]] = []
        for name, ends, first, last in zip(
            NAMES[3:], self.ends_of(operands), (self.first_part, self.first_key), (None, self.first_key + shape.keys),
            strict=True,
        ):  # fmt: skip
            found = [first, *(int(end) for end in ends)]
            if found != sorted(found) or (last is not None and found[-1] > last):
                raise MspcError(f"{self.name}: {name} {found[1:]} must ascend in the tokens from {first} on")
            lists.append(found)
        (q, k), here = lists, self.first_query
        for i in range(min(len(q), len(k)) - 1):
            begin, end = max(q[i], here), min(q[i + 1], here + shape.queries)
            if begin < end and k[i] < k[i + 1]:
                offset = begin - q[i]
                if self.sparse_mode in (3, 4):
                    offset += (k[i + 1] - k[i]) - (q[i + 1] - q[i])
                queries, keys = slice(begin - here, end - here), slice(k[i] - self.first_key, k[i + 1] - self.first_key)
                yield queries, keys, Scores(self.scale_value, None, None, *self.window(offset))

    def window(self, offset: int) -> tuple[int | None, int | None]:
        """(least, greatest) distance key - query in a sequence, None for no limit."""
        if self.sparse_mode in (2, 3):
            return None, offset
        if self.sparse_mode == 4:
            low = None if self.pre_tokens >= UNLIMITED else offset - self.pre_tokens
            return low, None if self.next_tokens >= UNLIMITED else offset + self.next_tokens
        return None, None

    @staticmethod
    def by_head(array: Any, rows: slice) -> Any:
        """A view [1, heads, tokens, depth] of some tokens."""
        return array[rows].swapaxes(0, 1)[None]

    def shape_of(self, operands: Sequence[Any]) -> Shape:
        return self.sizes([TensorType(FLOAT32, tuple(x.shape)) for x in operands[:3]])


class FlashAttentionVarlen(_Packed):
    """FlashAttentionScore in the layout "TND", of (query, key, value, ends of queries, ends of keys): a tuple
    (softmax_max, softmax_sum, softmax_out, attention_out) as there, the statistics [tokens, heads, 1]."""

    samples = (
        sample((8, 4, 2), (8, 4, 2), (8, 4, 3), (1,), (1,), head_num=4, sparse_mode=3, scale_value=0.5, gradient=False,
               dtypes=("Float64",) * 3 + ("Int64",) * 2, low=4, high=9),
        sample((6, 4, 2), (8, 2, 2), (8, 2, 2), (3,), (3,), head_num=4, gradient=False, low=8, high=9,
               dtypes=("Float64",) * 3 + ("Int64",) * 2),
    )  # fmt: skip

    def rule(self, query: TensorType, key: TensorType, value: TensorType, qends: TensorType, kends: TensorType) -> str:
        texts = self.texts((query, key, value))
        ins = ", ".join(texts[name] for name in ("query", "key", "value", "ends"))
        return f"{ins} -> {texts['statistics']}, {texts['statistics']}, 1, {texts['out']}"

    def infer(self, *types: Any) -> Type:
        inferred = super().infer(*types)
        assert isinstance(inferred, TupleType)
        top, total, none, out = inferred.elements
        kind: DType = FLOAT64 if types[0].dtype == FLOAT64 else FLOAT32
        return TupleType((TensorType(kind, top.shape), TensorType(kind, total.shape), none, out))

    def bprop(self, b: Builder, *values: Any) -> Gradients:
        query, key, value, qends, kends, out, dout = values
        if any(dout[i] is not None for i in range(3)):
            raise MspcError(f"{self.name}: only attention_out has a gradient, not the softmax's statistics")
        if dout[3] is None:
            return [None] * 5
        top = b.emit(TupleGetItem(0), out)
        grads = b.emit(FlashAttentionVarlenGrad(**self.attributes()), query, key, value, dout[3], qends, kends, top)
        return [*[b.emit(TupleGetItem(i), grads) for i in range(3)], None, None]

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        xp, (query, key, value, *_) = be.xp, inputs
        shape = self.shape_of(inputs)
        kind = xp.float64 if query.dtype.itemsize == 8 else xp.float32
        top = xp.full((*query.shape[:2], 1), -xp.inf, kind)
        out = xp.zeros((*query.shape[:2], value.shape[2]), query.dtype)
        for queries, keys, scores in self.sequences(shape, inputs):
            sides = ((query, queries), (key, keys), (value, keys), (out, queries))
            arrays = [self.by_head(x, rows) for x, rows in sides]
            forward(xp, _of(shape, queries, keys), scores, arrays, self.by_head(top, queries))
        return top, xp.ones_like(top), xp.zeros((1,), query.dtype), out


class FlashAttentionVarlenGrad(_Packed):
    """Gradients of FlashAttentionVarlen in query, key and value, of these, dy, both lists and softmax_max."""

    bprop = NotDifferentiable("it is a gradient, and its second derivative is not built")
    ends_at = 4
    linear_in = (3,)
    work = "attention_gradients"
    products = 5
    samples = (
        sample((8, 4, 2), (8, 4, 2), (8, 4, 3), (8, 4, 3), (1,), (1,), (8, 4, 1), head_num=4, sparse_mode=3,
               scale_value=0.01, gradient=False, low=4, high=9,
               dtypes=("Float64",) * 4 + ("Int64",) * 2 + ("Float64",)),
    )  # fmt: skip

    def rule(
        self, query: TensorType, key: TensorType, value: TensorType, dy: TensorType, qends: TensorType,
        kends: TensorType, top: TensorType,
    ) -> str:  # fmt: skip
        texts = self.texts((query, key, value))
        ins = ", ".join(texts[name] for name in ("query", "key", "value", "out", "ends", "statistics"))
        return f"{ins} -> {texts['query']}, +{texts['key']}, +{texts['value']}"

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        xp, (query, key, value, dy, _, _, top) = be.xp, inputs
        shape = self.shape_of(inputs)
        grads = tuple(xp.zeros_like(x) for x in (query, key, value))
        for queries, keys, scores in self.sequences(shape, inputs):
            sides = (queries, keys, keys, queries)
            operands = [self.by_head(x, rows) for x, rows in zip((query, key, value, dy), sides, strict=True)]
            views = [self.by_head(x, rows) for x, rows in zip(grads, sides, strict=False)]
            backward(xp, _of(shape, queries, keys), scores, operands, self.by_head(top, queries), views)
        return grads


def _of(shape: Shape, queries: slice, keys: slice) -> Shape:
    """The sizes of one sequence."""
    return replace(shape, queries=queries.stop - queries.start, keys=keys.stop - keys.start)


def packed(op: Any, operands: Sequence[Any], lists: Sequence[Any], attn_mask: Any, compressed: Any) -> Any:
    """(operator, operands) of a call of FlashAttentionScore in the layout "TND".

    Raises:
        MspcError: a list is missing, or there is a mask, which sparse_mode 2, 3 and 4 make themselves.
    """
    for name, given in zip(NAMES[3:], lists, strict=True):
        if given is None:
            raise MspcError(f"{op.name}: input_layout 'TND' needs {name}")
    if attn_mask is not None and (op.sparse_mode < 2 or tuple(attn_mask.shape) != compressed):
        raise MspcError(
            f"{op.name}: input_layout 'TND' takes no attn_mask but the triangle of {compressed} of sparse_mode 2, 3, 4"
        )
    if op.keep_prob < 1 or op.sparse_mode not in (0, 2, 3, 4):
        raise MspcError(
            f"{op.name}: input_layout 'TND' has keep_prob 1 and sparse_mode 0, 2, 3 or 4, not {op.keep_prob} and "
            f"{op.sparse_mode}"
        )
    ends = [
        np.array(ints_of(op.name, name, each), np.int64) if isinstance(each, (tuple, list)) else each
        for name, each in zip(NAMES[3:], lists, strict=True)
    ]
    made = FlashAttentionVarlen(op.head_num, op.scale_value, op.sparse_mode, op.pre_tokens, op.next_tokens)
    return made, (*operands, *ends)
