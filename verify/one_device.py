"""Runs some steps on one device, operator by operator, and measures how far rounding alone moves its values.

Where every rank trains on its own rows one device runs on the rows of each; the gradients that updates read are then
combined by hand, but for those that the script's own collectives add up, which run between the places, and what
computes over the global batch is computed of all rows.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np

from mspc.ir.graph import Graph, Node
from mspc.ir.late_dataclass import dataclass
from mspc.ir.text.families import gradient_names
from mspc.passes.communication.reduce_gradients import summed_gradients
from mspc.runtime.backend import NumPyBackend
from mspc.runtime.comm.interface import combine
from mspc.runtime.comm.local import LocalComm, World
from mspc.runtime.observe import observe
from mspc.verify.data_parallel.shared_rows import kernel_over_places
from mspc.verify.difference import TOLERANCES, Noise, coarsest, epsilon_of, floats_of, noise_between
from mspc.verify.overflow import Poke
from mspc.verify.sums import added_up, is_exact

Array = Any
Values = dict[Any, Array]
"""What `observe` records of a step."""
ROUNDINGS = 4
"""The number of rounding errors by which inputs and weights are moved in the runs that measure noise."""
UNSURE = 0.25
"""The fraction of its tolerance by which a gradient is moved there before an update reads it."""


@dataclass(frozen=True)
class OneDevice:
    """A network on one device.

    graph: its graph. weights: first values of parameters and constants. feeds: for every place (one, or one for each
    rank that has its own rows) and step the inputs. mark: see `observe`. mean: what updates read is the mean of the
    places' gradients, not the sum. marked: the step, counted from 0, of which operators' values are recorded.
    kernels: see `kernel_of` of `observe`. combine: what an update reads of a gradient, in the place of that.
    taken: gets the graphs of branches that run, if it is a set.
    """

    graph: Graph
    weights: dict[str, Array]
    feeds: Sequence[Sequence[Sequence[Array]]]
    mark: str
    mean: bool = False
    marked: int = 0
    kernels: Callable[[Node, NumPyBackend], Callable[..., Array] | None] = kernel_over_places
    combine: Callable[[Node, Array], Array] | None = None
    taken: set[Graph] | None = None

    def run(self, poke: Poke | None = None) -> list[list[Values]]:
        """For every step and place what was computed. `poke`: an overflow that is pretended in the first step, which is
        then the only one."""
        return self._run(None, poke)

    def noise(self, expected: Sequence[Sequence[Values]]) -> Callable[[int, int, Any], Noise]:
        """Tells of a step, a place and a key how far that value of such a run moves where the run's inputs and what
        it adds up do by rounding errors, parameters without what they began with."""
        first = self.weights
        moves = [Movement(self.graph, first, sign) for sign in (1.0, -1.0)]
        runs = [(self._run(move), move) for move in moves]

        @cache
        def of(step: int, place: int, key: Any) -> Noise:
            value = expected[step][place].get(key)
            if value is None or value.dtype.name not in _FLOATS:
                return Noise()
            found: list[Array] = []
            for run, move in runs:
                perturbed = run[step][place].get(key, value)
                if isinstance(key, str) and key in move.weights and key in first:
                    perturbed = perturbed - (move.weights[key] - first[key])
                found.append(perturbed)
            return noise_between(value, found)

        return of

    def _run(self, move: Movement | None, poke: Poke | None = None) -> list[list[Values]]:
        places = range(len(self.feeds))
        summed = summed_gradients(self.graph) if len(places) > 1 else set[Node]()

        def main(comm: LocalComm) -> list[Values]:
            backend = NumPyBackend(comm, taken=self.taken)
            held = {
                p: np.array((move.weights if move is not None else self.weights)[p.name])
                for p in self.graph.parameters
                if p.kind != "input"
            }
            inputs = [p for p in self.graph.parameters if p.kind == "input"]
            found: list[Values] = []
            feeds = self.feeds[comm.rank][:1] if poke is not None else self.feeds[comm.rank]
            for step, data in enumerate(feeds):
                backend.step = step + 1
                arrays = [move.array(a, step, comm.rank) for a in data] if move is not None else data
                values = held | {p: np.array(a) for p, a in zip(inputs, arrays, strict=True)}

                def combined(node: Node, gradient: Array, step: int = step) -> Array:
                    total = self._combined(comm, gradient) if node in summed else gradient
                    total = total if self.combine is None else self.combine(node, gradient)
                    return total if move is None else move.gradient(node.attrs["gradient_for"], total, step)

                mark = self.mark if step == self.marked else ""
                read = move.operands if move is not None else poke and poke.on_one_device
                found.append(observe(self.graph, backend, values, mark, combined, read, self.kernels))
            return found

        ran = World(len(places)).run(main)
        return [[steps[s] for steps in ran] for s in range(len(ran[0]))]

    def _combined(self, comm: LocalComm, gradient: Array) -> Array:
        if comm.size == 1:
            return gradient
        ranks = tuple(range(comm.size))
        total = combine(list(comm.all_gather(np.asarray(gradient)[None], ranks, 0)), "sum")
        return total * total.dtype.type(1.0 / comm.size) if self.mean else total


_FLOATS = frozenset(name.lower() for name in TOLERANCES)


class Movement:
    """Moves what a run is computed from by rounding errors of random signs, or of the opposite ones.

    Of the weights those alone that are trained, all where none is: to states of an optimizer an error may be more than
    rounding ever makes.
    """

    def __init__(self, graph: Graph, weights: dict[str, Array], sign: float) -> None:
        self.sign = sign
        self._numbers = {node: i for i, node in enumerate(n for each in graph.graphs() for n in each.nodes)}
        self.tolerance = coarsest(graph)
        self.amount = ROUNDINGS * max(map(epsilon_of, floats_of(graph)), default=0.0)
        trained = {name for node in graph.nodes for name in gradient_names(node)}
        if not trained:
            trained = {p.name for p in graph.parameters if p.kind == "parameter"}
        self.weights = {n: self.array(w, zlib.crc32(n.encode())) if n in trained else w for n, w in weights.items()}

    def array(self, array: Array, *place: int) -> Array:
        """An array whose elements have moved by some rounding errors."""
        if array.dtype.name not in _FLOATS:
            return array
        return (array * (1 + self.amount * self._signs(array.shape, place))).astype(array.dtype)

    def gradient(self, name: str, gradient: Array, step: int) -> Array:
        """A gradient that has moved by what its own comparison lets pass; in the opposite run in the other direction,
        so that every element that may have either sign has both."""
        size = float(np.max(np.abs(gradient.astype(np.float64)), initial=0.0))
        if not np.isfinite(size) or gradient.dtype.name not in _FLOATS:
            return gradient
        by = UNSURE * self.tolerance * size * self._signs(gradient.shape, (zlib.crc32(name.encode()), step))
        return (gradient + by).astype(gradient.dtype)

    def operands(self, node: Node, operands: list[Array]) -> list[Array]:
        """The operands of a node, those that it adds up moved: ranks add up in another order, and a sum in any order
        is the exact one of numbers that are rounding errors away. Where inputs reach a sum through what hardly moves
        with them, as a tanh near 1, and it is 0 but for rounding, moved inputs alone would not show that."""
        places = added_up(node)
        if not places:
            return operands
        number = self._numbers.setdefault(node, len(self._numbers))  # not in the graph where that has been copied
        moved = list(operands)
        for i in places:
            array = operands[i]
            if isinstance(array, np.ndarray) and not is_exact(array):
                amount = ROUNDINGS * np.finfo(array.dtype).eps
                signs = self._signs(array.shape, (number, i))
                moved[i] = (array * (1 + amount * signs)).astype(array.dtype)
        return moved

    def _signs(self, shape: tuple[int, ...], place: Sequence[int]) -> Array:
        generator = np.random.default_rng(list(place))
        return self.sign * generator.choice([-1.0, 1.0], shape)
