"""Operations that the views of arrays, their indices and products are made of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mspc.ops.convolution.window import Window
from mspc.output.stablehlo.text import Content, ModuleText, Ref, Shape

Combine = str | Callable[[Content, Content], Content]
"""The name of an operation of two numbers, "" for the second one; or a function."""
_PRECISE = "[#stablehlo<precision HIGHEST>, #stablehlo<precision HIGHEST>]"


class Lowering(ModuleText):
    """Writes operations on contents; those that change nothing are left out."""

    def converted(self, x: Content, dtype: Any) -> Content:
        """Return the elements in another type; complex numbers become their real parts."""
        dtype = np.dtype(dtype)
        if x.dtype == dtype:
            return x
        if isinstance(x, np.ndarray):
            return (x.real if x.dtype.kind == "c" and dtype.kind != "c" else x).astype(dtype)
        if dtype.kind == "b":
            return self.compared("NE", x, self.uniform(0, x.dtype, x.shape))
        return self.emit("convert", (x,), (dtype, x.shape))

    def compared(self, direction: str, a: Content, b: Content) -> Content:
        """Return Bool: whether elements are in an order, EQ, NE, LT, LE, GT or GE."""
        kind = {"i": "SIGNED", "u": "UNSIGNED", "b": "UNSIGNED"}.get(a.dtype.kind, "FLOAT")
        return self.emit("compare", (a, b), (bool, a.shape), compare_type=f"#stablehlo<comparison_type {kind}>",
                         comparison_direction=f"#stablehlo<comparison_direction {direction}>")  # fmt: skip

    def uniform(self, number: Any, dtype: Any, shape: Shape) -> Content:
        """Return known elements that are all one number, in the memory of one."""
        return np.broadcast_to(np.asarray(number).astype(dtype), tuple(shape))

    def repeated(self, x: Content, shape: Shape) -> Content:
        """Return x broadcast to a shape."""
        if x.shape == tuple(shape):
            return x
        if isinstance(x, np.ndarray):
            return np.broadcast_to(x, tuple(shape))
        dims = range(len(shape) - len(x.shape), len(shape))
        return self.emit("broadcast_in_dim", (x,), (x.dtype, shape), broadcast_dimensions=dims)

    def reshaped(self, x: Content, shape: Shape) -> Content:
        if x.shape == tuple(shape):
            return x
        if isinstance(x, np.ndarray):
            return x.reshape(shape) if any(x.strides) else np.broadcast_to(x[(0,) * x.ndim], shape)
        return self.emit("reshape", (x,), (x.dtype, shape))

    def transposed(self, x: Content, order: Shape) -> Content:
        if list(order) == list(range(len(order))):
            return x
        return self.emit("transpose", (x,), (x.dtype, [x.shape[d] for d in order]), permutation=order)

    def sliced(self, x: Content, spans: Sequence[range]) -> Content:
        """Return the elements at these positions of each dimension, in ascending steps."""
        if all(span == range(n) for span, n in zip(spans, x.shape, strict=True)):
            return x
        return self.emit("slice", (x,), (x.dtype, [len(s) for s in spans]), limit_indices=[s[-1] + 1 for s in spans],
                         start_indices=[s.start for s in spans], strides=[s.step for s in spans])  # fmt: skip

    def written(self, x: Content, part: Content, spans: Sequence[range]) -> Content:
        """Return x with the elements at these positions replaced by a part of that shape."""
        if all(span == range(n) for span, n in zip(spans, x.shape, strict=True)):
            return part
        if all(s.step == 1 for s in spans):
            starts = [np.array(s.start, np.int32) for s in spans]
            return self.emit("dynamic_update_slice", (x, part, *starts), (x.dtype, x.shape))
        inside = np.zeros(x.shape, bool)
        inside[np.ix_(*spans)] = True
        low, high = [s.start for s in spans], [n - 1 - s[-1] for s, n in zip(spans, x.shape, strict=True)]
        spread = self.padded(part, low, high, 0, [s.step - 1 for s in spans])
        return self.emit("select", (inside, spread, x), (x.dtype, x.shape))

    def reversed(self, x: Content, axes: Shape) -> Content:
        return self.emit("reverse", (x,), (x.dtype, x.shape), dimensions=axes) if axes else x

    def padded(self, x: Content, low: Shape, high: Shape, number: Any, between: Shape = ()) -> Content:
        between = between or [0] * len(low)
        shape = [a + b + n + max(0, n - 1) * c for a, b, n, c in zip(low, high, x.shape, between, strict=True)]
        return self.emit("pad", (x, self.uniform(number, x.dtype, ())), (x.dtype, shape), edge_padding_low=low,
                         edge_padding_high=high, interior_padding=between)  # fmt: skip

    def joined(self, parts: Sequence[Content], axis: int) -> Content:
        shape = list(parts[0].shape)
        shape[axis] = sum(part.shape[axis] for part in parts)
        return parts[0] if len(parts) == 1 else self.emit("concatenate", parts, (parts[0].dtype, shape), dimension=axis)

    def combining(self, combine: Combine, dtype: Any) -> list[str]:
        """Return a region that combines two numbers."""
        with self.region((dtype, ()), (dtype, ())) as (lines, (a, b)):
            named = isinstance(combine, str) and combine
            self.emit("return", [self.emit(combine, (a, b), (dtype, ())) if named else combine(a, b) if combine else b])
        return lines

    def product(self, a: Content, b: Content, batch: Shape, summed: tuple[int, int]) -> Content:
        """Return the sums of products along one dimension of each, for each index of leading dimensions."""
        pairs = ((a, summed[0]), (b, summed[1]))
        rest = [n for x, own in pairs for d, n in enumerate(x.shape) if d not in (*batch, own)]
        lists = f"lhs_batching_dimensions = {[*batch]}, rhs_batching_dimensions = {[*batch]}, " if batch else ""
        lists += f"lhs_contracting_dimensions = [{summed[0]}], rhs_contracting_dimensions = [{summed[1]}]"
        return self.emit("dot_general", (a, b), (a.dtype, [*a.shape[: len(batch)], *rest]),
                         dot_dimension_numbers=f"#stablehlo.dot<{lists}>", precision_config=_PRECISE)  # fmt: skip

    def convolution(self, way: str, a: Content, b: Content, along: Sequence[Window], groups: int, shape: Shape) -> Any:
        """Return a convolution ("forward"), or its gradient in images or in weights, as `ops/convolution` has them."""
        turned, parts, ones = (1, 0, *range(2, len(shape))), 1, [1] * len(along)
        dilations, strides, base = [w.dilation for w in along], [w.stride for w in along], ones
        lengths, counts = (a.shape, shape) if way == "forward" else (b.shape if way == "weight" else shape, a.shape)
        every = list(zip(along, lengths[2:], counts[2:], strict=True))
        pads = [(w.before, (count - 1) * w.stride + w.extent - w.before - n) for w, n, count in every]
        if way == "image":
            b = self.reshaped(b, (groups, b.shape[0] // groups, *b.shape[1:]))
            b = self.transposed(b, (0, 2, 1, *range(3, len(shape) + 1)))
            b = self.reversed(self.reshaped(b, (b.shape[0] * b.shape[1], *b.shape[2:])), range(2, len(shape)))
            pads = [(w.extent - 1 - w.before, n + w.before - (count - 1) * w.stride - 1) for w, n, count in every]
            base, strides = strides, ones
        elif way == "weight":
            a, b, parts, groups = self.transposed(b, turned), self.transposed(a, turned), groups, 1
            shape, dilations, strides = (shape[1], shape[0], *shape[2:]), strides, dilations
        places = ", ".join(map(str, range(len(along))))
        made = self.emit(
            "convolution", (a, b), (a.dtype, shape), batch_group_count=parts, feature_group_count=groups,
            window_strides=strides, padding=np.array(pads, np.int64), lhs_dilation=base, rhs_dilation=dilations,
            dimension_numbers=f"#stablehlo.conv<[b, f, {places}]x[o, i, {places}]->[b, f, {places}]>",
            precision_config=_PRECISE,
        )  # fmt: skip
        return self.transposed(made, turned) if way == "weight" else made

    def gathered(self, x: Content, indices: Content, dims: Shape, at: int) -> Content:
        """Return x[..., indices, ...] of indices [..., dims]: along `dims`, whose places come at dimension `at`."""
        front, rest = indices.shape[:-1], [n for d, n in enumerate(x.shape) if d not in dims]
        shape = [*rest[:at], *front, *rest[at:]]
        offsets = [d for d in range(len(shape)) if not at <= d < at + len(front)]
        numbers = (f"#stablehlo.gather<offset_dims = {offsets}, collapsed_slice_dims = {sorted(dims)}, "
                   f"start_index_map = {list(dims)}, index_vector_dim = {len(front)}>")  # fmt: skip
        sizes = [1 if d in dims else n for d, n in enumerate(x.shape)]
        return self.emit("gather", (x, indices), (x.dtype, shape), dimension_numbers=numbers, slice_sizes=sizes)

    def scattered(self, x: Content, indices: Content, updates: Content, dims: Shape, at: int, combine: Combine) -> Any:
        """Return x with updates, shaped as `gathered` returns elements, combined with its elements at places."""
        front = len(indices.shape) - 1
        windows = [d for d in range(len(updates.shape)) if not at <= d < at + front]
        numbers = (f"#stablehlo.scatter<update_window_dims = {windows}, inserted_window_dims = {sorted(dims)}, "
                   f"scatter_dims_to_operand_dims = {list(dims)}, index_vector_dim = {front}>")  # fmt: skip
        return self.emit("scatter", (x, indices, updates), (x.dtype, x.shape), scatter_dimension_numbers=numbers,
                         regions=[self.combining(combine, x.dtype)])  # fmt: skip

    def chosen(self, numbers: Shape, branches: Sequence[Callable[[], Sequence[Content]]]) -> list[Ref]:
        """Return the results of the branch whose number is entry [rank] of `numbers`."""
        place = self.converted(self.emit("replica_id", (), (np.uint32, ())), np.int32)
        found = self.emit("dynamic_slice", (np.array(numbers, np.int32), place), (np.int32, (1,)), slice_sizes=[1])
        regions, results = list[list[str]](), list[Ref]()
        for branch in branches:
            with self.region() as (lines, _):
                results = [self.ref(each) for each in branch()]
                self.emit("return", results)
            regions.append(lines)
        made = self.emit("case", [self.reshaped(found, ())], *((x.dtype, x.shape) for x in results), regions=regions)
        return made if len(results) != 1 else [made]
