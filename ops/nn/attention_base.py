"""Types, layouts of operands, masks and launches that attention and its gradients share."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np

from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import element_types
from mspc.ir.late_dataclass import dataclass
from mspc.ir.types import BOOL, FLOAT32, UINT8, TensorType, TupleType, Type, dtype_of
from mspc.ops.cuda.attention_kernels import LOWEST, Attention, AttentionKernels, ScratchLayout
from mspc.ops.cuda.flash_attention import flash_backward, flash_forward, flash_shift
from mspc.ops.device import Array, Device, Launch, in_order
from mspc.ops.memory_order import MemoryOrder, Reordered
from mspc.ops.nn.attention_kernel import (
    UNLIMITED,
    Draws,
    Scores,
    Shape,
    by_head,
    documents_apart,
    four_dimensions,
    place_of_weights,
    split_heads,
)
from mspc.ops.op import ArrayBackend, Op, RankPlacement, require_float, require_same
from mspc.ops.random.words import number_of_run


class FilledOp(Op, abstract=True):
    """An operator whose kernel is `fill`."""

    def allocated(self, be: ArrayBackend, inputs: Sequence[Any]) -> tuple[Any, ...] | Any:
        """Return empty results for these operands."""
        inferred = self.infer(*[TensorType(dtype_of(x.dtype), tuple(x.shape)) for x in inputs])
        if isinstance(inferred, TensorType):
            return be.xp.empty(inferred.shape, inferred.dtype.numpy)
        assert isinstance(inferred, TupleType)
        return tuple(be.xp.empty(t.shape, t.dtype.numpy) for t in inferred.elements)

    def kernel(self, be: ArrayBackend) -> Callable[..., Any]:
        return lambda *inputs: self.fill(be, inputs, self.allocated(be, inputs))

    def kernel_into(self, be: ArrayBackend) -> Callable[..., Any] | None:
        return lambda *inputs, out: self.fill(be, inputs, out)

    def fill(self, be: ArrayBackend, inputs: Sequence[Any], out: Any) -> Any:
        """Compute the results into `out` and return it."""
        raise NotImplementedError(self.name)

HEADS_BEHIND = (0, 2, 1, 3)
"""From (batch, sequence, heads, depth) to (batch, heads, sequence, depth) and back."""


class ByLayout(NamedTuple):
    """Operands and results of an attention that are in its `input_layout`."""

    operands: tuple[int, ...]
    results: tuple[int, ...]


def orders_by_place(
    where: ByLayout, types: Sequence[TensorType], orders: Sequence[MemoryOrder], results: Sequence[TensorType]
) -> tuple[tuple[MemoryOrder, ...], tuple[MemoryOrder, ...]] | None:
    """Return the orders of operands and results of layout "BNSD" that are stored as layout "BSND"; None if query, key
    and value, the first three, are not."""
    wanted = [MemoryOrder.of(type.shape) for type in types]
    made = [MemoryOrder.of(type.shape) for type in results]
    for found, places in ((wanted, where.operands), (made, where.results)):
        for place in places:
            found[place] = MemoryOrder.of(found[place].shape, HEADS_BEHIND)
    if any(own.memory != order.memory for own, order in zip(wanted[:3], orders, strict=False)):
        return None
    return tuple(wanted), tuple(made)

Pair = tuple[int, int]
"""(slice of the queries, slice of the keys); slice i is on rank i of the ring."""
Window = tuple[int | None, int | None]
"""(minimum, maximum) distance from a query to a visible key, None for no limit."""


@dataclass(frozen=True, slots=True)
class Pairs:
    """The pairs of different ranks of which some query looks at some key. by_queries: those computed on the queries'
    rank; by_keys: on the keys' rank; halved: the first half of the keys on their rank, the second half on the queries'
    rank."""

    ranks: int
    by_queries: frozenset[Pair] = frozenset()
    by_keys: frozenset[Pair] = frozenset()
    halved: frozenset[Pair] = frozenset()

    def sent(self, keys: float, queries: float) -> float:
        """Return the mean amount that a rank sends, if all keys of a pair have size `keys`, and its queries with the
        results that come back have size `queries`."""
        return sum(_sent(self, pair, keys, queries) for pair in self.all) / self.ranks

    @property
    def all(self) -> frozenset[Pair]:
        """All of them."""
        return self.by_queries | self.by_keys | self.halved

    def busiest(self, lengths: tuple[int, int], window: Window) -> float:
        """Return the work of the busiest rank relative to the mean over all ranks."""
        load = [_seen(rank, rank, lengths, window) for rank in range(self.ranks)]
        for pair in self.all:
            (i, j), share = pair, _seen(*pair, lengths, window)
            at_keys = 0.5 if pair in self.halved else float(pair in self.by_keys)
            load[i] += share * (1 - at_keys)
            load[j] += share * at_keys
        return max(load) * self.ranks / sum(load) if any(load) else 1.0

    @property
    def distances(self) -> Sequence[int]:
        """Over how many ranks of the ring something is sent, ascending: a round each."""
        to_queries, to_keys = self.by_queries | self.halved, self.by_keys | self.halved
        found = {(i - j) % self.ranks for i, j in to_queries} | {(j - i) % self.ranks for i, j in to_keys}
        return sorted(found)


def _sent(pairs: Pairs, pair: Pair, keys: float, queries: float) -> float:
    if pair in pairs.halved:
        return keys / 2 + queries
    return queries if pair in pairs.by_keys else keys


@lru_cache(maxsize=4096)
def pairs_of(ranks: int, lengths: tuple[int, int], window: Window, ratio: float, movable: bool) -> Pairs:
    """Assign every pair to the queries' rank, the keys' rank or both. lengths: of a slice of the queries and of the
    keys. window: of whole sequences. ratio: bytes of a slice of the queries and its result over those of keys and
    values. movable: queries may be sent to the keys' rank. In total at most as many bytes are sent as in a ring, in
    which every slice of the keys goes to all ranks."""
    shares = {(i, j): _seen(i, j, lengths, window) for i in range(ranks) for j in range(ranks)}
    apart = [pair for pair, share in shares.items() if share and pair[0] != pair[1]]
    load = [sum(share for (i, _), share in shares.items() if i == rank) for rank in range(ranks)]
    spare = float(ranks * (ranks - 1) - len(apart))
    moved: dict[int, set[Pair]] = {1: set(), 2: set()}
    # The farthest first: the other way round the ring they are near, and the ring is shorter.
    ordered = sorted(apart, key=lambda pair: (-abs(pair[0] - pair[1]), pair)) if movable else []
    for parts in (1, 2) if lengths[1] % 2 == 0 else (1,):
        for pair in ordered:
            (i, j), extra, own = pair, ratio - 1 / parts, shares[pair] / parts
            if pair in moved[1] or load[i] - 2 * own < load[j] - 1e-9 or extra > spare:
                continue
            if parts == 1 and load[i] - own <= load[j]:
                continue
            moved[parts].add(pair)
            spare -= extra
            load[i], load[j] = load[i] - own, load[j] + own
    return Pairs(ranks, frozenset(apart) - moved[1] - moved[2], frozenset(moved[1]), frozenset(moved[2]))


@lru_cache(maxsize=256)
def busiest_slice(slices: int, lengths: tuple[int, int], window: Window) -> tuple[float, float]:
    """Return, for this number of slices of the queries that look at all keys, (the share of all pairs of a query and a
    key that are seen, the ratio of the slice with the most of them to the mean). lengths: of whole sequences."""
    (queries, keys), (low, high) = lengths, window
    places = np.arange(queries)
    first = np.zeros(queries) if low is None else np.clip(places + low, 0, keys)
    last = np.full(queries, keys) if high is None else np.clip(places + high + 1, 0, keys)
    seen = np.maximum(last - first, 0).reshape(slices, -1).sum(axis=1)
    total = float(seen.sum())
    return (total / (queries * keys), float(seen.max()) * slices / total) if total else (1.0, 1.0)


def _seen(i: int, j: int, lengths: tuple[int, int], window: Window) -> float:
    """Return the share of a pair's scores that some query sees: none, all, or a part."""
    queries, keys = lengths
    low, high = window
    first, last = j * keys - (i + 1) * queries + 1, (j + 1) * keys - 1 - i * queries
    if (low is not None and last < low) or (high is not None and first > high):
        return 0.0
    return 1.0 if (low is None or first >= low) and (high is None or last <= high) else 0.5


def launch_forward(device: Device, attention: Attention, result: Array, ones: Array, zero: Array) -> Launch | None:
    """Fill result (by head), the statistics, and the placeholders `ones` and `zero`."""
    kernels = AttentionKernels(device, attention)
    constants = kernels.launch("attention_constants", ones.size, ones, np.int64(ones.size), zero)
    fused = _fused(device, attention, kernels, result, None) or flash_forward(device, attention, result)
    if fused is not None:
        return in_order(constants, fused)
    shape = attention.shape
    room = ScratchLayout(device)
    order = [room.by_head(x) for x in attention.operands]
    target = room.by_head(result)
    s = room.take(_score_shape(shape), kernels.wide)
    p = s if kernels.wide == kernels.narrow else room.take(s.shape, kernels.narrow)
    room.make()
    q, k, v = (kernels.ordered(one, room) for one in order)
    out, back = kernels.ordered(target, room), kernels.back(target, room)
    launches: list[Launch | None] = [constants, *q[1], *k[1], *v[1]]
    launches.append(device.matmul(_rows(q[0], shape), k[0], room.at(s), False, True))
    launches.append(kernels.rows("attention_softmax", room.at(s), room.at(p), attention.statistics))
    launches.append(device.matmul(room.at(p), v[0], _rows(out[0], shape), False, False))
    return in_order(*launches, *back)


def launch_backward(
    device: Device, attention: Attention, result: Array, grads: Sequence[Array], all_keys: bool = True
) -> Launch | None:
    """Fill the gradients of query, key and value (by head). result: attention_out by head. all_keys: it covers only
    these keys."""
    kernels = AttentionKernels(device, attention)
    fused = _fused(device, attention, kernels, result, grads) or flash_backward(device, attention, result, grads)
    if fused is not None or not all_keys:  # matmuls need rows' sums over the keys that are present
        return fused
    return _plain_backward(device, attention, kernels, grads, None)


def launch_shift_gradient(device: Device, attention: Attention, result: Array, out: Array) -> Launch | None:
    """Fill the gradient of the shift; `result` is attention_out by head."""
    fused = flash_shift(device, attention, result, out)
    if fused is not None:
        return fused
    kernels = AttentionKernels(device, attention)
    return _plain_backward(device, attention, kernels, (), out)


def _plain_backward(
    device: Device, attention: Attention, kernels: AttentionKernels, grads: Sequence[Array],
    shift_gradient: Array | None,
) -> Launch | None:  # fmt: skip
    shape = attention.shape
    room = ScratchLayout(device)
    order = [room.by_head(x) for x in attention.operands]
    targets = [room.by_head(x) for x in grads]
    s = room.take(_score_shape(shape), kernels.wide)
    d = room.take(s.shape, kernels.wide)
    same = kernels.wide == kernels.narrow
    p = s if same else room.take(s.shape, kernels.narrow)
    g = d if same or shift_gradient is not None else room.take(s.shape, kernels.narrow)
    room.make()
    q, k, v, dout = (kernels.ordered(one, room) for one in order)
    launches: list[Launch | None] = [*q[1], *k[1], *v[1], *dout[1]]
    launches.append(device.matmul(_rows(q[0], shape), k[0], room.at(s), False, True))
    launches.append(device.matmul(_rows(dout[0], shape), v[0], room.at(d), False, True))
    factor = 1.0 if shift_gradient is not None else attention.scores.scale
    launches.append(
        kernels.rows("attention_softmax_gradient", room.at(s), room.at(d), room.at(p), room.at(g),
                     attention.statistics, factor=factor)
    )  # fmt: skip
    if shift_gradient is not None:
        return in_order(*launches, kernels.sum(room.at(g), shift_gradient))
    dq, dk, dv = (kernels.ordered(one, room)[0] for one in targets)
    launches.append(device.matmul(room.at(g), k[0], _rows(dq, shape), False, False))
    launches.append(device.matmul(room.at(g), _rows(q[0], shape), dk, True, False))
    launches.append(device.matmul(room.at(p), _rows(dout[0], shape), dv, True, False))
    for one in targets:
        launches += kernels.back(one, room)
    return in_order(*launches)


def _fused(
    device: Device, attention: Attention, kernels: AttentionKernels, result: Array, grads: Sequence[Array] | None
) -> Launch | None:
    """Return the device's own kernel, or None."""
    shape, scores = attention.shape, attention.scores
    q, k, v = attention.operands[:3]
    # It would take the sum of both addends, a number for every query and key of the batch.
    if q.dtype.name not in LOWEST or scores.draws is not None or scores.key_shift is not None:
        return None
    causal = ""
    if scores.high is not None or scores.low is not None:
        if scores.low is not None or scores.high not in (0, shape.keys - shape.queries):
            return None
        causal = "top" if scores.high == 0 else "bottom"
    addend, prepare = None, None
    if scores.shift is not None or scores.mask is not None:
        addend, prepare = kernels.addend()
    gradients = None if grads is None else (attention.operands[3], *grads)
    fused = device.attention(
        q, k, v, result, attention.statistics, scale=scores.scale, causal=causal, addend=addend, gradients=gradients
    )
    if fused is None or prepare is None:
        return fused
    return in_order(prepare, fused)


def _score_shape(shape: Shape) -> tuple[int, ...]:
    return shape.batch, shape.key_heads, shape.group * shape.queries, shape.keys


def _rows(array: Array, shape: Shape) -> Array:
    """Return heads that share a head of key and value as rows of one matrix."""
    return array.reshape(shape.batch, shape.key_heads, shape.group * shape.queries, array.shape[-1])

LAYOUTS = ("BSH", "BNSD", "BSND", "SBH")
OPTIONAL = ("real_shift", "drop_mask", "attn_mask")
"""Operands that may be left out, in their order."""
ENDS = ("actual_seq_qlen", "actual_seq_kvlen")
"""Optional operands after these: the ends of the documents of every sequence."""
KEY_SHIFT = "key_shift"
"""Only in a rank's own graph: an addend of the scores in addition to `real_shift`, the same for all queries."""
COMPRESSED = (2048, 2048)
"""The shape of the triangle that MindSpore wants as `attn_mask` in the sparse modes that need no mask."""


def text_of_scores(shape: tuple[int, ...], heads: str) -> str:
    """Return a rule's text of a tensor that is broadcast to [batch, heads, queries, keys]; `heads` is that of the
    heads."""
    sides = ("b", heads, "s", "t!")[4 - len(shape) :]
    return " ".join("1" if n == 1 else side for n, side in zip(shape, sides, strict=True))


def in_slices(text: str, count: int, keys: bool = True) -> str:
    """Return a rule's text of a tensor with both sequences in `count` slices; keys: whether its keys are, too."""
    slices = {"s": f"(c={count} s!)", "t!": f"(c={count} t!)" if keys else "a!"}
    return " ".join(slices.get(word, word) for word in text.split(" "))


class AttentionOp(FilledOp, abstract=True):
    """Attributes, sizes and rules shared by the operator and its gradients.

    Seed0, Seed1: seeds of the draws that drop weights, as in `Dropout`, if keep_prob is below 1 and there is no
    drop_mask; the compiler takes them from a Dropout after the softmax. shape, begin, local: shape of all weights on
    all ranks, start of this rank's slice and its sizes, () if it computes all. rows: see `place_of_rows`. optional: the
    optional operands that are present. packed: if not 0, query, key and value are one operand in `input_layout`, the
    query's heads followed by this many of key and as many of value; so is their gradient. first_query, all_queries: if
    not 0, the queries are a rank's slice of all_queries, starting at first_query. key_shift among the optional
    operands: [batch or 1, heads or 1, 1, keys], of any floating-point type, which is also added to the scores and has
    no gradient. key_slice: if not (), (start, total) of the keys, which are a slice; the results of several slices are
    combined. Only a rank's own graph has these forms. context: if not 0, both sequences may be sharded in the same way,
    into at most this many slices (`context_attention`). The other fields are MindSpore's.
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
    packed: int = 0
    first_query: int = 0
    all_queries: int = 0
    key_slice: tuple[int, ...] = ()
    context: int = 0
    Seed0: int = 0
    Seed1: int = 0
    shape: tuple[int, ...] = ()
    begin: tuple[int, ...] = ()
    local: tuple[int, ...] = ()
    rows: tuple[int, ...] = ()
    omitted = (
        "keep_prob", "scale_value", "pre_tokens", "next_tokens", "inner_precise", "input_layout", "sparse_mode",
        "optional", "packed", "first_query", "all_queries", "key_slice", "context", "Seed0", "Seed1", "shape", "begin",
        "local", "rows",
    )  # fmt: skip
    work = "attention"
    by_layout: ClassVar[ByLayout] = ByLayout((0, 1, 2), (3,))
    products: ClassVar[int] = 2
    """Number of matmuls: of queries and keys, and of their weights and the values; more for gradients."""

    def infer(self, *types: Any) -> Type:
        if self.packed:
            return self.apart.infer(*self.separated(types))
        inferred = super().infer(*types)
        query, key, value = types[:3]
        require_float(self.name, query, key, value)
        require_same(self.name, query, key, value)
        for name, operand in self.named(types).items():
            if name in ENDS and not operand.dtype.is_integer:
                raise MspcError(
                    f"{self.name}: {name} is {operand.dtype}, not a tensor of integers", kind=TypeError, code="E0304"
                )
            if name in OPTIONAL[1:] and operand.dtype not in (BOOL, UINT8):
                raise MspcError(
                    f"{self.name}: {name} is {operand.dtype}, not Bool or UInt8", kind=TypeError, code="E0304"
                )
            if name in ("real_shift", KEY_SHIFT) and not operand.dtype.is_float:
                raise MspcError(
                    f"{self.name}: {name} is {operand.dtype}, not a floating-point tensor", kind=TypeError, code="E0304"
                )
        return inferred

    def reordered(self, types: Sequence[TensorType], orders: Sequence[MemoryOrder]) -> Reordered | None:
        if self.packed or self.input_layout != "BNSD":
            return None
        found = orders_by_place(self.by_layout, types, orders, element_types(self.infer(*types)))
        return None if found is None else Reordered(replace(self, input_layout="BSND"), *found)

    @property
    def apart(self) -> Self:
        """The same operator on three operands."""
        return replace(self, packed=0)

    def parts(self, packed: Any) -> list[Any]:
        """Return query, key and value of a packed operand: types, or views of an array."""
        return split_heads(self.name, packed, self.input_layout, self.head_num, self.packed)

    def separated(self, operands: Sequence[Any]) -> list[Any]:
        """Return the operands of `apart` for those of a packed operator."""
        if not operands:
            raise MspcError(f"{self.name} needs a packed operand")
        return [*self.parts(operands[0]), *operands[1:]]

    def operations(self, types: Sequence[TensorType]) -> float:
        """Return the floating-point operations of its matmuls for operands of these types."""
        shape = self._sizes(types)
        return self.products * math.prod(shape.weights) * (shape.depth + shape.value_depth)

    def elements_between(self, types: Sequence[TensorType]) -> int:
        """Return the number of scores, one for every query and key."""
        return math.prod(self._sizes(types).weights)

    def _sizes(self, types: Sequence[TensorType]) -> Shape:
        return self.apart.sizes(self.parts(types[0]) if self.packed else types[:3])

    def named(self, operands: Sequence[Any]) -> dict[str, Any]:
        """Return the optional operands that are present, by name."""
        first = self.first_optional
        return dict(zip(self.optional, operands[first : first + len(self.optional)], strict=True))

    first_optional: ClassVar[int] = 4

    def index_limits(self, *types: TensorType) -> Mapping[int, int]:
        """Return the limits of the ends: a document may end after the last place."""
        if ENDS[0] not in self.optional:
            return {}
        shape = self.sizes(types)
        lengths = dict(zip(ENDS, (shape.queries, shape.keys), strict=True))
        return {self.first_optional + i: lengths[name] + 1 for i, name in enumerate(self.optional) if name in lengths}

    def sizes(self, types: Sequence[TensorType]) -> Shape:
        """Return the sizes that follow from the shapes. Raise MspcError if attributes or shapes do not fit."""
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
            if not depth or key[2] % depth or not key[2]:
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
        if not (shape.keys and shape.depth):
            raise MspcError(f"{self.name}: key has shape {key}, which holds nothing to attend to")
        if not shape.key_heads or shape.heads % shape.key_heads:
            raise MspcError(f"{self.name}: the {shape.key_heads} heads of key do not divide the {n} heads of query")
        return shape

    def check_settings(self) -> None:
        """Raise MspcError for attributes that mspc does not know."""
        if self.input_layout not in LAYOUTS:
            raise MspcError(f"{self.name}: input_layout is {self.input_layout!r}, not one of {', '.join(LAYOUTS)}")
        if not 0 < self.keep_prob <= 1:
            raise MspcError(f"{self.name}: keep_prob is {self.keep_prob}, not above 0 and at most 1", kind=ValueError)
        if self.sparse_mode not in range(5):
            raise MspcError(f"{self.name}: sparse_mode is {self.sparse_mode}; known are 0 to 4")
        if self.head_num < 1:
            raise MspcError(f"{self.name}: head_num is {self.head_num}")
        known = (*OPTIONAL, KEY_SHIFT, *ENDS)
        if any(name not in known for name in self.optional):
            raise MspcError(f"{self.name}: optional is {self.optional}; known operands are {', '.join(known)}")

    def window(self, shape: Shape) -> tuple[int | None, int | None]:
        """Return (minimum, maximum) distance key - query of visible keys, None for no limit."""
        windowed = self.sparse_mode == 4 or (self.sparse_mode == 0 and "attn_mask" in self.optional)
        below = windowed and self.pre_tokens < UNLIMITED
        above = self.sparse_mode in (2, 3) or (windowed and self.next_tokens < UNLIMITED)
        if not below and not above:
            return None, None  # so that nothing depends on the first query, by which ranks differ (`ir.varying`)
        first_key, keys = self.key_slice or (0, shape.keys)
        offset = keys - (self.all_queries or shape.queries) if self.sparse_mode in (3, 4) else 0
        offset += self.first_query - first_key
        next_tokens = self.next_tokens if windowed else 0
        low, high = offset - self.pre_tokens if below else None, offset + next_tokens if above else None
        if not self.key_slice:
            return low, high
        # Most slices are seen as a whole, for which kernels need no window.
        hides = low is not None and low > 1 - shape.queries, high is not None and high < shape.keys - 1
        return low if hides[0] else None, high if hides[1] else None

    def check_rule(self, types: Sequence[object], fixed: int) -> None:
        """Raise MspcError if there is no rule: for a packed operand, and for operands that are not `fixed` and the
        optional ones."""
        if self.packed:
            raise MspcError(f"{self.name} of a packed operand is of a rank's own graph: it has no sharding rule")
        wanted = fixed + len(self.optional)
        if len(types) != wanted:
            raise MspcError(f"{self.name} takes {wanted} tensors, not {len(types)}", code="E0301")

    def texts(self, types: Sequence[TensorType]) -> dict[str, str]:
        """Return the rule's text of every tensor, and of the heads. Batch, heads and queries may be sharded, keys and
        the depth of a head must not be. A head of key and value goes with all heads of the query that look at it."""
        shape = self.sizes(types)
        group = f" g={shape.group}" if shape.group > 1 else ""
        m = f"m={shape.key_heads}"
        heads = f"({m}{group})" if group else m
        q, k, v = {
            "BSH": (f"b s ({m}{group} d!)", f"b t! ({m} d!)", f"b t! ({m} e!)"),
            "SBH": (f"s b ({m}{group} d!)", f"t! b ({m} d!)", f"t! b ({m} e!)"),
            "BNSD": (f"b {heads} s d!", f"b {m} t! d!", f"b {m} t! e!"),
            "BSND": (f"b s {heads} d!", f"b t! {m} d!", f"b t! {m} e!"),
        }[self.input_layout]
        if self.context:
            q, k, v = (in_slices(text, self.context) for text in (q, k, v))
        texts = {"query": q, "key": k, "value": v, "out": q.replace("d!", "e!"), "statistics": f"b {heads} s 1"}
        if self.context:
            texts["statistics"] = in_slices(texts["statistics"], self.context)
        for name, operand in self.named(types).items():
            if name in ENDS:
                if len(operand.shape) != 1:
                    raise MspcError(f"{self.name}: {name} has shape {operand.shape}, not that of a list of ends")
                texts[name] = "l!"
                continue
            if len(operand.shape) > 4:
                raise MspcError(f"{self.name}: {name} has shape {operand.shape}, more than 4 dimensions")
            if name == KEY_SHIFT and operand.rank > 1 and operand.shape[-2] > 1:
                raise MspcError(f"{self.name}: {name} has shape {operand.shape}, which differs from query to query")
            texts[name] = text_of_scores(operand.shape, heads)
            if self.context:
                texts[name] = in_slices(texts[name], self.context, keys=False)
        texts["heads"] = heads
        return texts

    def localize(self, placement: RankPlacement) -> Op:
        layout, type = placement.in_layouts[0], placement.in_types[0]
        heads, queries = {"BNSD": (1, 2), "BSND": (2, 1), "BSH": (2, 1), "SBH": (2, 0)}[self.input_layout]
        dims = (1 if self.input_layout == "SBH" else 0, heads, queries)
        mine = self
        if self.draws_by_place:
            weights = self.sizes(placement.in_types).weights
            shape, begin, local = place_of_weights(placement, self.rows, weights, dims)
            mine = replace(mine, shape=shape, begin=begin, local=local, rows=())
        mine = replace(mine, head_num=self.head_num // layout.strategy[heads], context=0)
        if layout.strategy[queries] == 1:
            return mine
        here = layout.slices_for(placement.rank, type.shape)[queries]
        return replace(mine, first_query=here.start, all_queries=type.shape[queries])

    @property
    def draws_by_place(self) -> bool:
        """Whether weights are dropped at random."""
        return self.keep_prob < 1 and "drop_mask" not in self.optional

    @property
    def draws(self) -> bool:
        return self.draws_by_place

    def over_rows(self, dimension: int, outer: int) -> Self:
        """See `DrawnByPlace`."""
        return replace(self, rows=(dimension, outer))

    def scores(self, shape: Shape, operands: Sequence[Any], be: Any = None) -> Scores:
        """Return the terms of the scores. be: the backend of operands that need `by_arrays`, and the step's number."""
        low, high = self.window(shape)
        given = self.named(operands)
        shift, keep_mask, mask = (four_dimensions(given.get(name)) for name in OPTIONAL)
        if ENDS[0] in given:
            places = self.first_query, self.key_slice[0] if self.key_slice else 0
            apart = documents_apart(be.xp, shape, places, [given[name] for name in ENDS])
            mask = apart if mask is None else (mask != 0) | apart
        step = number_of_run(be)
        draws = None
        if self.draws_by_place:
            local = self.local or shape.weights
            begin = self.begin or (0,) * len(local)
            draws = Draws((self.Seed0, self.Seed1), self.keep_prob, self.shape or shape.weights, begin, local)
            if self.key_slice:
                first_key, _ = self.key_slice
                rows = draws.keep_mask(be.xp, step, 0, math.prod(shape.weights[:-1]))
                draws, keep_mask = None, rows[:, first_key : first_key + shape.keys].reshape(shape.weights)
        key_shift = four_dimensions(given.get(KEY_SHIFT))
        return Scores(self.scale_value, shift, mask, low, high, keep_mask, self.keep_prob, draws, step, key_shift)

    @property
    def by_arrays(self) -> bool:
        """Whether weights are dropped by a mask or documents are separate, which no kernel of a GPU does, or weights of
        a slice of the keys are dropped: they are computed array by array there."""
        return "drop_mask" in self.optional or ENDS[0] in self.optional or bool(self.draws_by_place and self.key_slice)

    def fill(self, be: ArrayBackend, inputs: Sequence[Any], out: Any) -> Any:
        if self.packed:
            self.apart.fill(be, self.separated(inputs), self.apart_results(out))
        else:
            shape = self.shape_of(inputs)
            self.fill_apart(be.xp, shape, self.scores(shape, inputs, be), inputs, out)
        return out

    def launch(self, device: Device, out: Any, *inputs: Array) -> Launch | None:
        if self.by_arrays:
            return None
        if self.packed:
            return self.apart.launch(device, self.apart_results(out), *self.separated(inputs))
        return self.launch_apart(device, self.shape_of(inputs), inputs, out)

    def apart_results(self, out: Any) -> Any:
        """Return the results of `apart` in those of a packed operator."""
        return out

    def fill_apart(self, xp: Any, shape: Shape, scores: Scores, inputs: Sequence[Any], out: Any) -> None:
        """Compute the results of three operands into `out`."""
        raise NotImplementedError(self.name)

    def launch_apart(self, device: Device, shape: Shape, inputs: Sequence[Array], out: Any) -> Launch | None:
        """Return the launch for three operands, or None."""
        raise NotImplementedError(self.name)

    def shape_of(self, operands: Sequence[Any]) -> Shape:
        return self.sizes([TensorType(FLOAT32, tuple(x.shape)) for x in operands[:3]])

    def views(self, shape: Shape, arrays: Sequence[Any], heads: Sequence[int]) -> list[Any]:
        """Return arrays in the operator's layout by head."""
        return [by_head(x, self.input_layout, n) for x, n in zip(arrays, heads, strict=True)]

    def attention(self, operands: Sequence[Array], statistics: Array, heads: Sequence[int]) -> Attention:
        """Return the description of the attention for a GPU; `operands` begin with query, key, value."""
        shape = self.shape_of(operands)
        arrays = [operands[0], operands[1], operands[2], *operands[3 : len(heads)]]
        return Attention(shape, self.scores(shape, operands), self.views(shape, arrays, heads), statistics)
