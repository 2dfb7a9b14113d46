"""Compares gradients with finite differences: a judge of every gradient rule that knows none of them.

Along a random direction d of some parameters, (f(x + h d) - f(x - h d)) / 2h must be what the gradients make of d, in
Float64 (`Doubled`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mspc.ir.graph import Constant, Node, Parameter, Value
from mspc.runtime.backend import NumPyBackend
from mspc.runtime.comm.local import LocalComm, World
from mspc.verify.difference import ComparedValue
from mspc.verify.float64_graph import Doubled, Judged, needed, passes_no_gradient, widened

Array = Any
TOLERANCE = 1e-3
"""Difference from what is expected of a direction, relative to the size of that over all directions."""
STEPS = (1e-6, 1e-4, 1e-2)
"""Sizes of a step relative to the parameter; a larger one where kernels of an operator compute in Float32."""
DIRECTIONS = 12
"""The most directions; parameters beyond share one with their neighbours."""


def directions(doubled: Doubled, values: dict[str, Array], seed: int) -> tuple[list[ComparedValue], int]:
    """(a row for every direction in which gradients are wrong, the number of directions).

    values: of parameters, constants and inputs, by name.
    """

    def main(comm: LocalComm) -> tuple[list[ComparedValue], int]:
        backend = NumPyBackend(comm, step=1)
        rows: list[ComparedValue] = []
        count = 0
        for judged in doubled.judged:
            try:
                found, directions = _Judge(doubled, judged, backend, values, seed).rows()
            except Exception:  # some kernel does not take Float64: the network itself runs, so nothing is wrong
                continue
            rows, count = rows + found, count + directions
        return rows, count

    return World(1).run(main)[0]


class _Judge:
    """Judges one request at one place."""

    def __init__(
        self, doubled: Doubled, judged: Judged, backend: NumPyBackend, values: dict[str, Array], seed: int
    ) -> None:
        self.judged, self.backend, self.graph = judged, backend, doubled.graph
        self.values = {p: widened(values[p.name]) for p in self.graph.parameters}
        self.generator = np.random.default_rng(seed)
        read = [*judged.outputs, *judged.sens]
        self.forward = needed(self.graph, read)
        self.base = doubled.run(backend, self.values, [*read, *judged.gradients.values()])
        passing = [node for node in self.forward if not passes_no_gradient(node)]
        moving = _depend(passing, judged.gradients)
        self.forward = [node for node in passing if node in moving or node.op.mutates]

    def rows(self) -> tuple[list[ComparedValue], int]:
        wanted = [p for p, g in self.judged.gradients.items() if np.isfinite(self._at(self.base, g)).all()]
        size = max(1, -(-len(wanted) // DIRECTIONS))
        groups = [wanted[i : i + size] for i in range(0, len(wanted), size)]
        found = [self._row(group) for group in groups]
        return [row for row in found if row is not None], len(groups)

    def _row(self, group: list[Parameter]) -> ComparedValue | None:
        """The row of one direction where the gradients are wrong."""
        direction = {p: self.generator.standard_normal(p.shape) * _scale(self.values[p]) for p in group}
        terms = [(self._at(self.base, self.judged.gradients[p]) * d) for p, d in direction.items()]
        expected = float(sum(term.sum() for term in terms))
        size = float(np.sqrt(sum(np.square(term).sum() for term in terms)))
        slopes: list[float] = []
        sides: list[float] = []
        here = self._value({})
        for step in STEPS:
            ends = [self._value({p: sign * step * d for p, d in direction.items()}) for sign in (1.0, -1.0)]
            sides.append(abs(ends[0] - 2 * here + ends[1]) / step)
            slope = (ends[0] - ends[1]) / (2 * step)
            noise = 1e-12 * max(map(abs, ends)) / step
            if not np.isfinite(slope) or abs(slope - expected) <= TOLERANCE * size + noise:
                return None
            slopes.append(slope)
        apart = min(abs(slope - expected) for slope in slopes)
        if max(abs(a - b) for a in slopes for b in slopes) > 0.1 * apart:
            return None  # not smooth enough to be judged
        if min(sides) > 0.1 * apart:
            return None  # a corner, as of ReLU at 0: the slopes on its two sides differ, however near to it
        larger = max(size, abs(slopes[0]))
        names = ", ".join(p.name for p in group)
        return ComparedValue("derivative", names, group[0].shape, apart / larger if larger else apart, TOLERANCE)

    def _value(self, perturbed: dict[Parameter, Array]) -> float:
        """The sum of the outputs, each times its sensitivity, with the parameters moved."""
        values = self._evaluate(perturbed)
        total = 0.0
        for i, output in enumerate(self.judged.outputs):
            sens = self._at(self.base, self.judged.sens[i]) if self.judged.sens else 1.0
            total += float((np.asarray(self._at(values, output)) * sens).sum())
        return total

    def _evaluate(self, perturbed: dict[Parameter, Array]) -> dict[Value, Array]:
        """Values with the parameters moved; what passes no gradient, and what is read as distributions, stays."""
        values = self.base | {p: np.array(a + perturbed[p] if p in perturbed else a) for p, a in self.values.items()}
        with np.errstate(all="ignore"):
            for node in self.forward:
                inputs = [self._at(values, value) for value in node.inputs]
                for index in node.op.distributions:
                    inputs[index] = self._at(self.base, node.inputs[index])
                values[node] = node.op.kernel(self.backend)(*inputs)
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
