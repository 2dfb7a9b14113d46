"""Kinds of ATen that change shapes, and those that keep books and compute nothing."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from mspc.ir.types import INT64
from mspc.mindspore_api import mint, ops
from mspc.mindspore_api.mint.functions import as_dtype
from mspc.mindspore_api.mint.nn import functional
from mspc.readers.pytorch.kinds.creation import counted
from mspc.readers.pytorch.kinds.kind import row


def reshaped(self: Any, shape: Any) -> Any:
    """Return the same elements in another shape; one size may be -1."""
    sizes = tuple(shape)
    same = len(sizes) == len(self.shape) and sizes.count(-1) < 2
    if same and all([n in (-1, own) for n, own in zip(sizes, self.shape, strict=False)]):
        return self
    return ops.Reshape()(self, sizes)


def as_before(base: Any, new: Any, *others: Any) -> Any:
    """Return the elements in the shape of their base."""
    return reshaped(new, base.shape)


def expanded(self: Any, size: Any) -> Any:
    """Dimensions of size 1 repeated, and new ones in front; -1 keeps a size."""
    sizes, rank = tuple(size), len(self.shape)
    front = len(sizes) - rank
    full = tuple([self.shape[i - front] if n == -1 else n for i, n in enumerate(sizes)])
    if full == self.shape:
        return self
    return ops.BroadcastTo(full)(self)


def expanded_back(base: Any, new: Any, size: Any) -> Any:
    """Undo `expanded`: keep the first of repeated elements."""
    rank, front = len(new.shape), len(new.shape) - len(base.shape)
    ends = [1 if d < front or base.shape[d - front] == 1 else n for d, n in enumerate(new.shape)]
    first = ops.StridedSlice()(new, (0,) * rank, tuple(ends), (1,) * rank)
    return reshaped(first, base.shape)


def spread_out(tensors: Any) -> Any:
    """Return all tensors in the one shape that they are broadcast to."""
    full = np.broadcast_shapes(*[x.shape for x in tensors])
    return [expanded(x, full) for x in tensors]


def exchanged(self: Any, dim0: Any, dim1: Any) -> Any:
    """Two dimensions exchanged."""
    if not self.shape:
        return self
    return mint.transpose(self, dim0, dim1)


def conjugate_transposed(self: Any) -> Any:
    """Return the conjugate transposes of matrices."""
    return exchanged(ops.Conj()(self) if self.dtype.is_complex else self, -2, -1)


def transposed(self: Any) -> Any:
    """Return a matrix with its dimensions exchanged; a vector as it is."""
    return exchanged(self, 0, 1) if len(self.shape) == 2 else self


def permuted(self: Any, dims: Any) -> Any:
    """Dimensions in another order."""
    rank = len(self.shape)
    order = tuple([d % rank for d in dims])
    return self if order == tuple(range(rank)) else ops.Transpose()(self, order)


def permuted_back(base: Any, new: Any, dims: Any) -> Any:
    """Undo `permuted`."""
    rank = len(base.shape)
    order = [d % rank for d in dims]
    return permuted(new, tuple([order.index(d) for d in range(rank)]))


def squeezed(self: Any, dim: Any = None) -> Any:
    """Without dimensions of size 1: all, or those that are named, if they have that size."""
    rank = len(self.shape)
    named = tuple(range(rank)) if dim is None else (dim,) if isinstance(dim, int) else tuple(dim)
    left = [d % rank for d in named] if rank else []
    return reshaped(self, tuple([n for d, n in enumerate(self.shape) if d not in left or n != 1]))


def flattened(self: Any, start_dim: Any, end_dim: Any) -> Any:
    """Dimensions start_dim to end_dim made one."""
    rank = len(self.shape)
    if rank == 0:
        return reshaped(self, (1,))
    first, last = start_dim % rank, end_dim % rank
    return reshaped(self, (*self.shape[:first], math.prod(self.shape[first : last + 1]), *self.shape[last + 1 :]))


def unflattened(self: Any, dim: Any, sizes: Any) -> Any:
    """One dimension made several."""
    place = dim % len(self.shape)
    return reshaped(self, (*self.shape[:place], *sizes, *self.shape[place + 1 :]))


def _bounds(size: int, start: Any, end: Any) -> Any:
    """Return the begin and the end of a part of a dimension."""
    first = 0 if start is None else start
    last = size if end is None or end > size else end
    first = max(0, first + size) if first < 0 else min(first, size)
    last = max(0, last + size) if last < 0 else last
    return first, max(first, last)


def part(self: Any, dim: Any, start: Any, end: Any, step: Any) -> Any:
    """Return every `step`-th element of a dimension from `start` to `end`."""
    rank = len(self.shape)
    place = dim % rank
    first, last = _bounds(self.shape[place], start, end)
    if first == 0 and last == self.shape[place] and step == 1:
        return self
    begin = tuple([first if d == place else 0 for d in range(rank)])
    behind = tuple([last if d == place else n for d, n in enumerate(self.shape)])
    steps = tuple([step if d == place else 1 for d in range(rank)])
    return ops.StridedSlice()(self, begin, behind, steps)


def part_replaced(base: Any, new: Any, dim: Any, start: Any, end: Any, step: Any) -> Any:
    """Return the tensor with a part of a dimension replaced."""
    place = dim % len(base.shape)
    size = base.shape[place]
    first, last = _bounds(size, start, end)
    new = ops.cast(new, base.dtype)
    if first == 0 and last == size and step == 1:
        return new
    if first == last:
        return base
    if step == 1:
        pieces = (part(base, place, 0, first, 1), new, part(base, place, last, size, 1))
        return ops.Concat(place)([piece for piece in pieces if piece.shape[place]])
    rows = ops.unstack(base, place)
    others = ops.unstack(new, place)
    chosen = [n for n in range(first, last, step)]
    return ops.Stack(place)([others[chosen.index(n)] if n in chosen else rows[n] for n in range(size)])


def selected(self: Any, dim: Any, index: Any) -> Any:
    """One place of a dimension, which is left out then."""
    place = dim % len(self.shape)
    at = index + self.shape[place] if index < 0 else index
    return reshaped(part(self, place, at, at + 1, 1), (*self.shape[:place], *self.shape[place + 1 :]))


def selected_replaced(base: Any, new: Any, dim: Any, index: Any) -> Any:
    """Return the tensor with one place of a dimension replaced."""
    place = dim % len(base.shape)
    at = index + base.shape[place] if index < 0 else index
    return part_replaced(base, ops.ExpandDims()(new, place), place, at, at + 1, 1)


def narrowed(self: Any, dim: Any, start: Any, length: Any) -> Any:
    """Return a part of a dimension that begins at a place in a tensor; one below 0 counts from the end."""
    first = ops.where(ops.Less()(start, 0), start + self.shape[dim], start)
    return mint.index_select(self, dim, ops.cast(counted(0, length, 1, None), INT64) + ops.cast(first, INT64))


def split_at(self: Any, split_size: Any, dim: Any) -> Any:
    """Split a dimension into parts: of one size, the last one of the rest, or of the sizes listed."""
    sizes = split_size if isinstance(split_size, int) else list(split_size)
    if isinstance(sizes, int) and sizes >= self.shape[dim]:
        return (self,)
    return ops.split(self, sizes, dim)


def chunks_of(self: Any, chunks: Any, dim: Any) -> Any:
    """Split a dimension into this number of parts, or fewer."""
    size = self.shape[dim]
    return split_at(self, (size + chunks - 1) // chunks, dim)


def joined(tensors: Any, dim: Any) -> Any:
    """Tensors one after another; empty vectors, which ATen takes beside any shape, are left out."""
    kept = [x for x in tensors if x.shape != (0,)] or [tensors[0]]
    return kept[0] if len(kept) == 1 else ops.Concat(dim)(kept)


def with_margins(self: Any, pad: Any, mode: Any, value: Any) -> Any:
    """Return the tensor with margins, pairs (before, after) from the last dimension on. Negative margins remove
    elements: in circular mode, too, before those that remain are repeated."""
    if mode not in ("constant", "circular"):
        return ops.pad(self, tuple(pad), mode)
    rank = len(self.shape)
    x = self
    for number in range(len(pad) // 2):
        before, behind = pad[2 * number], pad[2 * number + 1]
        dim = rank - 1 - number
        if before < 0 or behind < 0:
            x = part(x, dim, max(0, -before), x.shape[dim] + min(0, behind), 1)
    sides = tuple([max(0, n) for n in pad])
    if not any(sides):
        return x
    return ops.pad(x, sides, mode, 0 if value is None else value) if mode == "constant" else ops.pad(x, sides, mode)


def strided_parts(shape: Any, size: Any, stride: Any, begin: Any) -> Any:
    """Return how a tensor in row-major order has these strides: (the first element, the end and the step along each of
    its dimensions, the dimension of the result that each of them becomes, -1 if it is left out), None if it has not."""
    rank = len(shape)
    apart = [math.prod(shape[d + 1 :]) for d in range(rank)]
    firsts, ends, steps, owners = [], [], [1] * rank, [-1] * rank
    rest = begin
    for d in range(rank):
        firsts.append(rest // apart[d] if shape[d] > 1 else 0)
        rest = rest - firsts[d] * apart[d]
    ends = [first + 1 for first in firsts]
    for place in range(len(size)):
        if size[place] == 1:
            continue
        fits = [d for d in range(rank) if owners[d] < 0 and apart[d] > 0 and stride[place] % apart[d] == 0
                and firsts[d] + (size[place] - 1) * (stride[place] // apart[d]) < shape[d]]  # fmt: skip
        if not fits or stride[place] == 0:
            return None
        d = fits[0]
        owners[d], steps[d] = place, stride[place] // apart[d]
        ends[d] = firsts[d] + (size[place] - 1) * steps[d] + 1
    return (firsts, ends, steps, owners) if rest == 0 else None


def is_dense(size: Any, stride: Any) -> Any:
    """Return whether elements of these strides follow each other."""
    step = 1
    for d in range(len(size) - 1, -1, -1):
        if size[d] != 1 and stride[d] != step:
            return False
        step = step * size[d]
    return True


def strided(self: Any, size: Any, stride: Any, storage_offset: Any) -> Any:
    """Return the elements of a tensor in row-major order with other strides: successive ones, parts and permutations of
    dimensions, or any others by their places."""
    begin = storage_offset or 0
    count = math.prod(size)
    if is_dense(size, stride):
        if count == self.size:
            return reshaped(self, size)
        return reshaped(ops.Reshape()(self, (-1,))[begin : begin + count], size)
    found = strided_parts(self.shape, size, stride, begin)
    if found is None:
        return ops.Gather()(ops.Reshape()(self, (-1,)), strided_places(size, stride, begin), 0)
    firsts, ends, steps, owners = found
    piece = ops.StridedSlice()(self, tuple(firsts), tuple(ends), tuple(steps))
    kept = [d for d in range(len(owners)) if owners[d] >= 0]
    ordered = sorted(kept, key=lambda d: owners[d])
    left = ops.Reshape()(piece, tuple([piece.shape[d] for d in kept]))
    return reshaped(permuted(left, [kept.index(d) for d in ordered]), size)


def strided_places(size: Any, stride: Any, begin: Any) -> Any:
    """Return the places of strided elements in a row of all."""
    places = ops.Fill()(INT64, tuple(size), begin)
    for d in range(len(size)):
        along = ops.arange(0, size[d], 1) * stride[d]
        places = places + ops.Reshape()(ops.cast(along, INT64), (-1,) + (1,) * (len(size) - 1 - d))
    return places


def strided_replaced(base: Any, new: Any, size: Any, stride: Any, storage_offset: Any) -> Any:
    """Return the base with strided elements replaced."""
    begin, flat, parts = storage_offset or 0, ops.Reshape()(base, (-1,)), []
    if not is_dense(size, stride):
        found = strided_parts(base.shape, size, stride, begin)
        if found is not None:
            return parts_replaced(base, new, found)
        places = ops.Reshape()(strided_places(size, stride, begin), (-1,))
        return reshaped(mint.scatter(flat, 0, places, ops.Reshape()(new, (-1,))), base.shape)
    if new.size == base.size:
        return reshaped(new, base.shape)
    if begin > 0:
        parts.append(flat[:begin])
    parts.append(ops.Reshape()(new, (-1,)))
    if begin + new.size < base.size:
        parts.append(flat[begin + new.size :])
    return reshaped(ops.concat(parts, 0), base.shape)


def parts_replaced(base: Any, new: Any, found: Any) -> Any:
    """Return the base with the elements replaced that `strided_parts` has found."""
    firsts, ends, steps, owners = found
    kept = [d for d in range(len(owners)) if owners[d] >= 0]
    ordered = sorted(kept, key=lambda d: owners[d])
    left = reshaped(new, [new.shape[owners[d]] for d in ordered])
    value = permuted(left, [ordered.index(d) for d in kept])
    sizes = [(ends[d] - firsts[d] + steps[d] - 1) // steps[d] for d in range(len(owners))]
    value = ops.Reshape()(value, tuple(sizes))
    inner = [base]
    for d in range(len(owners) - 1):
        inner.append(part(inner[d], d, firsts[d], ends[d], steps[d]))
    for d in range(len(owners) - 1, -1, -1):
        value = part_replaced(inner[d], value, d, firsts[d], ends[d], steps[d])
    return value


def windows(self: Any, dimension: Any, size: Any, step: Any) -> Any:
    """Parts of `size` elements of a dimension, `step` apart, which lie along a new last dimension."""
    if not self.shape:
        return reshaped(self, (size,)) if size else ops.zeros((0,), self.dtype)
    place = dimension % len(self.shape)
    starts = [n for n in range(0, self.shape[place] - size + 1, step)]
    pieces = [ops.movedim(part(self, place, n, n + size, 1), place, -1) for n in starts]
    return ops.Stack(place)(pieces)


def windows_replaced(base: Any, new: Any, dimension: Any, size: Any, step: Any) -> Any:
    """Return the tensor with the elements of windows that do not overlap replaced."""
    place = dimension % len(base.shape)
    rows = ops.unstack(base, place)
    parts = [ops.unstack(window, -1) for window in ops.unstack(new, place)]
    return ops.Stack(place)([
        parts[n // step][n % step] if n // step < len(parts) and n % step < size else row for n, row in enumerate(rows)
    ])  # fmt: skip


def repeated_whole(self: Any, repeats: Any) -> Any:
    """Return the tensor repeated along each dimension, or not at all."""
    if 0 not in repeats:
        return ops.tile(self, repeats)
    rank = max(len(repeats), len(self.shape))
    sizes = [(1,) * (rank - len(each)) + tuple(each) for each in (self.shape, repeats)]
    return ops.zeros(tuple([n * m for n, m in zip(sizes[0], sizes[1], strict=True)]), self.dtype)


def resized(self: Any, size: Any) -> Any:
    """Return the first elements in another shape, and zeros after them if there are not enough."""
    flat, count = reshaped(self, (-1,)), math.prod(size)
    if count > self.size:
        flat = ops.Concat(0)((flat, ops.zeros((count - self.size,), self.dtype)))
    return reshaped(flat[:count], tuple(size))


def resized_back(base: Any, new: Any, size: Any) -> Any:
    """Return the tensor whose first elements are those of a tensor in another shape."""
    first = reshaped(new, (-1,))[: base.size]
    return reshaped(ops.Concat(0)((first, reshaped(base, (-1,))[first.size :])), base.shape)


SHAPES = (
    row("view.default _unsafe_view.default view_copy.default", "self, size", reshaped, as_before),
    row("reshape.default", "self, shape", reshaped, as_before),
    row("view_as.default reshape_as.default", "self, other",
        lambda self, other: reshaped(self, other.shape), as_before),
    row("expand.default", "self, size, -implicit=False", expanded, expanded_back),
    row("expand_copy.default", "self, size, -implicit=False", expanded),
    row("expand_as.default", "self, other", lambda self, other: expanded(self, other.shape),
        lambda base, new, other: expanded_back(base, new, other.shape)),
    row("broadcast_to.default", "self, size", expanded, expanded_back),
    row("broadcast_tensors.default", "tensors", spread_out),
    *(row(names, arguments, exchanged, lambda base, new, dim0, dim1: exchanged(new, dim0, dim1))
      for names, arguments in (("transpose.int swapdims.default", "self, dim0, dim1"),
                               ("swapaxes.default", "self, axis0, axis1"))),
    row("t.default numpy_T.default", "self", transposed, lambda base, new: transposed(new)),
    row("mT.default", "self", lambda self: exchanged(self, -2, -1), lambda base, new: exchanged(new, -2, -1)),
    row("mH.default adjoint.default matrix_H.default", "self", conjugate_transposed,
        lambda base, new: conjugate_transposed(new)),
    row("permute.default", "self, dims", permuted, permuted_back),
    row("movedim.int movedim.intlist moveaxis.int moveaxis.intlist", "self, source, destination", ops.movedim,
        lambda base, new, source, destination: ops.movedim(new, destination, source)),
    row("unsqueeze.default", "self, dim", lambda self, dim: ops.ExpandDims()(self, dim), as_before),
    row("squeeze.default", "self", squeezed, as_before),
    row("squeeze.dim squeeze.dims", "self, dim", squeezed, as_before),
    row("flatten.using_ints", "self, start_dim=0, end_dim=-1", flattened, as_before),
    row("unflatten.int", "self, dim, sizes", unflattened, as_before),
    row("_reshape_alias.default", "self, size, -stride", reshaped, as_before),
    row("as_strided.default", "self, size, stride, storage_offset=None", strided, strided_replaced),
    row("resize.default", "self, size, -memory_format=None", resized, resized_back),
    row("resize_as.default", "self, the_template, -memory_format=None",
        lambda self, other: resized(self, other.shape), lambda base, new, other: resized_back(base, new, other.shape)),
    row("ravel.default", "self", lambda self: reshaped(self, (-1,)), as_before),
    row("hstack.default", "tensors", lambda tensors: ops.hstack(tensors)),
    row("vstack.default", "tensors", lambda tensors: ops.vstack(tensors)),
    row("dstack.default", "tensors", lambda tensors: ops.dstack(tensors)),
    row("tensor_split.sections", "self, sections, dim=0", ops.tensor_split),
    row("diag_embed.default", "self, offset=0, dim1=-2, dim2=-1", ops.diag_embed),
    row("diag.default", "self, diagonal=0", mint.diag),
    row("fliplr.default", "self", lambda self: ops.flip(self, (1,))),
    row("reflection_pad1d.default reflection_pad2d.default reflection_pad3d.default", "self, padding",
        lambda self, padding: ops.pad(self, tuple(padding), "reflect")),
    row("replication_pad1d.default replication_pad2d.default replication_pad3d.default", "self, padding",
        lambda self, padding: ops.pad(self, tuple(padding), "replicate")),
    row("slice.Tensor", "self, dim=0, start=None, end=None, step=1", part, part_replaced),
    row("narrow.default", "self, dim, start, length", mint.narrow,
        lambda base, new, dim, start, length: part_replaced(base, new, dim, start, start + length, 1)),
    row("narrow.Tensor", "self, dim, start, length", narrowed),
    row("select.int", "self, dim, index", selected, selected_replaced),
    row("slice_scatter.default", "self, src, dim=0, start=None, end=None, step=1", part_replaced),
    row("select_scatter.default", "self, src, dim, index", selected_replaced),
    row("split.Tensor unsafe_split.Tensor split.sizes", "self, split_size, dim=0", split_at),
    row("split.default split_with_sizes.default unsafe_split_with_sizes.default", "self, split_sizes, dim=0", split_at),
    row("chunk.default unsafe_chunk.default", "self, chunks, dim=0", chunks_of),
    row("tensor_split.indices", "self, indices, dim=0",
        lambda self, indices, dim: ops.tensor_split(self, tuple(indices), dim)),
    *(each for dims, function in ((1, ops.atleast_1d), (2, ops.atleast_2d), (3, ops.atleast_3d))
      for each in (row(f"atleast_{dims}d.default", "self", function), row(f"atleast_{dims}d.Sequence", "tensors",
                   lambda tensors, function=function: [function(x) for x in tensors]))),
    *(row(f"{name}.{form}", f"self, {argument}", lambda self, parts, dim=dim: ops.tensor_split(
        self, parts if isinstance(parts, int) else tuple(parts), 0 if len(self.shape) == 1 else dim))
      for name, dim in (("hsplit", 1), ("vsplit", 0), ("dsplit", 2))
      for form, argument in (("int", "sections"), ("array", "indices"))),
    row("as_strided_scatter.default", "self, src, size, stride, storage_offset=None",
        lambda self, src, *rest: strided_replaced(self, ops.cast(src, self.dtype), *rest)),
    row("flipud.default", "self", lambda self: ops.flip(self, (0,))),
    row("column_stack.default", "tensors", lambda tensors: ops.column_stack(
        [x if x.shape else ops.Reshape()(x, (1,)) for x in tensors])),
    row("diagflat.default", "self, offset=0", ops.diagflat),
    row("diagonal_scatter.default", "self, src, offset=0, dim1=0, dim2=1", ops.diagonal_scatter),
    row("unbind.int", "self, dim=0", lambda self, dim: ops.unstack(self, dim)),
    row("cat.default concat.default", "tensors, dim=0", joined),
    row("stack.default", "tensors, dim=0", lambda tensors, dim: ops.Stack(dim)(tensors)),
    row("repeat.default", "self, repeats", lambda self, repeats: repeated_whole(self, tuple(repeats))),
    row("tile.default", "self, dims", lambda self, dims: repeated_whole(self, tuple(dims))),
    row("rot90.default", "self, k=1, dims=(0, 1)", ops.rot90),
    row("repeat_interleave.self_int", "self, repeats, dim=None, -output_size=None", ops.repeat_interleave),
    row("flip.default", "self, dims", lambda self, dims: ops.flip(self, tuple(dims))),
    row("roll.default", "self, shifts, dims=()",
        lambda self, shifts, dims: ops.roll(self, tuple(shifts), tuple(dims) if dims else None)),
    row("tril.default", "self, diagonal=0", ops.tril),
    row("triu.default", "self, diagonal=0", ops.triu),
    *(row(names, arguments, ops.diagonal,
          lambda base, new, *places: ops.diagonal_scatter(base, ops.cast(new, base.dtype), *places))
      for names, arguments in (("diagonal.default", "self, offset=0, dim1=0, dim2=1"),
                               ("linalg_diagonal.default", "A, offset=0, dim1=-2, dim2=-1"))),
    row("pad.default", "self, pad, mode='constant', value=None", with_margins),
    row("constant_pad_nd.default", "self, pad, value=0",
        lambda self, pad, value: with_margins(self, pad, "constant", value)),
    row("unfold.default", "self, dimension, size, step", windows, windows_replaced),
    row("pixel_shuffle.default", "self, upscale_factor", functional.pixel_shuffle),
    row("pixel_unshuffle.default", "self, downscale_factor", ops.pixel_unshuffle),
    row("channel_shuffle.default native_channel_shuffle.default", "self, groups", ops.channel_shuffle),
    row("meshgrid.indexing", "tensors, indexing",
        lambda tensors, indexing: ops.meshgrid(*tensors, indexing=indexing)),
    row("meshgrid.default", "tensors", lambda tensors: ops.meshgrid(*tensors, indexing="ij")),
)  # fmt: skip
"""Kinds of shapes and places."""


def same(self: Any) -> Any:
    """Return the tensor itself."""
    return self


def same_back(base: Any, new: Any, *others: Any) -> Any:
    """Return the values written into the tensor under its other name."""
    return new


def cast_back(base: Any, new: Any, *others: Any) -> Any:
    """Return the values written into a tensor under its name in another element type, which changes only if it is
    none."""
    return new if new.dtype == base.dtype else base


def nothing(*given: Any) -> Any:
    """Checks that the exporter has made are not made again."""
    return None


_TO = "-non_blocking=False, -copy=False, -memory_format=None"

BOOKKEEPING = (
    row("alias.default lift.default positive.default resolve_conj.default resolve_neg.default", "self", same,
        same_back),
    row("contiguous.default", "self, -memory_format=None", same, same_back),
    row("detach.default", "self", lambda self: ops.stop_gradient(self), same_back),
    row("clone.default", "self, -memory_format=None", same),
    row("lift_fresh_copy.default", "self", same),
    row("lift_fresh.default", "self", same, same_back),
    row("to.dtype", f"self, dtype, {_TO}", as_dtype, cast_back),
    row("to.device", f"self, -device, dtype, {_TO}", as_dtype, cast_back),
    row("to.dtype_layout", f"self, dtype=None, -layout=None, -device=None, -pin_memory=None, {_TO}",
        as_dtype, cast_back),
    row("to.other", f"self, other, {_TO}", lambda self, other: ops.cast(self, other.dtype), cast_back),
    row("_to_copy.default", "self, dtype=None, -layout=None, -device=None, -pin_memory=None, -non_blocking=False, "
        "-memory_format=None", as_dtype),
    row("type_as.default", "self, other", lambda self, other: ops.cast(self, other.dtype), cast_back),
    row("_assert_tensor_metadata.default",
        "-a, -size=None, -stride=None, -dtype=None, -device=None, -layout=None", nothing),
    row("_assert_scalar.default", "-self, -assert_msg", nothing),
    row("_assert_async.msg", "-self, -assert_msg", nothing),
    row("_assert_async.default", "-self", nothing),
    row("_print.default", "-s", nothing),
    row("sym_constrain_range.default sym_constrain_range_for_size.default", "-size, -min=None, -max=None", nothing),
)  # fmt: skip
"""Kinds that compute nothing."""
