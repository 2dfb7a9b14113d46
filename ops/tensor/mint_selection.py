"""These operators choose along one dimension with the arguments of `mindspore.mint`: extrema, sorting, the k largest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from mspc.ir.builder import Builder
from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Constant, Node, Value, element_types
from mspc.ir.types import INT64, TensorType, TupleType
from mspc.ops.control.structural import items
from mspc.ops.device import Array, Device, Launch
from mspc.ops.op import ArrayBackend, Op, sample
from mspc.ops.operator_arguments import axis_in, int_of, ints_of, require_elements, split_call
from mspc.ops.tensor.embedding import GatherGrad
from mspc.ops.tensor.ordering import ascending, descending
from mspc.ops.tensor.reshape import Reshape
from mspc.ops.tensor.selection import GatherDGrad, along
from mspc.sharding.factors import Rule
from mspc.sharding.rules import factor_names

Gradients = Sequence[Value | None]


class _Ordered(Op, abstract=True):
    """Values chosen along `dim`, which must not be sharded, and their places: a tuple of two."""

    def pair(self, x: TensorType, names: Sequence[str], axis: int, size: int) -> str:
        """The rule where `size` elements remain; 0 drops the dimension."""
        new = [f"{factor_names(1, len(names))[0]}={size}!"] if size > 1 else ["1"] if size else []
        return f"{' '.join(names)} -> {', '.join([' '.join((*names[:axis], *new, *names[axis + 1 :]))] * 2)}"

    def infer(self, *types: Any) -> Any:
        value, _ = element_types(super().infer(*types))
        return TupleType((value, TensorType(INT64, value.shape)))

    def spread(self, b: Builder, x: Value, dim: int, out: Node, dout: Any) -> Gradients:
        """The gradient: that of the values, put to their places."""
        if dout[0] is None:
            return (None,)
        axis = axis_in(self.name, dim, len(x.shape))
        place, grad = items(b, out, 2)[1], dout[0]
        if len(grad.shape) < len(x.shape):
            expanded = (*x.shape[:axis], 1, *x.shape[axis + 1 :])
            place, grad = b.emit(Reshape(expanded), place), b.emit(Reshape(expanded), grad)
        return (b.emit(GatherDGrad(axis, x.shape[axis]), place, grad),)


class _ExtremumDim(_Ordered, abstract=True):
    dim: int = 0
    keepdim: bool = False
    samples = (sample((8, 16)), sample((8, 16), dim=-1, keepdim=True), sample((2, 4, 8), dim=1))

    def call(self, *args: Any) -> tuple[Op, tuple[Any, ...]]:
        tensors, found = split_call(self.name, args, 1, ("dim", "keepdim"), optional=1)
        keep = bool(found.get("keepdim", False))
        return replace(self, dim=int_of(self.name, "dim", found["dim"]), keepdim=keep), tensors

    def rule(self, x: TensorType) -> str:
        names, axis = along(self.name, len(x.shape), self.dim)
        require_elements(self.name, x.shape, [axis], "extremum")
        return self.pair(x, names, axis, int(self.keepdim))

    def bprop(self, b: Builder, x: Value, out: Node, dout: Any) -> Gradients:
        return self.spread(b, x, self.dim, out, dout)

    def take(self, xp: Any, x: Any, places: Any) -> tuple[Any, Any]:
        places = xp.expand_dims(places, self.dim)
        values = xp.take_along_axis(x, places, axis=self.dim)
        places = places.astype(xp.int64)
        return (values, places) if self.keepdim else (values.squeeze(self.dim), places.squeeze(self.dim))


class MaxDim(_ExtremumDim):
    """The maximum along `dim` and its first place: a tuple of two. Called as `MaxDim()(input, dim, keepdim)`."""

    samples = _ExtremumDim.samples

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        return self.take(be.xp, inputs[0], be.xp.argmax(inputs[0], axis=self.dim))


class MinDim(_ExtremumDim):
    """The minimum along `dim` and its first place: a tuple of two. Called as `MinDim()(input, dim, keepdim)`."""

    samples = _ExtremumDim.samples

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        return self.take(be.xp, inputs[0], be.xp.argmin(inputs[0], axis=self.dim))


class SortExt(_Ordered):
    """x in order along `dim`, and the places that the elements come from: a tuple of two. Equal ones keep their order.

    Called as `SortExt()(input, dim, descending, stable)`.
    """

    dim: int = -1
    descending: bool = False
    samples = (sample((8, 16)), sample((4, 8, 2), dim=1, descending=True))

    def call(self, *args: Any) -> tuple[Op, tuple[Any, ...]]:
        tensors, found = split_call(self.name, args, 1, ("dim", "descending", "stable"), optional=3)
        dim = int_of(self.name, "dim", found.get("dim", -1))
        return replace(self, dim=dim, descending=bool(found.get("descending", False))), tensors

    def rule(self, x: TensorType) -> str:
        names, _ = along(self.name, len(x.shape), self.dim)
        return f"{' '.join(names)} -> {', '.join([' '.join(names)] * 2)}"

    def bprop(self, b: Builder, x: Value, out: Node, dout: Any) -> Gradients:
        return self.spread(b, x, self.dim, out, dout)

    def launch(self, device: Device, inputs: Sequence[Array], out: Any) -> Launch | None:
        from mspc.ops.cuda.sorted_lines import sort_lines  # late: only a GPU needs it

        (x,) = inputs
        return sort_lines(device, x, axis_in(self.name, self.dim, x.ndim), self.descending, *out)

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        xp, (x,) = be.xp, inputs
        places = descending(xp, x, self.dim) if self.descending else ascending(xp, x, self.dim)
        places = places.astype(xp.int64)
        return xp.take_along_axis(x, places, axis=self.dim), places


class TopkExt(_Ordered):
    """The k largest (or smallest) elements along `dim` in order, and their places: a tuple of two.

    Called as `TopkExt()(input, k, dim, largest, sorted)`.
    """

    k: int = 1
    dim: int = -1
    largest: bool = True
    samples = (sample((8, 16), k=4), sample((16, 8), k=3, dim=0, largest=False))

    def call(self, *args: Any) -> tuple[Op, tuple[Any, ...]]:
        tensors, found = split_call(self.name, args, 1, ("k", "dim", "largest", "sorted"), optional=3)
        k, dim = int_of(self.name, "k", found["k"]), int_of(self.name, "dim", found.get("dim", -1))
        return replace(self, k=k, dim=dim, largest=bool(found.get("largest", True))), tensors

    def rule(self, x: TensorType) -> str:
        names, axis = along(self.name, len(x.shape), self.dim)
        if not 1 <= self.k <= x.shape[axis]:
            raise MspcError(f"TopkExt: k is {self.k}, not 1 to {x.shape[axis]}, dimension {axis} of input 0")
        return self.pair(x, names, axis, self.k)

    def bprop(self, b: Builder, x: Value, out: Node, dout: Any) -> Gradients:
        return self.spread(b, x, self.dim, out, dout)

    def launch(self, device: Device, inputs: Sequence[Array], out: Any) -> Launch | None:
        from mspc.ops.cuda.running import top_elements  # late: only a GPU needs it

        (x,) = inputs
        if axis_in(self.name, self.dim, x.ndim) != x.ndim - 1:
            return None
        return top_elements(device, x, *out, smallest=not self.largest)

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        xp, (x,) = be.xp, inputs
        places = descending(xp, x, self.dim) if self.largest else ascending(xp, x, self.dim)
        places = xp.take(places, xp.arange(self.k), axis=self.dim).astype(xp.int64)
        return xp.take_along_axis(x, places, axis=self.dim), places


class RepeatInterleaveTensor(Op):
    """Slice i along `dim`, which must not be sharded, repeats[i] times in a row; without dim those of x made flat.

    Called as `RepeatInterleaveTensor()(input, repeats, dim)`; the repetitions must be known at compile time.
    """

    repeats: tuple[int, ...] = ()
    dim: int | None = None
    linear_in = (0,)
    samples = (
        sample((4, 8), repeats=(2, 0, 3, 1), dim=0),
        sample((8, 4, 2), repeats=(1, 2, 1, 4), dim=-2),
        sample((2, 2), repeats=(1, 2, 3, 4)),
    )

    def call(self, *args: Any) -> tuple[Op, tuple[Any, ...]]:
        tensors, found = split_call(self.name, args, 1, ("repeats", "dim", "output_size"), optional=2)
        repeats, dim = found["repeats"], found.get("dim")
        if isinstance(repeats, Constant):
            repeats = tuple(repeats.value.reshape(-1).tolist())
        counts = ints_of(self.name, "repeats", repeats)
        return replace(self, repeats=counts, dim=None if dim is None else int_of(self.name, "dim", dim)), tensors

    def rule(self, x: TensorType) -> str:
        names = factor_names(len(x.shape))
        axis = -1 if self.dim is None else axis_in(self.name, self.dim, len(names))
        size = x.size if self.dim is None else x.shape[axis]
        if len(self.repeats) != size or min(self.repeats, default=0) < 0:
            where = "input 0" if self.dim is None else f"dimension {axis} of input 0"
            raise MspcError(
                f"{self.name}: repeats {self.repeats} are not {size} numbers from 0 on, as {where} needs",
                kind=RuntimeError,
            )
        total = f"{factor_names(1, len(names))[0]}={sum(self.repeats)}!"
        if self.dim is None:
            return f"{' '.join(f'{name}!' for name in names)} -> {total}"
        return f"{along_text(names, axis, f'{names[axis]}!')} -> {along_text(names, axis, total)}"

    def strategy_dims(self, rule: Rule) -> tuple[tuple[tuple[int, ...], ...], ...]:
        """MindSpore's strategy has an entry for `repeats`, which is not sharded: ((2, 1), (1,))."""
        return (*rule.inputs, ((),))

    def bprop(self, b: Builder, x: Value, out: Value, dout: Value) -> Gradients:
        rows = [i for i, count in enumerate(self.repeats) for _ in range(count)]
        axis = 0 if self.dim is None else axis_in(self.name, self.dim, len(x.shape))
        grad = b.emit(GatherGrad(len(self.repeats), axis), dout, b.constant(rows, INT64))
        return (grad if self.dim is not None else b.emit(Reshape(x.shape), grad),)

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        return be.xp.repeat(inputs[0], list(self.repeats), axis=self.dim)


def along_text(names: Sequence[str], axis: int, token: str) -> str:
    """Factors of a tensor, that of dimension `axis` replaced."""
    return " ".join((*names[:axis], token, *names[axis + 1 :]))
