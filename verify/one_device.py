"""Runs some steps on one device, operator by operator, and measures how far rounding alone moves its values.

If every rank trains on its own rows, one device runs on the rows of each. The gradients that updates read are then
combined by hand, except those that the script's own collectives add up, which run between the places. Operators over
the global batch compute over all rows.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from typing import Any, cast

import numpy as np

from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Graph, Node, element_types
from mspc.ir.late_dataclass import dataclass
from mspc.ir.layout import Layout
from mspc.ir.text.families import gradient_names
from mspc.ir.types import Type
from mspc.ops.collective.point_to_point import ReceiveFromStage, SendToStage
from mspc.ops.op import Op
from mspc.ops.optim.optimizer import AllFinite
from mspc.passes.communication.reduce_gradients import summed_gradients
from mspc.runtime.backend import NumPyBackend
from mspc.runtime.comm.interface import combine
from mspc.runtime.comm.local import LocalComm, World
from mspc.runtime.observe import observe
from mspc.verify.difference import TOLERANCES, Noise, coarsest, epsilon_of, floats_of, noise_between

# A pretended overflow: one number of one tensor, so that one rank may see it alone.


Array = Any


@dataclass(frozen=True)
class Poke:
    """An infinity in the last element of an operand of the operator that carries `number` under `mark`.

    layout: that operand's on the ranks; None if each has its own. shape: of the global operand.
    """

    mark: str
    number: int
    operand: int
    shape: tuple[int, ...]
    layout: Layout | None

    def on_one_device(self, node: Node, operands: list[Array]) -> list[Array]:
        """Return the operands as one device reads them."""
        if node.attrs.get(self.mark) != self.number:
            return operands
        return [_with_infinity(each) if i == self.operand else each for i, each in enumerate(operands)]

    def on_rank(self, rank: int, graphs: Sequence[Graph]) -> Callable[[Node, list[Array]], list[Array]]:
        """Return the operands for the slices of a rank. graphs: of all ranks. If there are several stages, those that
        compute the operand have the infinity, and they send it to others."""
        if self.layout is not None:
            slices = self.layout.slices_for(rank, self.shape)
            if any(s.stop != n for s, n in zip(slices, self.shape, strict=True)):
                return lambda _, operands: operands
        operands = [self._operand_of(graph) for graph in graphs]
        sent = {
            (op.sr_tag, op.distance) for target, op in enumerate(operands)
            if isinstance(op, ReceiveFromStage) and target - op.distance == rank
        }  # fmt: skip
        computes = not isinstance(operands[rank], ReceiveFromStage)

        def poked(node: Node, given: list[Array]) -> list[Array]:
            if isinstance(node.op, SendToStage) and (node.op.sr_tag, node.op.distance) in sent:
                return [_with_infinity(given[0])]
            return self.on_one_device(node, given) if computes else given

        return poked

    def _operand_of(self, graph: Graph) -> object:
        """Return the operator that makes the operand in a rank's graph, or None if that graph looks for no overflow."""
        looking = next((node for node in graph.nodes if node.attrs.get(self.mark) == self.number), None)
        value = None if looking is None else looking.inputs[self.operand]
        return value.op if isinstance(value, Node) else None


def _with_infinity(array: Array) -> Array:
    changed = np.array(array)
    if changed.size:
        changed.reshape(-1)[-1] = np.inf
    return changed


def pokes(graph: Graph, mark: str) -> list[Poke]:
    """List the overflows to pretend in the graph of all ranks: in the first operand, the last, and the one with the
    smallest slices, of every operator that looks for overflows."""
    found: list[Poke] = []
    for node in graph.nodes:
        if not isinstance(node.op, AllFinite) or mark not in node.attrs:
            continue
        layouts = [v.layout if isinstance(v.layout, Layout) else None for v in node.inputs]
        most_sharded = max(range(len(layouts)), key=lambda i: _parts(layouts[i]))
        for index in sorted({0, most_sharded, len(layouts) - 1}):
            shape = element_types(node.inputs[index].type)[0].shape
            found.append(Poke(mark, node.attrs[mark], index, shape, layouts[index]))
    return found


def _parts(layout: Layout | None) -> int:
    return 1 if layout is None else math.prod(layout.strategy)


# Says which operands an operator adds up, whose order rounding depends on.


WIDE = ("float32", "float64")
"""Types that sums are taken in: those of narrower elements are taken in Float32, so that their order moves little."""


def added_up(node: Node) -> tuple[int, ...]:
    """Return the numbers of the operands that a node adds up along some dimension; none of one that overwrites any."""
    if not isinstance(node.op, Op) or node.op.mutates or node.regions:
        return ()
    return _added_up(node.op, tuple(value.type for value in node.inputs))


def is_exact(array: Array) -> bool:
    """Return whether rounding has no part in a sum of an array's numbers in any order: whole ones, as counts, or of a
    type that is narrower than that of the sum, or that has no fractions."""
    return array.dtype.name not in WIDE or bool(np.all(array == np.rint(array)))


@lru_cache(maxsize=4096)
def _added_up(op: Op, types: tuple[Type, ...]) -> tuple[int, ...]:
    try:
        rule = op.parsed_rule(*types)  # type: ignore[arg-type]  # it refuses all but tensors
    except (MspcError, NotImplementedError, AttributeError):
        return ()
    added = set(rule.reduced) if rule.reduction in ("sum", "mean") else set[int]()
    for i in rule.summed:
        added |= {*range(len(rule.names))} - {factor for dim in rule.outputs[i] for factor in dim}
    added = {factor for factor in added if rule.sizes[factor] > 1}
    return tuple(i for i, dims in enumerate(rule.inputs) if any(not added.isdisjoint(dim) for dim in dims))


# Runs operators that compute over the global batch on one device that has the rows of several places in a row.


def kernel_over_places(node: Node, backend: NumPyBackend) -> Callable[..., Any] | None:
    """Return the kernel of an operator that in data parallel mode computes over all ranks' rows, on the rows of all
    places that share a batch; None for any other operator.

    Arrays of two dimensions and more have rows. Each place takes its own of the results, and of sums over rows, which
    are added up later, its own term.
    """
    comm, op = backend.comm, node.op
    if comm.size == 1 or not isinstance(op, Op):
        return None
    groups = op.over_all_ranks(tuple(range(comm.size))).attributes().get("groups", ())
    group = next((tuple(sorted(g)) for g in groups if comm.rank in g), ())
    if len(group) < 2:
        return None
    place = group.index(comm.rank)

    def kernel(*operands: Array) -> Any:
        gathered = [comm.all_gather(a, group, 0) if np.ndim(a) > 1 else np.array(a) for a in operands]
        rows = max(len(a) for a in operands if np.ndim(a) > 1)
        parts = cast("tuple[Array, ...]", op.kernel(backend)(*gathered))
        for i in op.mutates:
            operands[i][...] = gathered[i]
        mine = tuple(a[place * rows : (place + 1) * rows] if a.ndim > 1 else a for a in parts)
        if not op.sums_of_rows:
            return mine
        own = cast("tuple[Array, ...]", op.kernel(backend)(*operands))
        return tuple(own[i] if i in op.sums_of_rows else a for i, a in enumerate(mine))

    return kernel


Values = dict[Any, Array]
"""The record that `observe` makes of a step."""
ROUNDINGS = 4
"""The number of rounding errors by which inputs and weights are moved in the runs that measure noise."""
UNSURE = 0.25
"""The fraction of its tolerance by which a gradient is moved there before an update reads it."""


@dataclass(frozen=True)
class OneDevice:
    """A network on one device.

    graph: its graph. weights: first values of parameters and constants. feeds: for every place (one, or one for each
    rank that has its own rows) and step the inputs. mark: see `observe`. mean: updates read the mean of the places'
    gradients, not the sum. marked: the step, counted from 0, of which operators' values are recorded. kernels: see
    `kernel_of` of `observe`. combine: maps a gradient to the one that an update reads. taken: gets the graphs of
    branches that run, if it is a set.
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
        """Return the values of every step and place. poke: an overflow to pretend in the first step, which is then the
        only one."""
        return self._run(None, poke)

    def noise(self, expected: Sequence[Sequence[Values]]) -> Callable[[int, int, Any], Noise]:
        """Return a function of step, place and key that says how far rounding errors of inputs and sums move that
        value, for parameters without the movement of their first values."""
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
    """Moves the inputs of a run by rounding errors of random signs, or of the opposite ones.

    Only trained weights move, or all if none is trained: an error in an optimizer's states may exceed any rounding.
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
        """Return an array whose elements have moved by some rounding errors."""
        if array.dtype.name not in _FLOATS:
            return array
        return (array * (1 + self.amount * self._signs(array.shape, place))).astype(array.dtype)

    def gradient(self, name: str, gradient: Array, step: int) -> Array:
        """Move a gradient within the tolerance of its own comparison; in the opposite run in the other direction, so
        that every element that may have either sign has both."""
        size = float(np.max(np.abs(gradient.astype(np.float64)), initial=0.0))
        if not np.isfinite(size) or gradient.dtype.name not in _FLOATS:
            return gradient
        by = UNSURE * self.tolerance * size * self._signs(gradient.shape, (zlib.crc32(name.encode()), step))
        return (gradient + by).astype(gradient.dtype)

    def operands(self, node: Node, operands: list[Array]) -> list[Array]:
        """Move the operands that a node adds up: ranks add up in another order, and a sum in any order is the exact one
        of numbers that are rounding errors away. Moved inputs alone would not show that if they reach a sum through a
        flat function, as a tanh near 1, and the sum is 0 but for rounding."""
        places = added_up(node)
        if not places:
            return operands
        number = self._numbers.setdefault(node, len(self._numbers))  # not in the graph if that has been copied
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
