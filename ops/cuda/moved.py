"""Elements that a kernel reads at other places than its own: slices, joins, transposes and their like within a chain.

The place is a sum of steps along the loop's dimensions. Where a pack of the loop has its elements side by side in the
operand, too, they are loaded as one; elsewhere each by itself. What lies outside of a slice is not loaded.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from mspc.ir.late_dataclass import dataclass
from mspc.ir.types import DType
from mspc.ops.cuda.source import address
from mspc.ops.device import c_type

Steps = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Offset:
    """A place, or a coordinate: `offset` and so many steps along every dimension of a loop."""

    offset: int
    steps: Steps

    def begins_packs(self, pack: int) -> bool:
        """Whether packs of the loop's last dimension lie side by side, each at a multiple of its size."""
        return self.steps[-1:] == (1,) and not any(n % pack for n in (self.offset, *self.steps[:-1]))

    def text(self, coordinates: Sequence[str], type: str) -> str:
        """C++ of its value at these coordinates."""
        terms = [f"({type})({c}) * {n}" if n != 1 else f"({type})({c})"
                 for c, n in zip(coordinates, self.steps, strict=True) if n]  # fmt: skip
        return " + ".join([*terms, str(self.offset)] if self.offset or not terms else terms)


@dataclass(frozen=True, slots=True)
class MovedRead:
    """An operand's element at place `at`, where for all (coordinate, begin, end) of `where` that coordinate is at
    `begin` or behind it, and before `end`; 0 elsewhere. array: None for what says whether the conditions hold."""

    dtype: DType
    array: Any
    at: Offset
    where: tuple[tuple[Offset, int, int], ...] = ()
    index: str = "int"
    """The C++ type of places."""
    begin: str = ""
    """The C++ name of the number that `at.offset` is, where a kernel gets it as an argument: many then are one."""

    @property
    def vectors(self) -> tuple[Steps, ...]:
        """The steps of all places that it speaks of."""
        return (self.at.steps, *(place.steps for place, _, _ in self.where))

    def merged(self, vectors: Sequence[Steps]) -> MovedRead:
        """The same along other dimensions, with these steps."""
        conditions = zip(self.where, vectors[1:], strict=True)
        where = tuple((Offset(place.offset, steps), begin, end) for (place, begin, end), steps in conditions)
        return replace(self, at=Offset(self.at.offset, vectors[0]), where=where)

    def holds_for_packs(self, pack: int) -> bool:
        """Whether its conditions hold for all elements of a pack or for none."""
        return all(
            place.steps[-1:] in ((), (0,)) or (place.begins_packs(pack) and begin % pack == 0 and end % pack == 0)
            for place, begin, end in self.where
        )

    def lies_side_by_side(self) -> bool:
        """Whether neighbours along the last dimension are neighbours in the operand."""
        return self.array is not None and self.at.steps[-1:] == (1,)

    def is_packed(self, pack: int) -> bool:
        """Whether a pack is loaded as one."""
        return (
            self.lies_side_by_side() and self.at.begins_packs(pack) and self.holds_for_packs(pack)
            and address(self.array) % (pack * self.dtype.itemsize) == 0
        )  # fmt: skip

    def is_held(self, pack: int) -> bool:
        """Whether all elements of a pack are one."""
        return self.holds_for_packs(pack) and (self.array is None or self.at.steps[-1:] in ((), (0,)))

    def register(self, pack: int) -> str:
        """The C++ type of what is loaded for a pack."""
        return c_type(self.dtype) if self.is_held(pack) else f"Pack<{c_type(self.dtype)}, {pack}>"

    def load(self, target: str, name: str, pack: int, coordinates: Callable[[str], Sequence[str]]) -> list[str]:
        """Statements that load a pack into `target`. name: of the pointer. coordinates: C++ of those of the element of
        this number of the pack."""
        if self.is_held(pack):
            return [f"{target} = {self.element(name, coordinates('0'))};"]
        if self.is_packed(pack):
            first, type = coordinates("0"), self.register(pack)
            load = f"{target} = *(const {type}*)({name} + ({self._place(first)}));"
            holds = self._holds(first)
            clear = f"for (int e = 0; e < {pack}; ++e) {target}.at[e] = {self._zero()};"
            return [load] if holds == "true" else [f"if ({holds}) {load}", f"else {clear}"]
        return [
            "#pragma unroll",
            f"for (int e = 0; e < {pack}; ++e) {target}.at[e] = {self.element(name, coordinates('e'))};",
        ]

    def _zero(self) -> str:
        return f"narrow<{c_type(self.dtype)}>(0)"

    def element(self, name: str, coordinates: Sequence[str]) -> str:
        """C++ of the element at these coordinates. name: of the pointer."""
        holds = self._holds(coordinates)
        if self.array is None:
            return f"narrow<{c_type(self.dtype)}>({holds})"
        value = f"{name}[{self._place(coordinates)}]"
        return value if holds == "true" else f"{holds} ? {value} : {self._zero()}"

    def _place(self, coordinates: Sequence[str]) -> str:
        """C++ of the place of the element at these coordinates."""
        if not self.begin:
            return self.at.text(coordinates, self.index)
        return f"{replace(self.at, offset=0).text(coordinates, self.index)} + {self.begin}"

    def _holds(self, coordinates: Sequence[str]) -> str:
        """C++ of whether the conditions hold."""
        found: list[str] = []
        for place, begin, end in self.where:
            value = place.text(coordinates, self.index)
            found.append(f"({value}) >= {begin} && ({value}) < {end}")
        return f"({' && '.join(found)})" if found else "true"


def coordinate(number: str, dims: Sequence[int], d: int) -> str:
    """C++ of the coordinate along dimension d of element `number` of a tensor of these dimensions."""
    behind = math.prod(dims[d + 1 :])
    divided = number if behind == 1 else f"{number} / {behind}"
    return f"({divided})" if d == 0 else f"({divided} % {dims[d]})"
