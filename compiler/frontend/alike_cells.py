"""Finds whether cells are alike: whether they differ in the values of their parameters alone."""

from __future__ import annotations

import types
from collections.abc import Sequence
from operator import attrgetter
from typing import Any

import numpy as np

from mspc.api.common.parameter import FACTS, Parameter
from mspc.api.common.tensor import Tensor
from mspc.api.nn.cell import Cell
from mspc.api.ops.primitive import Primitive
from mspc.ops.op import Op

_OWN = ("_cells", "_params", "_members", "_owned")
"""What a cell knows of its own attributes, which are compared themselves."""
_PLACES = ("_stage_place",)
"""Which lines of the script have set something: what they have set is compared."""
_PLAIN = frozenset({bool, int, float, str, bytes, type(None)})
_facts = attrgetter("dtype", "shape", *FACTS)


class Counterparts:
    """What stands in one cell where another has something else.

    parameters, cells: of the first cell, by identity, with those of all cells in their order, its own first.
    """

    def __init__(self, cells: Sequence[Cell]) -> None:
        self.parameters: dict[int, list[Parameter]] = {}
        self.cells: dict[int, list[Cell]] = {}
        first, *others = cells
        self.are_alike = all(self._same(first, other, number) for number, other in enumerate(others, 1))

    def _same(self, one: Any, other: Any, number: int) -> bool:
        """Whether nothing of `one`, which is of the first cell, differs in `other`, of cell `number`."""
        if one is other and not isinstance(one, Parameter | Cell):
            return True  # each cell has parameters and cells of its own
        kind = type(one)
        if kind is not type(other):
            return False
        if kind in _PLAIN:
            return bool(one == other)
        if isinstance(one, Cell):
            return self._same_cell(one, other, number)
        if isinstance(one, Parameter):
            return _facts(one) == _facts(other) and self._note(self.parameters, one, other, number)
        if isinstance(one, tuple | list):
            return len(one) == len(other) and all(self._same(a, b, number) for a, b in zip(one, other, strict=True))
        if isinstance(one, dict):
            return one.keys() == other.keys() and all(self._same(one[key], other[key], number) for key in one)
        if isinstance(one, Op):
            seeds = type(one).seeds
            fields = one.attributes()
            return all(name in seeds or fields[name] == value for name, value in other.attributes().items())
        if isinstance(one, Primitive):
            return self._same_primitive(one, other, number)
        if isinstance(one, Tensor):
            alike = one.shape == other.shape and one.dtype == other.dtype
            return alike and np.array_equal(one.asnumpy(), other.asnumpy())
        if isinstance(one, np.ndarray):
            return one.dtype == other.dtype and np.array_equal(one, other)
        if isinstance(one, types.FunctionType | types.BuiltinFunctionType | type | set | frozenset):
            return bool(one == other)
        if isinstance(one, types.MethodType):
            return one.__func__ is other.__func__ and self._same(one.__self__, other.__self__, number)
        return False

    def _same_primitive(self, one: Primitive, other: Primitive, number: int) -> bool:
        mine, others = vars(one), vars(other)
        if mine.keys() != others.keys():
            return False
        for name, value in mine.items():
            counterpart = others[name]
            if name in ("in_strategy", "out_strategy"):
                if value != counterpart:
                    return False
            elif value is not counterpart and not self._same(value, counterpart, number):
                return False
        return True

    def _same_cell(self, one: Cell, other: Cell, number: int) -> bool:
        known = self.cells.get(id(one))
        if known is not None and len(known) > number:
            return known[number] is other
        if not self._note(self.cells, one, other, number):
            return False
        mine, others = vars(one), vars(other)
        if mine.keys() != others.keys():
            return False
        for name, value in mine.items():
            counterpart = others[name]
            if value is counterpart and type(value) in _PLAIN:
                continue  # most are, and there are thousands
            if name not in _OWN and name not in _PLACES and not self._same(value, counterpart, number):
                return False
        return all(self._same(a, b, number) for a, b in zip(one._cells.values(), other._cells.values(), strict=False))

    def _note(self, found: dict[int, Any], one: Any, other: Any, number: int) -> bool:
        """Note what stands in the place of `one`; False where something else stands there already."""
        members = found.setdefault(id(one), [one])
        if len(members) == number:
            members.append(other)
        return len(members) > number and members[number] is other
