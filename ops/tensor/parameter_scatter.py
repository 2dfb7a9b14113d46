"""These operators change a parameter, or a tensor, at places that integers give.

Every rank sees all integers and updates of its columns, and picks those that lie in its rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from mspc.ir.builder import Builder
from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Value
from mspc.ir.types import INT64, TensorType
from mspc.ops.bases import require_same
from mspc.ops.math.arithmetic import Neg
from mspc.ops.op import ArrayBackend, NotDifferentiable, Op, RankPlacement, sample
from mspc.ops.operator_arguments import ints_of
from mspc.ops.tensor.broadcast import zeros
from mspc.ops.tensor.embedding import Gather, local_places, require_integer, shard_begin
from mspc.ops.tensor.scatter import GatherNd, TensorScatterUpdate
from mspc.sharding.rules import factor_names

Gradients = Sequence[Value | None]
_UPDATE = NotDifferentiable("it changes a parameter")
_ROWS = (
    sample((16, 8), (4,), (4, 8), dtypes=("Float64", "Int32", "Float64"), low=1, high=16, gradient=False),
    sample((16, 4, 8), (2, 2), (2, 2, 4, 8), dtypes=("Float64", "Int64", "Float64"), low=1, high=16, gradient=False),
)
_PLACES = (
    sample((8, 16), (4, 1), (4, 16), dtypes=("Float64", "Int32", "Float64"), low=1, high=8, gradient=False),
    sample((8, 8, 16), (4, 2), (4, 16), dtypes=("Float64", "Int32", "Float64"), low=1, high=8, gradient=False),
)


class _Scatter(Op, abstract=True):
    """Rows of input 0 at the integers of input 1, combined with input 2 by `combine`; several of one row one by one.

    offset: the first row of this rank. total: how many rows there are, 0 where the rank holds all.
    """

    use_locking: bool = False
    offset: int = 0
    total: int = 0
    combine: ClassVar[str] = ""
    has_side_effect = True
    mutates = (0,)
    omitted = ("offset", "total")
    bprop = _UPDATE
    samples = _ROWS

    def infer(self, *types: Any) -> Any:
        inferred = super().infer(*types)
        require_integer(self.name, 1, types[1])
        require_same(self.name, types[0], types[2])
        return inferred

    def index_limits(self, *types: TensorType) -> Mapping[int, int]:
        return {1: types[0].shape[0]}

    def rule(self, variable: TensorType, indices: TensorType, updates: TensorType) -> str:
        if not variable.shape:
            raise MspcError(f"{self.name} needs at least one dimension in input 0, which is a scalar")
        names = factor_names(len(variable.shape))
        places = [f"{name}!" for name in factor_names(len(indices.shape), len(names))]
        side = " ".join(names)
        return f"{side}, {' '.join(places)}, {' '.join((*places, *names[1:]))} -> {side}"

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        variable, indices, updates = inputs
        places = indices.reshape(-1)
        rows = updates.reshape(indices.size, *variable.shape[1:])
        if self.total:
            places, inside = local_places(be.xp, places, self.offset, variable.shape[0], self.total)
            places, rows = places[inside], rows[inside]
        if self.combine:
            getattr(be.xp, self.combine).at(variable, places, rows)
        else:
            variable[places] = rows
        return variable

    def localize(self, placement: RankPlacement) -> Op:
        part = shard_begin(placement, 0, 0)
        return self if part is None else replace(self, offset=part, total=placement.in_types[0].shape[0])


class ScatterAdd(_Scatter):
    """Adds to the rows of a parameter."""

    combine = "add"


class ScatterSub(_Scatter):
    """Subtracts from the rows of a parameter."""

    takes_bool = False
    combine = "subtract"


class ScatterMul(_Scatter):
    """Multiplies the rows of a parameter."""

    combine = "multiply"


class ScatterDiv(_Scatter):
    """Divides the rows of a parameter."""

    combine = "divide"


class ScatterMax(_Scatter):
    """The larger of the rows of a parameter and the updates."""

    combine = "maximum"


class ScatterMin(_Scatter):
    """The smaller of the rows of a parameter and the updates."""

    combine = "minimum"


class ScatterUpdate(_Scatter):
    """Puts the updates in place of rows of a parameter; of several for one row the last counts."""


class _ScatterNd(TensorScatterUpdate, abstract=True):
    """A parameter at indices[..., k], which name its first k dimensions."""

    use_locking: bool = False
    combine: ClassVar[str] = ""
    has_side_effect = True
    mutates = (0,)
    bprop = _UPDATE
    launch, kernel_into, in_place = Op.launch, Op.kernel_into, False
    samples = _PLACES

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        variable, indices, updates = inputs
        places, values = self.written(be.xp, indices, updates, variable.shape)
        if self.combine:
            getattr(be.xp, self.combine).at(variable, places, values)
        else:
            variable[places] = values
        return variable


class ScatterNdUpdate(_ScatterNd):
    """Puts the updates into a parameter at indices[..., k]."""


class ScatterNdAdd(_ScatterNd):
    """Adds the updates to a parameter at indices[..., k]."""

    combine = "add"


class ScatterNdSub(_ScatterNd):
    """Subtracts the updates from a parameter at indices[..., k]."""

    takes_bool = False
    combine = "subtract"


class _TensorScatter(TensorScatterUpdate, abstract=True):
    combine: ClassVar[str] = ""
    launch, kernel_into, in_place = Op.launch, Op.kernel_into, False
    samples = _PLACES

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        x, indices, updates = inputs
        out = x.copy()
        places, values = self.written(be.xp, indices, updates, x.shape)
        getattr(be.xp, self.combine).at(out, places, values)
        return out


class TensorScatterSub(_TensorScatter):
    """x minus the updates at indices[..., k]; all updates of one place are subtracted."""

    takes_bool = False
    combine = "subtract"
    samples = (
        sample((8, 16), (4, 1), (4, 16), dtypes=("Float64", "Int32", "Float64"), low=0, high=8),
    )

    def bprop(self, b: Builder, x: Value, indices: Value, updates: Value, out: Value, dout: Value) -> Gradients:
        return dout, None, b.emit(Neg(), b.emit(GatherNd(), dout, indices))


_REPEATED = "the derivative of repeated products, quotients and extrema is not built"


class TensorScatterMul(_TensorScatter):
    """x times the updates at indices[..., k]; all updates of one place are multiplied."""

    combine = "multiply"
    bprop = NotDifferentiable(_REPEATED)


class TensorScatterDiv(_TensorScatter):
    """x divided by the updates at indices[..., k]; by all updates of one place."""

    combine = "divide"
    bprop = NotDifferentiable(_REPEATED)


class TensorScatterMax(_TensorScatter):
    """The larger of x and the updates at indices[..., k]."""

    combine = "maximum"
    bprop = NotDifferentiable(_REPEATED)


class TensorScatterMin(_TensorScatter):
    """The smaller of x and the updates at indices[..., k]."""

    combine = "minimum"
    bprop = NotDifferentiable(_REPEATED)


class _Inplace(Op, abstract=True):
    """x with its rows `indices` combined with v. (x itself stays as it is: the name is MindSpore's.)"""

    indices: int | tuple[int, ...] = ()
    samples = (sample((8, 16), (2, 16), indices=(0, 3)), sample((4, 8, 2), (1, 8, 2), indices=2))

    def places(self) -> tuple[int, ...]:
        return ints_of(self.name, "indices", self.indices)

    def infer(self, *types: Any) -> Any:
        inferred = super().infer(*types)
        require_same(self.name, *types)
        return inferred

    def rule(self, x: TensorType, v: TensorType) -> str:
        if not x.shape or len(x.shape) != len(v.shape):
            raise MspcError(f"{self.name}: the inputs have shapes {x.shape} and {v.shape}")
        places = self.places()
        if any(not 0 <= place < x.shape[0] for place in places) or len(set(places)) != len(places):
            raise MspcError(f"{self.name}: indices {places} are not different rows of 0 to {x.shape[0] - 1}")
        if len(places) != v.shape[0]:
            raise MspcError(f"{self.name}: {len(places)} indices for {v.shape[0]} rows of input 1")
        first, *rest = factor_names(len(x.shape))
        side = " ".join((f"{first}!", *rest))
        rows = factor_names(1, len(x.shape))[0]
        return f"{side}, {' '.join((f'{rows}={len(places)}!', *rest))} -> {side}"

    def row_numbers(self, b: Builder) -> Value:
        return b.constant(self.places(), INT64)


class InplaceAdd(_Inplace):
    """x plus v in the rows `indices`."""

    samples = _Inplace.samples

    def bprop(self, b: Builder, x: Value, v: Value, out: Value, dout: Value) -> Gradients:
        return dout, b.emit(Gather(), dout, self.row_numbers(b))

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        x, v = inputs
        out = x.copy()
        out[list(self.places())] += v
        return out


class InplaceSub(_Inplace):
    """x minus v in the rows `indices`."""

    takes_bool = False
    samples = _Inplace.samples

    def bprop(self, b: Builder, x: Value, v: Value, out: Value, dout: Value) -> Gradients:
        return dout, b.emit(Neg(), b.emit(Gather(), dout, self.row_numbers(b)))

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        x, v = inputs
        out = x.copy()
        out[list(self.places())] -= v
        return out


class InplaceUpdate(_Inplace):
    """x with v in place of the rows `indices`."""

    samples = _Inplace.samples

    def bprop(self, b: Builder, x: Value, v: Value, out: Value, dout: Value) -> Gradients:
        dx = b.emit(InplaceUpdate(self.indices), dout, zeros(b, v.tensor_type))
        return dx, b.emit(Gather(), dout, self.row_numbers(b))

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        x, v = inputs
        out = x.copy()
        out[list(self.places())] = v
        return out
