"""Compares gradients with finite differences: a judge of every gradient rule that knows none of them.

Along a random direction d of some parameters, (f(x + h d) - f(x - h d)) / 2h must be what the gradients make of d, in
Float64 (`Doubled`).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import field
from typing import Any

import numpy as np

from mspc.ir.graph import Constant, Node, Value
from mspc.ir.late_dataclass import dataclass
from mspc.runtime.backend import NumPyBackend
from mspc.runtime.comm.local import LocalComm, World
from mspc.verify.difference import ComparedValue
from mspc.verify.float64_graph import Doubled, Judged, NotInFloat64, name_of, needed, passes_no_gradient, widened

Array = Any
TOLERANCE = 1e-3
"""Difference from what is expected of a direction, relative to the size of that over all directions."""
STEPS = (1e-6, 1e-4, 1e-2)
"""Sizes of a step relative to the parameter; a larger one where kernels of an operator compute in Float32."""
DRAWS = 20
"""Random directions of which one has to have a slope."""
DIRECTIONS = 12
"""The most directions; parameters beyond share one with their neighbours."""


@dataclass
class Directions:
    """rows: of every direction in which gradients are wrong. count: how many directions were compared. unjudged: the
    gradients that were not, with the reasons."""

    rows: list[ComparedValue] = field(default_factory=list[ComparedValue])
    count: int = 0
    unjudged: dict[str, str] = field(default_factory=dict[str, str])

    def add(self, other: Directions) -> None:
        """Add the directions of other inputs. One that is judged for some inputs is judged."""
        both = self.unjudged.keys() & other.unjudged.keys() if self.count or self.unjudged else other.unjudged.keys()
        self.unjudged = {name: reason for name, reason in (self.unjudged | other.unjudged).items() if name in both}
        self.rows += other.rows
        self.count += other.count


def directions(doubled: Doubled, values: dict[str, Array], seed: int) -> Directions:
    """Compare all gradients with finite differences.

    Args:
        values: of parameters, constants and inputs, by name.
    """

    def main(comm: LocalComm) -> Directions:
        backend = NumPyBackend(comm, step=1)
        found = Directions(unjudged=dict(doubled.unjudged))
        for judged in doubled.judged:
            try:
                _Judge(doubled, judged, backend, values, seed, found).compare()
            except NotInFloat64 as error:  # the network itself runs
                reason = f"{error.label} does not compute in Float64"
                found.unjudged |= {name_of(wanted): reason for wanted in judged.gradients}
        return found

    return World(1).run(main)[0]


class _Judge:
    """Judges one request at one place."""

    def __init__(
        self, doubled: Doubled, judged: Judged, backend: NumPyBackend, values: dict[str, Array], seed: int,
        found: Directions,
    ) -> None:  # fmt: skip
        self.judged, self.graph, self.found = judged, doubled.graph, found
        # A constant that only dead nodes read has no value: the reference has dropped it.
        self.values = {p: widened(values[p.name]) for p in self.graph.parameters if p.name in values}
        self.generator = np.random.default_rng(seed)
        read = [*judged.outputs, *judged.sens]
        self.forward = needed(self.graph, read)
        self.base = doubled.run(backend, self.values, [*read, *judged.gradients.values()])
        self.kernel, self.tape = doubled.kernels(backend), doubled.tape
        self.tape.replays = True
        passing = [node for node in self.forward if node in judged.gradients or not passes_no_gradient(node)]
        moving = _depend(passing, judged.gradients)
        self.forward = [node for node in passing if node in moving or node.op.mutates]

    def compare(self) -> None:
        """Compare the gradients of the request, and note what is found."""
        wanted = [v for v, g in self.judged.gradients.items() if np.isfinite(self._at(self.base, g)).all()]
        for value in self.judged.gradients.keys() - set(wanted):
            self.found.unjudged[name_of(value)] = "it is not finite"
        size = max(1, -(-len(wanted) // DIRECTIONS))
        for group in [wanted[i : i + size] for i in range(0, len(wanted), size)]:
            try:
                reason = self._compare_direction(group)
            except IndexError:  # of the tape
                reason = "loops run otherwise nearby"
            if reason:
                self.found.unjudged |= dict.fromkeys(map(name_of, group), reason)
            else:
                self.found.count += 1

    def _compare_direction(self, group: list[Value]) -> str:
        """Compare along one direction, and say why that judges nothing, or ""."""
        direction, expected, size = self._direction(group)
        slopes: list[float] = []
        sides: list[float] = []
        unmoved = self._value({})
        for step in STEPS:
            ends = [self._value({v: sign * step * d for v, d in direction.items()}) for sign in (1.0, -1.0)]
            sides.append(abs(ends[0] - 2 * unmoved + ends[1]) / step)
            slope = (ends[0] - ends[1]) / (2 * step)
            noise = 1e-12 * max(map(abs, ends)) / step
            if not np.isfinite(slope):
                return "values nearby are not finite"
            if abs(slope - expected) <= TOLERANCE * size + noise:
                return ""
            slopes.append(slope)
        apart = min(abs(slope - expected) for slope in slopes)
        # The largest step may reach other branches or experts, and the smallest may be lost in rounding. So two slopes
        # that agree are enough, unless they are 0, as those of rounded values are, whose gradients are declared.
        pairs = list(itertools.pairwise(slopes))
        agree = [abs(a - b) <= 0.1 * apart for a, b in pairs]
        steep = [same and abs(a) > TOLERANCE * size for same, (a, _) in zip(agree, pairs, strict=True)]
        if not all(agree) and not any(steep):
            return "values are not smooth enough nearby"
        if min(sides) > 0.1 * apart:
            return "values have a corner here"  # as of ReLU at 0: the slopes on its two sides differ, however near
        larger = max(size, abs(slopes[0]))
        names = ", ".join(map(name_of, group))
        apart = apart / larger if larger else apart
        self.found.rows.append(ComparedValue("derivative", names, group[0].shape, apart, TOLERANCE))
        return ""

    def _direction(self, group: list[Value]) -> tuple[dict[Value, Array], float, float]:
        """A random direction, the slope along it that the gradients make, and the size of that over all directions.

        Directions with a slope near 0 are drawn again: along these a gradient that is wrong by a factor is as good as
        the right one.
        """
        here = {v: np.asarray(self._at(self.base, v)) for v in group}  # of a stack, one array
        for _ in range(DRAWS):
            direction = {v: self.generator.standard_normal(a.shape) * _scale(a) for v, a in here.items()}
            terms = [(self._at(self.base, self.judged.gradients[v]) * d) for v, d in direction.items()]
            expected = float(sum(term.sum() for term in terms))
            size = float(np.sqrt(sum(np.square(term).sum() for term in terms)))
            if abs(expected) >= 0.5 * size:
                break
        return direction, expected, size

    def _value(self, moved: dict[Value, Array]) -> float:
        """The sum of the outputs, each times its sensitivity, after values have moved."""
        values = self._evaluate(moved)
        total = 0.0
        for i, output in enumerate(self.judged.outputs):
            sens = self._at(self.base, self.judged.sens[i]) if self.judged.sens else 1.0
            total += float((np.asarray(self._at(values, output)) * sens).sum())
        return total

    def _evaluate(self, moved: dict[Value, Array]) -> dict[Value, Array]:
        """All values after some have moved; those that pass no gradient, and distributions that are read, stay."""
        values = self.base | {p: np.array(a + moved[p] if p in moved else a) for p, a in self.values.items()}
        with np.errstate(all="ignore"):
            for node in self.forward:
                if node in self.judged.gradients:
                    own = np.asarray(self.base[node]) + moved.get(node, 0.0)
                    values[node] = list(own) if isinstance(self.base[node], list) else own
                    continue
                inputs = [self._at(values, value) for value in node.inputs]
                for index in node.op.distributions:
                    inputs[index] = self._at(self.base, node.inputs[index])
                values[node] = self.kernel(node)(*inputs)
        return values

    def _at(self, values: dict[Value, Array], value: Value) -> Array:
        return value.value if isinstance(value, Constant) else values[value]


def _depend(nodes: Sequence[Node], roots: Any) -> set[Value]:
    found: set[Value] = set(roots)
    for node in nodes:
        if any(value in found for value in node.inputs):
            found.add(node)
    return found


def _scale(array: Array) -> float:
    return float(np.sqrt(np.mean(np.square(array)))) or 1e-2 if array.size else 0.0
