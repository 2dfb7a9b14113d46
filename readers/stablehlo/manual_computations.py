"""Manual computations, as `jax.shard_map` writes them: the bodies of all devices at once, as one program.

A value of a body has a leading dimension for each manual axis, before its own. Sharded along these, a rank holds the
value of its device, and a collective is a reduction or a move along them. A value that is equal along an axis has size
1 there, as a `BroadcastView` or `Known` numbers.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from functools import partial
from typing import Any, Protocol

import numpy as np

from mspc.ir.diagnostics import MspcError
from mspc.ir.late_dataclass import dataclass
from mspc.ir.layout import NamedLayout
from mspc.ir.types import TensorType
from mspc.mindspore_api import ops
from mspc.readers.stablehlo.emitter import (
    LARGEST_FOLDED,
    BroadcastView,
    DeviceSlices,
    HloEmitter,
    Known,
    attribute,
    tensor,
)
from mspc.readers.stablehlo.kinds.all_kinds import KINDS, kind_of, name_of
from mspc.readers.stablehlo.kinds.contractions import dot_dimensions
from mspc.readers.stablehlo.kinds.exchanges import reduction_of, rows_in
from mspc.readers.stablehlo.kinds.indexing import GATHER_DIMENSIONS, SCATTER_DIMENSIONS, index_dimensions
from mspc.readers.stablehlo.kinds.kind import integers, rows
from mspc.readers.stablehlo.kinds.scalar_kinds import ELEMENTWISE_KINDS, bounded
from mspc.readers.stablehlo.kinds.shapes import slice_limits
from mspc.readers.stablehlo.module import HloModule, HloOperation, HloRegion, Words
from mspc.readers.stablehlo.shardings import finer_axes, finest_mesh, layout_of, tiles_of

Sizes = tuple[int, ...]
Dims = Sequence[Sequence[str]]
"""Names of the axes that shard each dimension."""


@dataclass(frozen=True)
class ManualAxes:
    """The leading dimensions of values. mesh: names and sizes of all axes. names: those of the leading dimensions."""

    mesh: tuple[tuple[str, int], ...]
    names: tuple[str, ...]

    @property
    def sizes(self) -> Sizes:
        return tuple(dict(self.mesh)[name] for name in self.names)

    def places(self, devices: Any) -> Any:
        """Return the numbers of devices among the leading dimensions, -1 for those elsewhere on the other axes."""
        every = np.unravel_index(devices, [n for _, n in self.mesh])
        at = {name: own for (name, _), own in zip(self.mesh, every, strict=True)}
        found = np.ravel_multi_index([at[name] for name in self.names], self.sizes)
        return np.where(sum(at[name] for name, _ in self.mesh if name not in self.names) == 0, found, -1)

    def devices(self) -> Any:
        """Return the numbers of devices by leading dimensions. Raise MspcError if other axes have several devices."""
        if any(n > 1 and name not in self.names for name, n in self.mesh):
            raise MspcError("the number of a device is read in a computation of which some axes are not manual")
        every = np.arange(math.prod(n for _, n in self.mesh)).reshape([n for _, n in self.mesh])
        order = [[name for name, _ in self.mesh].index(name) for name in self.names]
        rest = [d for d in range(len(self.mesh)) if d not in order]
        return every.transpose((*order, *rest)).reshape(self.sizes)


class ManualScope(Protocol):
    """The parts of a walk that manual computations read."""

    e: HloEmitter
    module: HloModule
    ranks: int
    manual: ManualAxes | None
    shardings: dict[str, Any]

    def inner(self) -> ManualScope:
        """Return the walk of a region in this one."""

    def in_layout(self, value: Any, sharding: Any) -> Any:
        """Return a value constrained to a sharding."""

    def run(self, region: HloRegion, given: Sequence[Any]) -> list[Any]:
        """Return the results of a region."""


# Leading dimensions of values.


def own_leading(e: HloEmitter, value: Any, count: int) -> Sizes:
    """Return the sizes of a value's leading dimensions, 1 along which it is equal."""
    return (value.base.shape if isinstance(value, Known) else e.shape_of(_inner(value)))[:count]


def _inner(value: Any) -> Any:
    return value.value if isinstance(value, BroadcastView) else value


def with_leading(e: HloEmitter, value: Any, sizes: Sizes) -> Any:
    """Return a value with these sizes of leading dimensions, along which it has them or is equal."""
    shape = (*sizes, *e.shape_of(value)[len(sizes) :])
    if isinstance(value, Known):
        base = value.base
        for d, n in enumerate(base.shape[: len(sizes)]):
            if n > 1 and (base == base.take([0], d)).all():
                base = base.take([0], d)
        return Known(base, shape)
    inner = _inner(value)
    return inner if e.shape_of(inner) == shape else BroadcastView(inner, shape)


def without_leading(e: HloEmitter, value: Any, count: int) -> Any:
    """Return the value of one device, if all have the same."""
    shape = e.shape_of(value)[count:]
    if isinstance(value, Known):
        return Known(value.base.reshape(value.base.shape[count:]), shape)
    inner = _inner(value)
    return e.spread(e.reshaped(inner, e.shape_of(inner)[count:]), shape)


def equal_on(e: HloEmitter, value: Any, sizes: Sizes) -> Any:
    """Return a value of one device as that of all."""
    ones, shape = (1,) * len(sizes), (*sizes, *e.shape_of(value))
    if isinstance(value, Known):
        return Known(value.base.reshape(ones + value.base.shape), shape)
    inner = _inner(value)
    return with_leading(e, BroadcastView(e.reshaped(inner, ones + e.shape_of(inner)), shape), sizes)


def entered(walk: ManualScope, x: Any, dims: Dims, outer: int) -> Any:
    """Return the slices of a global value by leading dimensions. outer: the number of those that it has already."""
    e, manual = walk.e, walk.manual
    assert manual is not None
    shape, size_of = e.shape_of(x), dict(manual.mesh)
    if isinstance(x, Known) and 1 < x.base.size and math.prod(shape) <= LARGEST_FOLDED:
        x = Known(np.broadcast_to(x.base, shape), shape)
    parts, at, rest = list(shape[:outer]), dict[str, int](), list[int]()
    for n, names in zip(shape[outer:], dims, strict=True):
        for name in names:
            at[name] = len(parts)
            parts.append(size_of[name])
        rest.append(len(parts))
        parts.append(n // math.prod(size_of[name] for name in names))
    new = manual.names[outer:]
    x = e.transposed(e.reshaped(x, parts), (*range(outer), *(at[name] for name in new if name in at), *rest))
    ones = [size_of[name] if name in at else 1 for name in new]
    shape = (*shape[:outer], *ones, *(parts[d] for d in rest))
    full = (*shape[:outer], *manual.sizes[outer:], *(parts[d] for d in rest))
    x = e.reshaped(x, shape)
    return _on_its_ranks(walk, Known(x.base, full) if isinstance(x, Known) else e.spread(x, full))


def _on_its_ranks(walk: ManualScope, value: Any) -> Any:
    """Return a value with each device's slice on its rank."""
    e, manual = walk.e, walk.manual
    if walk.ranks == 1 or isinstance(value, BroadcastView | Known) or manual is None:
        return value
    names = [name for name, _ in manual.mesh]
    axes = [len(names) - 1 - names.index(name) for name in manual.names]
    rest = [-1] * (len(e.shape_of(value)) - len(axes))
    return e.constrained(value, NamedLayout(tuple(n for _, n in manual.mesh), tuple(names), (*axes, *rest)))


def left(walk: ManualScope, x: Any, dims: Dims, outer: int) -> Any:
    """Return the global value of slices by leading dimensions. Along axes that shard nothing the first one is taken."""
    e, manual = walk.e, walk.manual
    assert manual is not None
    x, count = _on_its_ranks(walk, x), len(manual.names)
    used = {name for names in dims for name in names}
    own = own_leading(e, x, count)
    sizes = tuple(size if name in used else n for name, size, n in zip(manual.names, manual.sizes, own, strict=True))
    x = with_leading(e, x, (*own[:outer], *sizes[outer:]))
    shape = e.shape_of(x)
    end = tuple(1 if outer <= d < count and manual.names[d] not in used else n for d, n in enumerate(shape))
    x = e.whole(e.part(x, (0,) * len(shape), end))
    order, merged = list(range(outer)), list(own[:outer])
    for d, names in enumerate(dims):
        order += [*(manual.names.index(name) for name in names), count + d]
        merged.append(shape[count + d] * math.prod(dict(manual.mesh)[name] for name in names))
    order = [*(d for d in range(outer, count) if d not in order), *order]
    return with_leading(e, e.reshaped(e.transposed(x, order), merged), manual.sizes[:outer])


# Operations.


def of_devices(walk: ManualScope, operation: HloOperation, given: Sequence[Any]) -> Sequence[Any]:
    """Return the results of an operation of every device."""
    e, manual, name = walk.e, walk.manual, name_of(operation)
    assert manual is not None
    if name in COLLECTIVES:
        return [COLLECTIVES[name](e, operation, x, manual) for x in given]
    if name in ("partition_id", "replica_id"):
        base = manual.devices() if name == "partition_id" else np.zeros(manual.sizes)
        return [with_leading(e, Known(base.astype(tensor(operation.types[0]).dtype.numpy), manual.sizes), manual.sizes)]
    count, kind = len(manual.names), kind_of(operation)
    assert kind is not None, "kinds were checked before"
    own = tuple(map(max, zip(*(own_leading(e, x, count) for x in given), strict=True))) or (1,) * count
    given = [with_leading(e, x, own) for x in given]
    if math.prod(own) == 1:
        found = kind(e, operation, [without_leading(e, x, count) for x in given])
        return [equal_on(e, x, manual.sizes) for x in found]
    made = with_leading_types(operation, own)
    operands = LIFTS[name](e, made, given, own) if name in LIFTS else given if name in SAME else None
    if operands is None:
        found = _one_by_one(e, operation, given, own, kind)
    else:
        found = (KINDS[name_of(made)])(e, made, operands)
    return [with_leading(e, x, manual.sizes) for x in found]


def with_leading_types(operation: HloOperation, sizes: Sizes) -> HloOperation:
    """Return a copy of an operation whose results have these leading dimensions, too."""
    made = copy(operation)
    made.attributes, made.entries, made.operand_types = {**operation.attributes}, [*operation.entries], []
    made.types = [TensorType(tensor(type).dtype, (*sizes, *tensor(type).shape)) for type in operation.types]
    return made


def _one_by_one(e: HloEmitter, operation: HloOperation, given: Sequence[Any], own: Sizes, kind: Any) -> Sequence[Any]:
    """Return the results of an operation that is emitted for each device by itself."""
    results: list[Sequence[Any]] = []
    for place in np.ndindex(*own):
        ends = [(*(p + 1 for p in place), *e.shape_of(x)[len(own) :]) for x in given]
        parts = [e.part(x, (*place, *[0] * (len(end) - len(own))), end) for x, end in zip(given, ends, strict=True)]
        results.append(kind(e, operation, [without_leading(e, x, len(own)) for x in parts]))
    found: list[Any] = []
    for each in zip(*results, strict=True):
        shape = e.shape_of(each[0])
        joined = e.call(ops.Concat(0), tuple(e.whole(e.reshaped(e.whole(x), (1, *shape))) for x in each))
        found.append(e.reshaped(joined, (*own, *shape)))
    return found


Lift = Callable[[HloEmitter, HloOperation, Sequence[Any], Sizes], "Sequence[Any] | None"]
"""Gives an operation leading dimensions, and returns its operands; None if it has none of this form."""


def _set(*places: tuple[str, tuple[str, ...], bool]) -> Lift:
    """Return the lift of attributes: (name, other names, whether they list all dimensions)."""

    def lift(e: HloEmitter, made: HloOperation, given: Sequence[Any], own: Sizes) -> Sequence[Any] | None:
        n = len(own)
        for name, others, has_all in places:
            dims = integers(made, name, *others)
            made.attributes[name] = [*(range(n) if has_all else ()), *(d + n for d in dims)]
        inits = [each for each in made.entries if isinstance(each, int)] or range(len(given) // 2, len(given))
        return _with_numbers(e, given, inits if name_of(made) == "reduce" else (), n)

    return lift


def _with_numbers(e: HloEmitter, given: Sequence[Any], at: Sequence[int], count: int) -> Sequence[Any] | None:
    """Return operands of which some are numbers of shape (); None if devices have different ones."""
    found = list(given)
    for i in at:
        if math.prod(own_leading(e, given[i], count)) > 1:
            return None
        found[i] = without_leading(e, with_leading(e, given[i], (1,) * count), count)
    return found


def _one_dimension(e: HloEmitter, made: HloOperation, given: Sequence[Any], own: Sizes) -> Sequence[Any]:
    for name in ("dim", "dimension"):
        if made.attributes.get(name, -1) >= 0:
            made.attributes[name] += len(own)
    return given


def _sliced(e: HloEmitter, made: HloOperation, given: Sequence[Any], own: Sizes) -> Sequence[Any]:
    begin, end, step = slice_limits(made)
    made.entries = [[*((0, n, 1) for n in own), *zip(begin, end, step, strict=True)]]
    return given


def _padded(e: HloEmitter, made: HloOperation, given: Sequence[Any], own: Sizes) -> Sequence[Any] | None:
    none = [0] * (len(e.shape_of(given[0])) - len(own))
    for name, other in (("low", "edge_padding_low"), ("high", "edge_padding_high"), ("interior", "interior_padding")):
        made.attributes[name] = [0] * len(own) + list(integers(made, name, other, default=none))
    return _with_numbers(e, given, (1,), len(own))


def _windows(e: HloEmitter, made: HloOperation, given: Sequence[Any], own: Sizes) -> Sequence[Any] | None:
    rank = len(e.shape_of(given[0])) - len(own)
    for name in ("window_dimensions", "window_strides", "base_dilations", "window_dilations"):
        if name in made.attributes:
            made.attributes[name] = [*[1] * len(own), *integers(made, name)]
    pads = rows(attribute(made, "padding"), rank)
    made.attributes["padding"] = [*[[0, 0]] * len(own), *map(list, pads)]
    first = 2 if name_of(made) == "select_and_scatter" else len(given) // 2
    return _with_numbers(e, given, range(first, len(given)), len(own))


def _product(e: HloEmitter, made: HloOperation, given: Sequence[Any], own: Sizes) -> Sequence[Any]:
    n = len(own)
    dims = dot_dimensions(made, len(e.shape_of(given[0])) - n)
    made.name = "stablehlo.dot_general"
    made.attributes.pop("dot_dimension_numbers", None)
    first, second, *summed = ([d + n for d in each] for each in dims)
    made.attributes |= {"batching_dims": ([*range(n), *first], [*range(n), *second]), "contracting_dims": (*summed,)}
    return [with_leading(e, e.whole(x), own) for x in given]


def _indexed(key: str, names: Sequence[str], e: HloEmitter, made: HloOperation, given: Sequence[Any], own: Sizes,
             ) -> Sequence[Any]:  # fmt: skip
    *lists, index_dim = index_dimensions(made, key, names)
    made.attributes.pop(key)
    n = len(own)
    for k, (name, dims) in enumerate(zip(names, lists, strict=True)):
        made.attributes[name] = [*(range(n) if k in (2, 3) else ()), *(d + n for d in dims)]
    made.attributes["index_vector_dim"] = index_dim + n
    if "slice_sizes" in made.attributes:
        made.attributes["slice_sizes"] = [*[1] * n, *integers(made, "slice_sizes")]
    return [e.whole(x) for x in given]


def _at_starts(first: int, e: HloEmitter, made: HloOperation, given: Sequence[Any], own: Sizes) -> Sequence[Any]:
    """Lift a dynamic slice or its update; if devices have different starts, it is a gather or a scatter."""
    n, shape = len(own), e.shape_of(given[0])
    plain = _with_numbers(e, given, range(first, len(given)), n)
    sizes = e.shape_of(given[1])[n:] if first == 2 else integers(made, "sizes", "slice_sizes")
    made.attributes["sizes"] = [*own, *sizes]
    if plain is not None:
        zero = e.number(0, e.type_of(plain[first]).dtype)
        return [*plain[:first], *[zero] * n, *plain[first:]]
    starts: list[Any] = []
    for start, most, size in zip(given[first:], shape[n:], sizes, strict=True):
        starts.append(e.whole(e.reshaped(e.whole(bounded(e, start, most - size)), (*own, 1))))
    index = starts[0] if len(starts) == 1 else e.call(ops.Concat(n), tuple(starts))
    lead, rest = list(range(n)), list(range(n, len(shape)))
    names = SCATTER_DIMENSIONS if first == 2 else GATHER_DIMENSIONS
    made.attributes |= dict(zip(names, (rest, [], lead, lead, rest), strict=True))
    made.attributes |= {"index_vector_dim": n, "slice_sizes": [*[1] * n, *sizes]}
    made.name = "stablehlo.scatter" if first == 2 else "stablehlo.gather"
    if first == 1:
        return [e.whole(given[0]), index]
    region, last = HloRegion(), HloOperation("stablehlo.return", made.place)
    region.arguments, region.operations, last.operands = ["%a", "%b"], [last], ["%b"]
    made.regions = [region]
    return [e.whole(given[0]), index, e.whole(given[1])]


def _with_one_condition(e: HloEmitter, made: HloOperation, given: Sequence[Any], own: Sizes) -> Sequence[Any]:
    """Lift an operation whose operands may be single numbers."""
    shape, found = tensor(made.types[0]).shape, list[Any]()
    for x in given:
        if len(e.shape_of(x)) < len(shape):
            held = own_leading(e, x, len(own)) + (1,) * (len(shape) - len(own))
            x = Known(x.base.reshape(held), shape) if isinstance(x, Known) else e.spread(
                e.reshaped(_inner(x), held), shape)  # fmt: skip
        found.append(x)
    return found


_DIMS = ("dims", ("broadcast_dimensions", "permutation", "dimensions"))
LIFTS: Mapping[str, Lift] = {
    "broadcast_in_dim": _set((*_DIMS, True)), "transpose": _set((*_DIMS, True)), "reverse": _set((*_DIMS, False)),
    "reduce": _set(("dimensions", (), False)), "concatenate": _one_dimension, "sort": _one_dimension,
    "slice": _sliced, "pad": _padded, "reduce_window": _windows, "select_and_scatter": _windows,
    "dot_general": _product, "dot": _product, "select": _with_one_condition, "clamp": _with_one_condition,
    "gather": partial(_indexed, "dimension_numbers", GATHER_DIMENSIONS),
    "scatter": partial(_indexed, "scatter_dimension_numbers", SCATTER_DIMENSIONS),
    "dynamic_slice": partial(_at_starts, 1), "dynamic_update_slice": partial(_at_starts, 2),
}  # fmt: skip
SAME = frozenset((*ELEMENTWISE_KINDS, "reshape", "cholesky", "triangular_solve", "fft", "map", "chlo.top_k"))
"""Operations that have no attribute with a dimension."""


# Collectives.


class _Groups:
    """Groups of devices by leading dimensions. order: the dimensions along which devices of a group lie, in the order
    of the devices. If they lie along none, leading dimensions are the groups and the devices in them meanwhile."""

    def __init__(self, e: HloEmitter, operation: HloOperation, manual: ManualAxes) -> None:
        self.e, self.sizes = e, manual.sizes
        self.device_sizes = manual.sizes
        given = rows_in(attribute(operation, "replica_groups", default=[]))
        every = math.prod(n for _, n in manual.mesh)
        if not any(given) or max(n for row in given for n in row) >= every:
            given = [list(range(every))]
        if len({len(row) for row in given}) > 1:
            raise MspcError(f"{operation.name} has groups of different sizes")
        found = manual.places(np.array(given))
        self.members = found[(found >= 0).all(1)]
        self.count = self.members.shape[1]
        if sorted(self.members.reshape(-1)) != list(range(math.prod(self.sizes))):
            raise MspcError(f"{operation.name} has groups that are not along the manual axes {', '.join(manual.names)}")
        order = self._order()
        self.is_aligned = order is not None
        self.sizes = self.sizes if self.is_aligned else self.members.shape
        self.order: Sizes = (1,) if order is None else order
        self.n = len(self.sizes)

    def _order(self) -> Sizes | None:
        at = np.stack(np.unravel_index(self.members, self.sizes), -1)
        varying = [d for d in range(len(self.sizes)) if (at[:, :, d] != at[:, :1, d]).any()]
        for order in itertools.permutations(varying):
            sizes = [self.sizes[d] for d in order]
            grid = np.stack(np.unravel_index(np.arange(self.count), sizes), -1) if sizes else np.zeros((self.count, 0))
            if math.prod(sizes) == self.count and (at[:, :, list(order)] == grid).all():
                return order
        return None

    def collect(self, x: Any) -> Any:
        """Return the values of each group's devices along a dimension after the leading ones."""
        e, n = self.e, self.n
        if not self.is_aligned:
            x = self._moved(x, self.members.reshape(-1), self.sizes)
        own, local = own_leading(e, x, n), e.shape_of(x)[n:]
        sizes = [self.sizes[d] if d in self.order else m for d, m in enumerate(own)]
        x = e.whole(with_leading(e, x, tuple(sizes)))
        rest = [d for d in range(n) if d not in self.order]
        x = e.transposed(x, (*rest, *self.order, *range(n, n + len(local))))
        return e.reshaped(x, (*(1 if d in self.order else sizes[d] for d in range(n)), self.count, *local))

    def spread(self, y: Any, at: int) -> Any:
        """Return for each device the value with its number in the group along a dimension."""
        e, n, shape = self.e, self.n, self.e.shape_of(y)
        others = [d for d in range(n, len(shape)) if d != at]
        own = own_leading(e, y, n)
        y = e.whole(with_leading(e, y, own))
        rest = [d for d in range(n) if d not in self.order]
        parts = [*(own[d] for d in rest), *(self.sizes[d] for d in self.order), *(shape[d] for d in others)]
        y = e.reshaped(e.transposed(y, (*rest, *self.order, at, *others)), parts)
        axes = [*rest, *self.order]
        y = e.transposed(y, (*(axes.index(d) for d in range(n)), *range(n, n + len(others))))
        return self.back(BroadcastView(y, (*self.sizes, *e.shape_of(y)[n:])))

    def back(self, y: Any) -> Any:
        """Return the result of a collective by the leading dimensions of devices."""
        y = with_leading(self.e, y, self.sizes)
        return y if self.is_aligned else self._moved(y, np.argsort(self.members.reshape(-1)), self.device_sizes)

    def _moved(self, x: Any, places: Any, sizes: Sizes) -> Any:
        """Return the values of devices in another order, by other leading dimensions."""
        e, count = self.e, len(self.device_sizes if sizes is self.sizes else self.sizes)
        shape = e.shape_of(x)
        flat = e.reshaped(e.whole(with_leading(e, x, shape[:count])), (len(places), *shape[count:]))
        return e.reshaped(e.call(ops.Gather(), flat, e.constant(places), 0), (*sizes, *shape[count:]))

    def combined(self, operation: HloOperation, y: Any) -> Any:
        """Return what `collect` gave, reduced by the region of an operation."""
        n, type = self.n, self.e.type_of(y)
        name, dtype = reduction_of(self.e, operation), type.dtype
        lowest, highest = (-np.inf, np.inf) if dtype.is_float else (0, 1)
        if dtype.is_integer:
            lowest, highest = np.iinfo(dtype.numpy).min, np.iinfo(dtype.numpy).max
        nothing = {"add": 0, "or": 0, "multiply": 1, "maximum": lowest, "minimum": highest, "and": -1}[name]
        made = HloOperation("stablehlo.reduce", operation.place)
        made.regions, made.attributes = operation.regions, {"dimensions": [n]}
        made.types = [TensorType(dtype, (*type.shape[:n], *type.shape[n + 1 :]))]
        init = Known(np.array(nothing).astype(dtype.numpy), ())
        return KINDS["reduce"](self.e, made, [y, init])[0]


def _all_reduced(e: HloEmitter, operation: HloOperation, x: Any, manual: ManualAxes) -> Any:
    groups = _Groups(e, operation, manual)
    return groups.back(groups.combined(operation, groups.collect(x)))


def _all_gathered(e: HloEmitter, operation: HloOperation, x: Any, manual: ManualAxes) -> Any:
    groups = _Groups(e, operation, manual)
    to = groups.n + attribute(operation, "all_gather_dim", default=0)
    return groups.back(_joined(e, groups.collect(x), groups.n, to))


def _joined(e: HloEmitter, y: Any, at: int, to: int) -> Any:
    """Return slices along a dimension as one along another, which is `to` without the first."""
    shape = e.shape_of(y)
    others = [d for d in range(len(shape)) if d != at]
    y = e.transposed(e.whole(y), (*others[:to], at, *others[to:]))
    return e.reshaped(y, [shape[d] * (shape[at] if k == to else 1) for k, d in enumerate(others)])


def _divided(e: HloEmitter, y: Any, at: int, count: int) -> Any:
    shape = e.shape_of(y)
    return e.reshaped(y, (*shape[:at], count, shape[at] // count, *shape[at + 1 :]))


def _reduce_scattered(e: HloEmitter, operation: HloOperation, x: Any, manual: ManualAxes) -> Any:
    groups = _Groups(e, operation, manual)
    at = groups.n + attribute(operation, "scatter_dimension", default=0)
    return groups.spread(_divided(e, groups.combined(operation, groups.collect(x)), at, groups.count), at)


def _exchanged(e: HloEmitter, operation: HloOperation, x: Any, manual: ManualAxes) -> Any:
    groups = _Groups(e, operation, manual)
    n = groups.n
    to, source = (attribute(operation, name, default=0) for name in ("concat_dimension", "split_dimension"))
    y = _divided(e, groups.collect(x), n + 1 + source, groups.count)
    rest = [d for d in range(n, len(e.shape_of(y))) if d != n + 1 + source]
    y = e.transposed(e.whole(y), (*range(n), n + 1 + source, *rest))
    return groups.spread(_joined(e, y, n + 1, n + 1 + to), n)


def _permuted(e: HloEmitter, operation: HloOperation, x: Any, manual: ManualAxes) -> Any:
    """Return the tensors of the devices that send to each one, zeros if none does."""
    name = "source_target_pairs" if name_of(operation) == "collective_permute" else "replica_groups"
    pairs = [(row[0], to) for row in rows_in(attribute(operation, name, default=[])) for to in (
        row[1:] if name == "source_target_pairs" else row)]  # fmt: skip
    places = [manual.places(np.array([pair[k] for pair in pairs], int)) for k in (0, 1)]
    sources = np.full(math.prod(manual.sizes), -1)
    sources[places[1][places[1] >= 0]] = places[0][places[1] >= 0]
    sizes, n, local = manual.sizes, len(manual.sizes), e.shape_of(x)[len(manual.sizes) :]
    at = np.indices(sizes)
    of = np.stack(np.unravel_index(np.maximum(sources, 0), sizes)).reshape(at.shape)
    receives = (sources >= 0).reshape(sizes)
    for d in range(n):  # along one axis alone, if so
        first = tuple(slice(None) if k == d else slice(0, 1) for k in range(n))
        alike = ((of[d] == of[d][first]) | ~receives).all() and (receives == receives[first]).all()
        if alike and all(((of[k] == at[k]) | ~receives).all() for k in range(n) if k != d):
            own = tuple(sizes[k] if k == d else m for k, m in enumerate(own_leading(e, x, n)))
            found = e.call(ops.Gather(), e.whole(with_leading(e, x, own)), e.constant(of[d][first].reshape(-1)), d)
            receives = receives[first]
            break
    else:
        flat = e.reshaped(e.whole(with_leading(e, x, sizes)), (len(sources), *local))
        found = e.reshaped(e.call(ops.Gather(), flat, e.constant(np.maximum(sources, 0)), 0), (*sizes, *local))
    if not receives.all():
        zero = e.constant(np.zeros((), e.type_of(x).dtype.numpy))
        found = e.call(ops.Select(), e.constant(receives.reshape((*receives.shape, *[1] * len(local)))), found, zero)
    return with_leading(e, found, sizes)


COLLECTIVES: Mapping[str, Callable[[HloEmitter, HloOperation, Any, ManualAxes], Any]] = {
    "all_reduce": _all_reduced, "all_gather": _all_gathered, "reduce_scatter": _reduce_scattered,
    "all_to_all": _exchanged, "collective_permute": _permuted, "collective_broadcast": _permuted,
}  # fmt: skip


# Computations.


def run_manual(walk: ManualScope, operation: HloOperation, given: Sequence[Any]) -> Sequence[Any]:
    """Return the results of `sdy.manual_computation`."""
    shardings = [_shardings(operation, name) for name in ("in_shardings", "out_shardings")]
    axes = attribute(operation, "manual_axes", default=[])
    axes = axes.entries[-1] if isinstance(axes, Words) and axes.entries else axes
    mesh = next((each.entries[0].name for each in itertools.chain(*shardings)), "")
    outer = walk.manual.names if walk.manual is not None else ()
    named = walk.module.meshes.get(mesh, walk.manual.mesh if walk.manual is not None and not mesh else None)
    if named is None or not {*axes} <= {name for name, _ in named}:
        raise MspcError(f"the manual axes {', '.join(map(str, axes))} are no axes of a mesh @{mesh}")
    new = tuple(name for name, _ in named if name in axes and name not in outer)
    manual = ManualAxes(tuple(named), (*outer, *new))
    inner = walk.inner()
    inner.manual = manual
    dims = [[[[a for a in dim if a in new] for dim in each.entries[1]] for each in group] for group in shardings]
    if len(given) != len(shardings[0]) or len(operation.types) != len(shardings[1]):
        raise MspcError("its shardings are not as many as its values")
    given = [entered(inner, walk.in_layout(x, sharding), own, len(outer))
             for x, sharding, own in zip(given, shardings[0], dims[0], strict=True)]  # fmt: skip
    for x, type in zip(given, operation.regions[0].types, strict=True):
        if walk.e.shape_of(x)[len(manual.names) :] != tensor(type).shape:
            raise MspcError(f"a device's slice is {type} in the text, and not by its sharding")
    results = inner.run(operation.regions[0], given)
    return [walk.in_layout(left(inner, x, own, len(outer)), sharding)
            for x, sharding, own in zip(results, shardings[1], dims[1], strict=True)]  # fmt: skip


def at_manual_end(walk: ManualScope, operation: HloOperation, value: Any) -> Any:
    """Return the slices of a value on all devices, or the value of such slices: the older form of a manual
    computation, with one of these at each operand and result of a function."""
    module, inner = walk.module, walk.inner()
    type, is_begin = tensor(operation.types[0]), not isinstance(value, DeviceSlices)
    own = operation.attributes.get("mhlo.sharding") or ""
    inner.manual = manual = _axes_of_devices(module, own, type.rank) if is_begin else value.axes
    sharding = walk.shardings.get(operation.operands[0]) if is_begin else own
    layout = layout_of(module, sharding or "", type.rank)
    if layout is None:
        raise MspcError("a manual computation has a value without a sharding")
    dims = [[a for a in dim if a in manual.names] for dim in finer_axes(layout.to_layout(), manual.mesh)]
    if is_begin:
        return DeviceSlices(type, entered(inner, value, dims, 0), manual)
    return walk.in_layout(left(inner, value.value, dims, 0), sharding)


def _axes_of_devices(module: HloModule, sharding: str, rank: int) -> ManualAxes:
    """Return the axes of the mesh of all shardings in a module that lists devices. sharding: of a slice, whose manual
    subgroup has the manual axes; all are manual if it has none."""
    operations = (each for function in module.functions.values() for each in function.body.all_operations())
    tiled = (tiles_of(module, each.attributes["mhlo.sharding"], tensor(each.types[0]).rank) for each in operations
             if isinstance(each.attributes.get("mhlo.sharding"), str))  # fmt: skip
    sizes = finest_mesh((each[0].device_matrix for each in tiled if each is not None), module.partitions or 1)
    every = tuple((f"axis{k}", n) for k, n in enumerate(sizes))
    own = tiles_of(module, sharding, rank)
    groups = zip(finer_axes(own[0].to_layout(), every)[rank:], own[1], strict=True) if own else ()
    manual = [name for names, kind in groups if kind == "manual" for name in names]
    return ManualAxes(every, tuple(name for name, _ in every if name in manual or not manual))


def _shardings(operation: HloOperation, name: str) -> list[Words]:
    """Return the shardings of operands or results."""
    found = attribute(operation, name, default=[])
    found = found.entries[0] if isinstance(found, Words) and found.entries else found
    if not isinstance(found, list) or not all(isinstance(each, Words) and len(each.entries) > 1 for each in found):
        raise MspcError(f"{name} are no shardings")
    return found
