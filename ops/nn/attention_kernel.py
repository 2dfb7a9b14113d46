"""Attention block by block on arrays, and the draws of its dropout."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from mspc.ir.diagnostics import MspcError
from mspc.ir.late_dataclass import dataclass
from mspc.ir.types import TensorType
from mspc.ops.cpu.products import share_out
from mspc.ops.cuda.moves import coordinates
from mspc.ops.device import source_text
from mspc.ops.op import RankPlacement
from mspc.ops.random.words import GROUP, before_step, count_of, keep_rows, key_of, place_of_rows


@dataclass(frozen=True, slots=True)
class Draws:
    """Random draws that drop weights. seeds: two, as in `Dropout`. keep_prob: probability that a weight stays. shape:
    of all weights on all ranks, keys last. begin, local: start of this rank's slice in it, and its sizes; keys are not
    sharded."""

    seeds: tuple[int, int]
    keep_prob: float
    shape: tuple[int, ...]
    begin: tuple[int, ...]
    local: tuple[int, ...]

    def keep_mask(self, xp: Any, step: int, first: int, last: int) -> Any:
        """Return Bool [last - first, keys] of the rank's rows from `first` to `last`: the weights that stay."""
        rest, place, stride = xp.arange(first, last, dtype=xp.uint64), xp.zeros(last - first, xp.uint64), 1
        for n, size, begin in reversed(list(zip(self.shape[:-1], self.local[:-1], self.begin[:-1], strict=True))):
            place += (rest % xp.uint64(size) + xp.uint64(begin)) * xp.uint64(stride)
            rest //= xp.uint64(size)
            stride *= n
        keys, key = self.shape[-1], key_of(*self.seeds, step)
        return keep_rows(xp, key, place * xp.uint64(keys), keys, self.keep_prob, self.aligned)

    @property
    def aligned(self) -> bool:
        """Whether every row begins with a group of elements that words decide together."""
        return self.shape[-1] % GROUP == 0


def place_of_weights(
    placement: RankPlacement, rows: tuple[int, ...], weights: tuple[int, ...], dims: tuple[int, int, int]
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Return (shape of all weights, start of a rank's slice in it, its sizes or () if they are those of its operands).
    rows: if every rank has rows of its own, see `place_of_rows`. weights: shape of the weights. dims: dimensions of the
    first operand for batch, heads (possibly with their depth) and queries."""
    if rows:
        all_sizes, begin, local = place_of_rows(weights, rows, placement.rank, placement.in_layouts[0].ranks)
        return all_sizes, begin, local if len(local) > len(weights) else ()
    shape = placement.in_types[0].shape
    here = placement.in_layouts[0].slices_for(placement.rank, shape)
    starts = [here[d].start * n // shape[d] if shape[d] else 0 for d, n in zip(dims, weights[:3], strict=True)]
    return weights, (*starts, 0), ()


def draws_source(draws: Draws | None, type: str = "float") -> str:
    """Return C++ of functions and a macro. The weight of a row and a key remains if `stays(word, key)` is true for the
    `word_of_row(row, step, seed)`, seed being `seed_of(draws)`; it counts KEPT_FACTOR then, a number of this type."""
    if draws is None:
        return source_text("ops/nn/attention_without_dropout.cuh")
    rows, terms, stride = draws.local[:-1], list[str](), 1
    for d in reversed(range(len(rows))):
        terms.append(f"((u64)i{d} + {draws.begin[d]}ull) * {stride}ull")
        stride *= draws.shape[d]
    return source_text(
        "ops/nn/attention_dropout.cuh", coordinates=coordinates(rows, "row"), terms=" + ".join(terms),
        columns=draws.shape[-1], aligned=int(draws.aligned), count=count_of(draws.keep_prob), type=type,
        factor=repr(1 / draws.keep_prob),
    )  # fmt: skip


def seed_of(draws: Draws | None) -> Any:
    """Return the kernels' argument that holds the seeds: networks of many layers then share kernels."""
    return np.uint64(0 if draws is None else before_step(*draws.seeds))


UNLIMITED = 2147483647
"""The value of `pre_tokens` and `next_tokens` if nothing is left out."""
LARGE = 64
"""Statistics up to this size hold the logarithm of a sum well enough for gradients."""
TOGETHER = 1 << 14
"""Groups of heads with fewer scores than this are computed together, for several members of the batch."""

Place = tuple[slice, int]
"""Members of the batch, and a head of key and value."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of an attention.

    heads, key_heads: of the query, and of key and value; each of the latter serves heads / key_heads of the former.
    queries, keys: lengths of both sequences. depth, value_depth: of one head.
    """

    batch: int
    heads: int
    key_heads: int
    queries: int
    keys: int
    depth: int
    value_depth: int

    @property
    def weights(self) -> tuple[int, int, int, int]:
        """The shape of all weights of the softmax."""
        return self.batch, self.heads, self.queries, self.keys

    @property
    def group(self) -> int:
        return self.heads // self.key_heads

    @property
    def head_counts(self) -> tuple[int, int, int, int]:
        """The heads of query, key, value and the result."""
        return self.heads, self.key_heads, self.key_heads, self.heads


@dataclass(frozen=True, slots=True)
class Scores:
    """Terms of a score: score = scale * product + shift + key_shift, masked if mask is true or unless low <= key -
    query <= high. None for no limit. key_shift is equal for all queries. keep_mask: a weight is multiplied by 1 /
    keep_prob if it is true, else dropped; draws: the same, drawn at `step`; None for no dropout."""

    scale: float
    shift: Any = None
    mask: Any = None
    low: int | None = None
    high: int | None = None
    keep_mask: Any = None
    keep_prob: float = 1.0
    draws: Draws | None = None
    step: int = 0
    key_shift: Any = None

    @property
    def shifted(self) -> bool:
        """Whether numbers are added to the products."""
        return self.shift is not None or self.key_shift is not None


def by_head(x: Any, layout: str, heads: int) -> Any:
    """Return a view [batch, heads, sequence, depth] of an array in `layout`."""
    if layout == "BNSD":
        return x
    if layout == "BSND":
        return x.transpose(0, 2, 1, 3)
    first, second, hidden = x.shape
    split = x.reshape(first, second, heads, hidden // heads)
    return split.transpose(0, 2, 1, 3) if layout == "BSH" else split.transpose(1, 2, 0, 3)


def split_heads(name: str, packed: Any, layout: str, heads: int, key_heads: int) -> list[Any]:
    """Return query, key and value that follow one another in the dimension of the heads: types or views of an array.
    Raise MspcError if the dimension does not hold this number of heads of equal depth."""
    axis = {"BNSD": 1, "BSND": 2}.get(layout, 2)
    shape = tuple(packed.shape)
    parts = heads + 2 * key_heads
    flat = layout in ("BSH", "SBH")
    if len(shape) != (3 if flat else 4) or (shape[axis] % parts if flat else shape[axis] != parts) or not shape[axis]:
        raise MspcError(
            f"{name}: a packed operand of shape {shape} does not hold {heads} heads of query and {key_heads} each of "
            f"key and value",
            notes=[f"input_layout is {layout!r}"],
        )
    size = shape[axis] // parts
    bounds = [size * n for n in (0, heads, heads + key_heads, parts)]
    ranges = [slice(first, last) for first, last in itertools.pairwise(bounds)]
    if isinstance(packed, TensorType):
        sides = [(*shape[:axis], part.stop - part.start, *shape[axis + 1 :]) for part in ranges]
        return [TensorType(packed.dtype, side) for side in sides]
    before = (slice(None),) * axis
    return [packed[(*before, part)] for part in ranges]


def four_dimensions(x: Any) -> Any:
    """Return a shift or a mask as [batch or 1, heads or 1, queries or 1, keys or 1]."""
    return None if x is None else x.reshape((1,) * (4 - x.ndim) + x.shape)


def forward(xp: Any, shape: Shape, scores: Scores, arrays: Sequence[Any], statistics: Any) -> None:
    """Fill out and the logarithms of the softmax's sums; arrays are q, k, v and out, views by head."""
    q, k, v, out = arrays

    def work(at: Place, rows: slice) -> None:
        s = _scores(xp, shape, scores, q, k, at, rows, statistics.dtype)
        top = xp.max(s, axis=-1, keepdims=True)
        top = xp.where(top == -xp.inf, 0, top)
        power = xp.exp(s - top)
        total = xp.sum(power, axis=-1, keepdims=True)
        some = total != 0  # a query that may look at no key gives zeros
        safe = xp.where(some, total, 1)
        statistics[at[0], rows] = xp.where(some, top + xp.log(safe), -xp.inf)
        power /= safe
        out[at[0], rows] = xp.matmul(_dropped(xp, shape, scores, power, at, rows), v[at][:, None].astype(power.dtype))

    _for_groups(xp, shape, scores, work)


def backward(
    xp: Any, shape: Shape, scores: Scores, operands: Sequence[Any], statistics: Any, grads: Sequence[Any]
) -> None:
    """Fill the gradients of q, k and v (views by head). operands: q, k, v, the gradient of the result and, if the keys
    are only a slice of those from which the result was computed, the result."""
    q, k, _, dout = operands[:4]
    dq, dk, dv = grads

    def work(at: Place, rows: slice) -> None:
        p, ds = _score_gradients(xp, shape, scores, operands, statistics, at, rows)
        ds *= scores.scale
        dq[at[0], rows] = xp.matmul(ds, k[at][:, None].astype(ds.dtype))
        dk[at] = xp.matmul(_stacked(ds).swapaxes(1, 2), _stacked(q[at[0], rows].astype(ds.dtype)))
        dv[at] = xp.matmul(_stacked(p).swapaxes(1, 2), _stacked(dout[at[0], rows].astype(ds.dtype)))

    _for_groups(xp, shape, scores, work)


def shift_gradient(xp: Any, shape: Shape, scores: Scores, operands: Sequence[Any], statistics: Any, total: Any) -> None:
    """Add the gradient of the shift to `total`, which has the shift's four dimensions."""
    for at, rows in _groups(shape, scores):
        _, ds = _score_gradients(xp, shape, scores, operands, statistics, at, rows)
        wanted = total[_place(total, 0, at[0]), _heads(total, rows)]
        for axis in range(4):
            if wanted.shape[axis] == 1:
                ds = xp.sum(ds, axis=axis, keepdims=True)
        wanted += ds


def _groups(shape: Shape, scores: Scores) -> Iterator[tuple[Place, slice]]:
    """Return (place, heads of the query that look at it), with many members of the batch at once if they are small."""
    together = 1 if scores.draws is not None else max(1, TOGETHER // (shape.group * shape.queries * shape.keys or 1))
    for begin in range(0, shape.batch, together):
        for m in range(shape.key_heads):
            yield (slice(begin, begin + together), m), slice(m * shape.group, (m + 1) * shape.group)


def _for_groups(xp: Any, shape: Shape, scores: Scores, work: Callable[[Place, slice], None]) -> None:
    """Work on every group, in NumPy on several threads if that pays."""
    calls = [functools.partial(work, at, rows) for at, rows in _groups(shape, scores)]
    if xp is np:
        share_out(calls, math.prod(shape.weights) * (shape.depth + shape.value_depth))
        return
    for call in calls:
        call()


def _scores(xp: Any, shape: Shape, scores: Scores, q: Any, k: Any, at: Place, rows: slice, dtype: Any) -> Any:
    """Return scores [batch, group, queries, keys], minus infinity if a query may not look at the key."""
    s = xp.matmul(q[at[0], rows].astype(dtype), k[at][:, None].astype(dtype).swapaxes(2, 3))
    s *= scores.scale
    for part, add in ((scores.key_shift, True), (scores.shift, True), (scores.mask, False)):
        if part is None:
            continue
        mine = part[_place(part, 0, at[0]), _heads(part, rows)]
        s = s + mine.astype(dtype) if add else xp.where(mine != 0, -xp.inf, s)
    if scores.low is not None or scores.high is not None:
        distance = xp.arange(shape.keys)[None, :] - xp.arange(shape.queries)[:, None]
        low = -UNLIMITED if scores.low is None else scores.low
        high = UNLIMITED if scores.high is None else scores.high
        s = xp.where((distance >= low) & (distance <= high), s, -xp.inf)
    return s.astype(dtype)


def _score_gradients(
    xp: Any, shape: Shape, scores: Scores, operands: Sequence[Any], statistics: Any, at: Place, rows: slice
) -> tuple[Any, Any]:
    """Return (weights as far as they remain, gradients of the scores)."""
    q, k, v, dout, *result = operands
    dtype = statistics.dtype
    logarithm = statistics[at[0], rows]
    logarithm = xp.where(logarithm == -xp.inf, 0, logarithm)
    p = xp.exp(_scores(xp, shape, scores, q, k, at, rows, dtype) - logarithm)
    large = xp.abs(logarithm) > LARGE
    # A GPU cannot decide by numbers while its step is captured, and always adds up.
    if scores.shifted and (xp is not np or np.any(large)):
        # Beside a number as -1e9, which a shift adds to all keys of a query, the logarithm of the sum is rounded away.
        total = xp.sum(p, axis=-1, keepdims=True)
        p /= xp.where(large & (total != 0), total, 1)
    values = v[at][:, None].astype(dtype).swapaxes(2, 3)
    dp = _dropped(xp, shape, scores, xp.matmul(dout[at[0], rows].astype(dtype), values), at, rows)
    of_keys = dout[at[0], rows].astype(dtype) * result[0][at[0], rows].astype(dtype) if result else p * dp
    return _dropped(xp, shape, scores, p, at, rows), p * (dp - xp.sum(of_keys, axis=-1, keepdims=True))


def _dropped(xp: Any, shape: Shape, scores: Scores, weights: Any, at: Place, rows: slice) -> Any:
    """Return weights, or their gradients, some of them dropped and the others scaled up for them."""
    if scores.draws is not None:
        _, heads, queries, _ = weights.shape
        first = (at[0].start * shape.heads + rows.start) * queries
        mine = scores.draws.keep_mask(xp, scores.step, first, first + heads * queries).reshape(weights.shape)
    elif scores.keep_mask is not None:
        mine = scores.keep_mask[_place(scores.keep_mask, 0, at[0]), _heads(scores.keep_mask, rows)]
    else:
        return weights
    return xp.where(mine != 0, weights / weights.dtype.type(scores.keep_prob), weights.dtype.type(0))


def _place(part: Any, axis: int, index: slice) -> slice:
    return index if part.shape[axis] > 1 else slice(0, 1)


def _heads(part: Any, rows: slice) -> slice:
    return rows if part.shape[1] > 1 else slice(0, 1)


def _stacked(x: Any) -> Any:
    """Return [batch, group, rows, columns] as one matrix for each member of the batch."""
    return x.reshape(x.shape[0], x.shape[1] * x.shape[2], x.shape[3])


def documents_apart(xp: Any, shape: Shape, first: tuple[int, int], ends: Sequence[Any]) -> Any:
    """Return whether query and key are of different documents, or after the last one, with four dimensions; first:
    places of the first query and key; ends: of queries' and of keys' documents."""
    places = [xp.arange(at, at + count) for at, count in zip(first, (shape.queries, shape.keys), strict=True)]
    mine, other = ((at[:, None] >= last[None, :]).sum(-1) for at, last in zip(places, ends, strict=True))
    return ((mine[:, None] != other) | (mine[:, None] == ends[0].size))[None, None]
