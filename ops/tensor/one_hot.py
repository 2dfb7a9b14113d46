"""OneHot gives rows of a unit matrix, chosen by integers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from mspc.ir.diagnostics import MspcError
from mspc.ir.types import DType, TensorType
from mspc.ops.bases import require_same
from mspc.ops.cuda.move import put_values
from mspc.ops.device import Array, Device, Launch
from mspc.ops.memory_order import MemoryOrder, Reordered
from mspc.ops.op import ArrayBackend, NotDifferentiable, Op, RankPlacement, sample
from mspc.ops.operator_arguments import axis_in, size_of
from mspc.ops.tensor.embedding import require_integer
from mspc.sharding.factors import Rule
from mspc.sharding.rules import factor_names, sized


def require_classes(xp: Any, labels: Any, classes: int, ignored: int | None = None) -> None:
    """Raises MspcError where a label is no class from 0 on, other than `ignored`; asked on CPUs alone, where reading
    numbers holds nobody up."""
    if xp is not np:
        return
    wrong = (labels < 0) | (labels >= classes)
    if ignored is not None:
        wrong &= labels != ignored
    if wrong.any():
        raise MspcError(f"label {labels[wrong].flat[0]} is not from 0 to {classes - 1}")


class _Hit(Op, abstract=True):
    """OneHot of integers that have the dimension of the classes already, of size 1. inner: elements behind a class."""

    depth: int = 0
    inner: int = 1
    offset: int = 0

    @property
    def cuda(self) -> str:  # type: ignore[override]  # depends on the classes
        place = "{i}" if self.inner == 1 else f"{{i}} / {self.inner}"
        ahead = f" - {self.offset}" if self.offset else ""
        return f"(i64){{0}}{ahead} == (i64)({place} % {self.depth}) ? {{1}} : {{2}}"


class OneHot(Op):
    """on_value where the class along the new dimension `axis` is the integer, off_value elsewhere.

    Called as `OneHot(axis)(indices, depth, on_value, off_value)`. offset: the first class of this rank. classes: how
    many there are where an integer must be one of them or `ignored`; 0 where others may stand.
    """

    axis: int = -1
    depth: int = 0
    offset: int = 0
    classes: int = 0
    ignored: int = 0
    omitted = ("classes", "ignored")
    promotes: ClassVar[str] = "common"
    promotes_from: ClassVar[int] = 1
    bprop = NotDifferentiable("its input is an integer")
    samples = (
        sample(
            (8,), (), (), dtypes=("Int32", "Float64", "Float64"), low=0, high=16, depth=16, gradient=False
        ),
        sample(
            (8, 4),
            (),
            (),
            dtypes=("Int32", "Float64", "Float64"),
            low=-1,
            high=8,
            depth=8,
            axis=0,
            gradient=False,
        ),
        sample(
            (8, 4),
            (),
            (),
            dtypes=("Int32", "Float64", "Float64"),
            low=0,
            high=8,
            depth=8,
            axis=1,
            gradient=False,
        ),
    )

    def as_broadcast(self, *types: TensorType) -> tuple[Op, tuple[tuple[int, ...], ...]]:
        shape = types[0].shape
        axis = axis_in(self.name, self.axis, len(shape) + 1)
        hit = _Hit(self.depth, math.prod(shape[axis:]), self.offset)
        return hit, ((*shape[:axis], 1, *shape[axis:]), types[1].shape, types[2].shape)

    def made_in(self, order: MemoryOrder, types: Sequence[TensorType]) -> Reordered | None:
        axis = axis_in(self.name, self.axis, order.rank)
        place = order.place(axis)
        if place is None:
            return None
        others = (MemoryOrder.of(type.shape) for type in types[1:])
        return Reordered(replace(self, axis=place), (order.without([axis]), *others), (order,))

    def strategy_dims(self, rule: Rule) -> tuple[tuple[tuple[int, ...], ...], ...]:
        """MindSpore's strategy of OneHot shards the output: ((indices..., classes), (), ())."""
        return (*rule.outputs, (), ())

    def call(self, *args: Any) -> tuple[Op, tuple[Any, ...]]:
        if len(args) != 4:
            raise MspcError(
                f"OneHot takes 4 arguments (indices, depth, on_value, off_value), not {len(args)}"
            )
        indices, depth, on, off = args
        return replace(self, depth=size_of(self.name, "depth", depth)), (indices, on, off)

    def result_dtype(self, *types: TensorType) -> DType:
        return types[1].dtype

    def infer(self, *types: Any) -> Any:
        inferred = super().infer(*types)
        require_integer(self.name, 0, types[0])
        require_same(self.name, *types[1:])
        return inferred

    def index_limits(self, *types: TensorType) -> Mapping[int, int]:
        return {0: self.depth}

    def rule(self, indices: TensorType, on_value: TensorType, off_value: TensorType) -> str:
        names = factor_names(len(indices.shape) + 1)
        axis = axis_in(self.name, self.axis, len(names))
        new = sized(names.pop(), self.depth)
        return f"{' '.join(names)}, ,  -> {' '.join((*names[:axis], new, *names[axis:]))}"

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        xp = be.xp
        indices, on, off = inputs
        if xp is np:  # reading numbers of a GPU would hold it up
            self.check_operands(*inputs)
        axis = self.axis % (indices.ndim + 1)
        classes = xp.arange(self.offset, self.offset + self.depth, dtype=indices.dtype)
        hit = xp.expand_dims(indices, axis) == classes.reshape((-1,) + (1,) * (indices.ndim - axis))
        return xp.where(hit, on, off)

    def check_operands(self, *operands: Any) -> None:
        if self.classes:
            require_classes(np, operands[0], self.classes, self.ignored)

    def launch(self, device: Device, inputs: Sequence[Array], out: Any) -> Launch | None:
        indices, on, off = inputs
        inner = math.prod(indices.shape[self.axis % (indices.ndim + 1) :])
        place = f"at / {self.depth * inner} * {inner} + at % {inner}"
        text = f"(long long)ids[{place}] == (long long)(at / {inner} % {self.depth}) + {self.offset} ? *on : *off"
        return put_values(device, "one_hot", out, text, [("ids", indices), ("on", on), ("off", off)])

    def localize(self, placement: RankPlacement) -> Op:
        shape = placement.out_types[0].shape
        here = placement.out_layouts[0].slices_for(placement.rank, shape)[self.axis % len(shape)]
        return replace(self, depth=here.stop - here.start, offset=self.offset + here.start)
