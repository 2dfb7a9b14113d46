"""Attention that stores no scores, its gradients, and attention over packed sequences."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Self

import numpy as np

from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Builder, Value
from mspc.ir.layout import Layout, NamedLayout, slice_counts, spread
from mspc.ir.types import FLOAT32, FLOAT64, DType, TensorType, TupleType, Type
from mspc.ops.control.structural import TupleGetItem
from mspc.ops.device import Array, Device, Launch
from mspc.ops.nn.attention_base import (
    COMPRESSED,
    ENDS,
    KEY_SHIFT,
    OPTIONAL,
    AttentionOp,
    ByLayout,
    busiest_slice,
    launch_backward,
    launch_forward,
    launch_shift_gradient,
    text_of_scores,
)
from mspc.ops.nn.attention_kernel import (
    UNLIMITED,
    Scores,
    Shape,
    backward,
    by_head,
    forward,
    four_dimensions,
    shift_gradient,
)
from mspc.ops.nn.context_attention import (
    DEGREE,
    RING,
    SEQUENCE,
    context_backward,
    context_forward,
    in_context,
    keys_gathered,
    names_dimensions,
    ring_axes,
    ring_bytes,
    ring_pairs,
    shards_sequence,
)
from mspc.ops.op import (
    EVEN,
    Gradients,
    NotDifferentiable,
    Op,
    RankPlacement,
    RequestedSharding,
    Sample,
    UnevenWork,
    require_float,
    require_same,
    sample,
)
from mspc.ops.operator_arguments import ints_of


class AttentionForms(AttentionOp, abstract=True):
    """Attention, or its gradients, in either form."""

    def other_form(self, types: Sequence[TensorType], ranks: int) -> Self | None:
        if self.context or not self._may_ring:
            return None
        shape = self.sizes(types)
        slices = math.gcd(ranks, shape.queries, shape.keys)
        return replace(self, context=slices) if slices > 1 else None

    def in_form(self, layouts: Sequence[Layout]) -> Self:
        if not self._may_ring or self.input_layout not in SEQUENCE or len(layouts) < 3:
            return self
        at = SEQUENCE[self.input_layout]
        if any(len(layout.dims) <= at for layout in layouts[:2]):
            return self
        slices = layouts[1].strategy[at]
        context = slices if slices > 1 else 0
        return self if context == self.context else replace(self, context=context)

    def like_forward(self, forward: object) -> Self:
        context = forward.context if isinstance(forward, AttentionForms) else self.context
        return self if context == self.context else replace(self, context=context)

    @property
    def _may_ring(self) -> bool:
        """Whether slices of keys can be on different ranks; see `in_context`."""
        return "real_shift" not in self.optional and not self.packed

    def uneven(self, types: Sequence[TensorType], layouts: Sequence[Layout]) -> UnevenWork:
        slices = layouts[0].strategy[SEQUENCE[self.input_layout]]
        if slices == 1:
            return EVEN
        shape, axes, rounds = self.sizes(types), ring_axes(self, layouts), 0
        seen, busiest = busiest_slice(slices, (shape.queries, shape.keys), self.window(shape))
        if axes:
            pairs = ring_pairs(self, types, layouts)
            lengths = shape.queries // slices, shape.keys // slices
            busiest, rounds = pairs.busiest(lengths, self.window(shape)), 2 * len(pairs.distances)
        even = self.operations(types) * seen / math.prod(layouts[0].strategy)
        return UnevenWork(busiest, even * (busiest - 1), layouts[1].mesh, axes, rounds)
NAMES = ("query", "key", "value", "actual_seq_qlen", "actual_seq_kvlen")


class _Packed(Op, abstract=True):
    """Packed sequences. parts: the tokens and the lists of ends consist of this many equal parts, and no sequence
    crosses a boundary between parts. first_query, first_key: tokens before this rank's; first_part: tokens before the
    part that contains them. Class attributes: ends_at: the operand that lists the ends of queries; the ends of keys are
    the next."""

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
        """Return the sizes of the attention. Raise MspcError if attributes or shapes do not fit."""
        for name, operand in zip(NAMES[:3], types, strict=False):
            if len(operand.shape) != 3:
                raise MspcError(f"{self.name}: {name} has shape {operand.shape}; input_layout 'TND' has 3 dimensions")
        (queries, heads, depth), (keys, key_heads, _), (_, _, value_depth) = (t.shape for t in types[:3])
        if heads != self.head_num:
            raise MspcError(f"{self.name}: dimension 1 of query is {heads}, but head_num is {self.head_num}")
        if not key_heads or heads % key_heads:
            raise MspcError(f"{self.name}: the {key_heads} heads of key do not divide the {heads} heads of query")
        return Shape(1, heads, key_heads, queries, keys, depth, value_depth)

    def check(self, *types: TensorType) -> None:
        require_float(self.name, *types[:3])
        require_same(self.name, *types[:3])
        for name, operand in zip(NAMES[3:], self.ends_of(types), strict=True):
            if not operand.dtype.is_integer:
                raise MspcError(
                    f"{self.name}: {name} is {operand.dtype}, not of integers", kind=TypeError, code="E0304"
                )

    def ends_of(self, operands: Sequence[Any]) -> tuple[Any, Any]:
        """Return both lists of ends."""
        return operands[self.ends_at], operands[self.ends_at + 1]

    def index_limits(self, *types: TensorType) -> Mapping[int, int]:
        """Return the limits: a sequence may end with the last token."""
        shape = self.sizes(types)
        first = self.ends_at
        return {first: shape.queries + 1, first + 1: shape.keys + 1}

    def texts(self, types: Sequence[TensorType]) -> dict[str, str]:
        """Return the rule's text of every tensor: parts, queries and heads may be sharded."""
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
        query, key, value, *rest = [slice_counts(entry) for entry in entries]
        if (self.parts,) == key[:1] and rest == [key[:1], key[:1]] and not named:
            return None
        if query[0] % key[0]:
            raise MspcError(f"{self.name}: the strategy shards the keys {key[0]} ways, the queries {query[0]} ways")
        if any(shards not in (1, key[0]) for entry in rest for shards in entry):
            raise MspcError(f"{self.name}: the lists of ends are sharded as the keys are, {key[0]} ways, or not at all")
        for name, value_of in zip(NAMES[3:], self.ends_of(inputs), strict=True):
            if value_of.shape[0] % key[0]:
                raise MspcError(
                    f"{self.name}: {name} has {value_of.shape[0]} ends, which {key[0]} does not divide", code="E0401"
                )
        made = b.emit(replace(self, parts=key[0]), *inputs)
        made.in_strategy = (query, key, value, key[:1], key[:1])
        return [b.emit(TupleGetItem(i), made) for i in range(4)]

    def strategy_mistake(self, asked: RequestedSharding) -> str:
        query, key = (asked.in_strategy or ((), ()))[:2]
        if isinstance(query, tuple) and isinstance(key, tuple) and query[:1] != key[:1]:
            return f"the strategy shards queries {query[:1]} and keys {key[:1]}; only Layouts may shard them apart"
        return ""

    def sequences(self, shape: Shape, operands: Sequence[Any]) -> Iterator[tuple[slice, slice, Scores]]:
        """Yield (queries, keys, scores) of every sequence on this rank. Raise MspcError if ends do not ascend or, of
        several parts, are in another."""
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
        """Return (minimum, maximum) distance key - query in a sequence, None for no limit."""
        if self.sparse_mode in (2, 3):
            return None, offset
        if self.sparse_mode == 4:
            low = None if self.pre_tokens >= UNLIMITED else offset - self.pre_tokens
            return low, None if self.next_tokens >= UNLIMITED else offset + self.next_tokens
        return None, None

    @staticmethod
    def by_head(array: Any, rows: slice) -> Any:
        """Return a view [1, heads, tokens, depth] of some tokens."""
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

    def compute(self, xp: Any, *inputs: Any) -> Any:
        (query, key, value, *_) = inputs
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

    def compute(self, xp: Any, *inputs: Any) -> Any:
        (query, key, value, dy, _, _, top) = inputs
        shape = self.shape_of(inputs)
        grads = tuple(xp.zeros_like(x) for x in (query, key, value))
        for queries, keys, scores in self.sequences(shape, inputs):
            sides = (queries, keys, keys, queries)
            operands = [self.by_head(x, rows) for x, rows in zip((query, key, value, dy), sides, strict=True)]
            views = [self.by_head(x, rows) for x, rows in zip(grads, sides, strict=False)]
            backward(xp, _of(shape, queries, keys), scores, operands, self.by_head(top, queries), views)
        return grads


def _of(shape: Shape, queries: slice, keys: slice) -> Shape:
    """Return the sizes of one sequence."""
    return replace(shape, queries=queries.stop - queries.start, keys=keys.stop - keys.start)


def packed(op: Any, operands: Sequence[Any], lists: Sequence[Any], attn_mask: Any, compressed: Any) -> Any:
    """Return (operator, operands) of a call of FlashAttentionScore in the layout "TND". Raise MspcError if a list is
    missing, or there is a mask, which sparse_mode 2, 3 and 4 make themselves."""
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


def statistics_dtype(dtype: DType) -> DType:
    """Return the element type of the softmax's statistics."""
    return FLOAT64 if dtype == FLOAT64 else FLOAT32


def _sample(*shapes: tuple[int, ...], dtypes: Sequence[str] = (), **attributes: Any) -> Sample:
    """Return a sample of small numbers. The gradient of the result is tested separately, because the statistics have
    none."""
    return sample(*shapes, dtypes=dtypes, low=-1.0, high=1.0, gradient=False, **attributes)


_MASKED = ("Float64", "Float64", "Float64", "Bool")


class FlashAttentionScore(AttentionForms):
    """softmax(scale_value * query @ key^T + real_shift) @ value for every head: a tuple (softmax_max, softmax_sum,
    softmax_out, attention_out).

    query has `head_num` heads; key and value may have fewer, if their number divides it. `input_layout` is one of "BSH"
    (hidden = heads and their depth in one dimension), "SBH", "BNSD", "BSND", "TND" (see packed_attention).
    `actual_seq_qlen` and `actual_seq_kvlen` list the ends of the documents of every sequence: a query looks only at
    keys of its own document, and at none after the last end. real_shift, drop_mask and attn_mask are broadcast to
    [batch, heads, queries, keys]; if attn_mask (Bool or UInt8) is true a query does not look at a key. drop_mask (Bool
    or UInt8, a number for every weight; MindSpore packs bits) selects the weights of the softmax that remain, and count
    1 / keep_prob times. A query that looks at no key gives zeros, and is the only case in which ways to compute it may
    differ.

    sparse_mode: 0 attn_mask, and if it is given only keys from `pre_tokens` before the query's place to `next_tokens`
    after it; 1 attn_mask alone; 2 only keys up to the query's place (causal), counted from the beginnings; 3 the same
    counted from the ends; 4 like 0, counted from the ends. For 2, 3 and 4 MindSpore wants a triangle of (2048, 2048) as
    attn_mask, which is taken and not read.

    softmax_max and softmax_sum [batch, heads, queries, 1] are any two numbers with which a weight is exp(score -
    softmax_max) / softmax_sum: here the logarithm of the sum of exp(score), and 1, as fused kernels return them.
    (MindSpore repeats them 8 times in the last dimension.) softmax_out is a placeholder of one element. Only
    attention_out can be differentiated.

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
        ends = [
            np.array(x, np.int64) if isinstance(x, (tuple, list)) else x for x in (actual_seq_qlen, actual_seq_kvlen)
        ]
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
        """Raise MspcError for an operand that was given and is not built."""
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
            raise MspcError(f"{self.name} with {KEY_SHIFT} is of a rank's own graph: it has no gradient", code="E0310")
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

    def fill_apart(self, xp: Any, shape: Shape, scores: Scores, inputs: Sequence[Any], out: Any) -> None:
        top, total, none, result = out
        forward(xp, shape, scores, self.views(shape, (*inputs[:3], result), shape.head_counts), top)
        total[...] = 1
        none[...] = 0

    def launch_apart(self, device: Device, shape: Shape, inputs: Sequence[Array], out: Any) -> Launch | None:
        top, total, none, result = out
        attention = self.attention(inputs, top, shape.head_counts[:3])
        return launch_forward(device, attention, by_head(result, self.input_layout, shape.heads), total, none)

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
        _sample((2, 8, 8), (2, 8, 4), (2, 8, 4), head_num=4, context=8),  # unseen keys spread no NaN in a ring
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

    def apart_results(self, out: Any) -> Any:
        return self.parts(out)

    def fill_apart(self, xp: Any, shape: Shape, scores: Scores, inputs: Sequence[Any], out: Any) -> None:
        views = self.views(shape, inputs[:4], shape.head_counts)
        if self.key_slice:  # then the sums of rows are not only of these keys
            views.append(by_head(inputs[-1], self.input_layout, shape.heads))
        backward(xp, shape, scores, views, inputs[-2], self.views(shape, out, shape.head_counts[:3]))

    def launch_apart(self, device: Device, shape: Shape, inputs: Sequence[Array], out: Any) -> Launch | None:
        attention = self.attention(inputs, inputs[-2], shape.head_counts)
        result = by_head(inputs[-1], self.input_layout, shape.heads)
        grads = self.views(shape, out, shape.head_counts[:3])
        return launch_backward(device, attention, result, grads, not self.key_slice)

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
    attention_out). It is a separate operator because it writes a value per query and key, which the others avoid.
    result_shape: if not (), the gradient is summed to this shape, with size 1 in dimensions in which real_shift may be
    larger; only in a rank's own graph."""

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
        """Return the shape of its result for operands of which none is packed."""
        return self.result_shape or self.named(types)["real_shift"].shape

    def result_dtype(self, *types: TensorType) -> DType:
        return self.named(types)["real_shift"].dtype

    def summed_over(self, axes: Sequence[int], *types: TensorType) -> Op | None:
        """Return the operator with the gradient summed over the batch and heads, for which a kernel has the sum in
        registers."""
        shape = self.summed_to(self.separated(types) if self.packed else types)
        if any(axis + 4 - len(shape) > 1 for axis in axes):
            return None
        return replace(self, result_shape=tuple(1 if d in axes else n for d, n in enumerate(shape)))

    def fill_apart(self, xp: Any, shape: Shape, scores: Scores, inputs: Sequence[Any], out: Any) -> None:
        views = self.views(shape, inputs[:4], shape.head_counts)
        total = xp.zeros(four_dimensions(out).shape, inputs[-2].dtype)
        shift_gradient(xp, shape, scores, views, inputs[-2], total)
        out[...] = total.reshape(out.shape)

    def launch_apart(self, device: Device, shape: Shape, inputs: Sequence[Array], out: Any) -> Launch | None:
        result = by_head(inputs[-1], self.input_layout, shape.heads)
        return launch_shift_gradient(device, self.attention(inputs, inputs[-2], shape.head_counts), result, out)

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
