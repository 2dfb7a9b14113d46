"""The judge of the ranks: one device that runs the network of small sizes on the global batch."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from multiprocessing import get_all_start_methods, get_context
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from mspc.engine.garbage import frozen_garbage
from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Builder, Graph, Node, Value, element_types
from mspc.ir.late_dataclass import dataclass
from mspc.ir.layout import Layout
from mspc.ir.types import TensorType
from mspc.ops.collective.collectives import AllReduce
from mspc.ops.math.arithmetic import Mul
from mspc.ops.op import Op
from mspc.passes.communication.reduce_gradients import summed_gradients
from mspc.passes.lib.batch_rows import FIRST, Rows, rows_beside
from mspc.verify.difference import Noise, noise_between
from mspc.verify.global_batch import rows_of_draws
from mspc.verify.one_device import Movement, OneDevice
from mspc.verify.scale.execution import KindRun, KindState, Seen, run_step
from mspc.verify.scale.rank_kinds import (
    Divided,
    RankKind,
    Slices,
    divided,
    flat,
    narrowed,
    on_mesh,
    one_or_all,
    parts_of,
    rows_by_rank,
)
from mspc.verify.scale.watch import Known, known_values
from mspc.verify.verification import untaken

Array = Any
Inputs = Sequence[Mapping[str, Array]]
"""Global inputs of every step, by name."""


class OneDeviceReference:
    """One device, which computes in Float64. weights: first values. fed: which slices of global inputs ranks have, by
    name, if their programs do not say it."""

    def __init__(self, graph: Graph, weights: dict[str, Array], inputs: Inputs) -> None:
        self.graph, self.fed = graph, dict[str, Layout]()
        self._weights, self._inputs = weights, inputs
        self._device = OneDevice(graph, weights, [[list(step.values()) for step in inputs]], "")
        self._receiver: Connection | None = None
        """The connection to one device in another process."""

    @contextmanager
    def beside(self) -> Generator[None]:
        """Compute the expected values in a process of its own meanwhile, if possible."""
        if "fork" not in get_all_start_methods():
            yield
            return
        context = get_context("fork")
        self._receiver, sender = context.Pipe(duplex=False)
        process = context.Process(target=lambda: sender.send(_run(self._device)), daemon=True)
        # Both share the memory of the programs for as long as nobody writes to it, as a search for garbage does.
        with frozen_garbage():
            process.start()
            sender.close()
            try:
                yield
            finally:
                process.terminate()
                process.join()

    @cached_property
    def _ran(self) -> tuple[list[list[dict[Any, Array]]], list[int]]:
        """(the values, the places in its program of the branches and loops that ran)"""
        if self._receiver is None:
            return _run(self._device)
        try:
            return self._receiver.recv()
        except EOFError:  # it has ended without a result, so that its failure shows here
            return _run(self._device)

    @property
    def _expected(self) -> list[list[dict[Any, Array]]]:
        return self._ran[0]

    def untaken(self) -> list[tuple[Node, str]]:
        """Return the branches and loops that no step runs; see `mspc.verify.verification.untaken`."""
        return _untaken(self.graph, self._ran[1])

    @cached_property
    def _noise(self) -> Callable[[int, int, Any], Noise]:
        return self._device.noise(self._expected)

    def result(self, step: int, number: int) -> Array | None:
        """Return a result of a step, or None."""
        return self._expected[step][0].get(("result", number))

    def stored(self, step: int, name: str) -> Array:
        return self._expected[step][0][name]

    def of_ranks(self, slices: Slices, array: Array, layout: Layout | None, padded: Sequence[int] = ()) -> Array:
        """Return the slices of such a value on the ranks of a kind, with leading dimensions. padded: see `Slices`."""
        return slices.of(array, layout, padded)

    def noise(self, step: int, key: Any) -> Noise:
        """Return how far rounding moves a value: ("result", number), or a parameter's name."""
        return self._noise(step, 0, key)

    def known(self, step: int) -> Known:
        """Return the values of all nodes in a step. Raises NodeError."""
        values: dict[Node, dict[tuple[int, ...], Any]] = {}
        states = [self.state()]
        for number in range(step + 1):
            run_step(states, [self.fed_in(number)], number + 1, known_values(values) if number == step else None)
        return values

    def state(self) -> KindState:
        """Return its first stored values, as a kind of one rank."""
        kind = RankKind((0,), self.graph, mesh=(1,))
        held = {p.name: np.array(self._weights[p.name])[None] for p in self.graph.parameters if p.kind != "input"}
        return KindState(kind, held)

    def fed_in(self, step: int) -> dict[str, Array]:
        """Return the inputs of a step, as those of a kind of one rank."""
        return {name: array[None] for name, array in self._inputs[step].items()}


def _run(device: OneDevice) -> tuple[list[list[dict[Any, Array]]], list[int]]:
    taken = set[Graph]()
    return replace(device, taken=taken).run(), _places(device.graph, taken)


def _places(graph: Graph, taken: Collection[Graph]) -> list[int]:
    return [place for place, each in enumerate(graph.graphs()) if each in taken]


def _untaken(graph: Graph, places: Collection[int]) -> list[tuple[Node, str]]:
    return untaken(graph, {each for place, each in enumerate(graph.graphs()) if place in places})


# If ranks feed rows of their own, one device takes the place of every rank.
#
# Input:  the network on a rank's rows, and the rows of all ranks.
# Output: its values on the rows of every rank, all of them at once, with the gradients that updates read added up, or
#         their mean, as data parallel mode says. Random numbers are drawn for the rows of all, and operators over a
#         batch compute over all rows.


TOTAL = "total_gradient_of"
"""The attribute of nodes that updates read in the place of a rank's own gradients."""


@dataclass(frozen=True)
class OwnRows:
    """How ranks feed. ranks: how many there are. layouts: of the global inputs, which slices ranks have. mean: updates
    read the mean of the ranks' gradients. batch: the network on the rows of all ranks, whose shapes show the rows; None
    if there is none."""

    ranks: int
    layouts: tuple[Layout, ...]
    mean: bool
    batch: Graph | None = None

    def global_types(self, graph: Graph) -> list[TensorType]:
        """Return the types of the inputs of all ranks together."""
        found: list[TensorType] = []
        inputs = [p.tensor_type for p in graph.parameters if p.kind == "input"]
        for own, layout in zip(inputs, self.layouts, strict=True):
            found.append(own.with_shape(tuple(n * s for n, s in zip(own.shape, layout.strategy, strict=True))))
        return found

    def draws(self, real: Graph, small: Graph) -> dict[Node, Rows]:
        """Find the rows in random results of the small program."""
        sharded = [any(layout.dims) for layout in self.layouts]
        found = rows_of_draws(real, sharded, self.batch)
        graphs = zip(real.graphs(), small.graphs(), strict=True)
        pairs = (pair for one, other in graphs for pair in zip(one.nodes, other.nodes, strict=True))
        return {own: found[node] for node, own in pairs if node in found}


class OwnRowsReference:
    """One device in the place of every rank. graph: on a rank's rows; gets sums of gradients. draws: the rows in random
    results. weights: first values."""

    def __init__(
        self, graph: Graph, own: OwnRows, draws: Mapping[Node, Rows], weights: dict[str, Array], inputs: Inputs
    ) -> None:
        add_totals(graph, own.ranks, own.mean)
        self.graph, self._draws, self._weights, self._inputs = graph, draws, weights, inputs
        names = [p.name for p in graph.parameters if p.kind == "input"]
        self.fed = dict(zip(names, own.layouts, strict=True))
        self._kinds = [RankKind(tuple(range(own.ranks)), graph, mesh=(own.ranks,))]
        """Several if ranks go different ways because of their data."""
        self._taken = set[int]()

    @cached_property
    def _expected(self) -> list[dict[Any, Array]]:
        return self._run(len(self._inputs))

    @cached_property
    def _moved(self) -> list[tuple[Movement, list[dict[Any, Array]]]]:
        moves = [Movement(self.graph, self._weights, sign) for sign in (1.0, -1.0)]
        return [(move, self._run(len(self._inputs), move=move)) for move in moves]

    def _run(self, steps: int, seen: Seen | None = None, move: Movement | None = None) -> list[dict[Any, Array]]:
        """Return the results and stored values of each step, with a dimension of ranks."""
        while True:
            try:
                return self._run_kinds(steps, seen, move)
            except Divided as error:
                if self._draws or any(_groups(node.op, len(error.kind.ranks)) for node in self.graph.nodes):
                    raise MspcError(
                        "ranks go different ways, as their rows say, in a network that draws for all rows, or computes "
                        "over all of them",
                        notes=["mspc verify without --scale compares such a network at its own sizes"],
                    ) from None
                self._kinds = divided(self._kinds, error)

    def _run_kinds(self, steps: int, seen: Seen | None, move: Movement | None) -> list[dict[Any, Array]]:
        first = self._weights if move is None else move.weights
        kept = [p.name for p in self.graph.parameters if p.kind != "input"]
        states = [KindState(kind, {name: _for(kind, np.array(first[name])) for name in kept}) for kind in self._kinds]
        found: list[dict[Any, Array]] = []
        for step, inputs in enumerate(self._inputs[:steps]):
            given = inputs if move is None else {n: move.array(a, step, 0) for n, a in inputs.items()}
            fed = [{n: Slices(kind).of(array, self.fed[n]) for n, array in given.items()} for kind in self._kinds]
            runs = [OwnRowsRun(state, step + 1, seen, self._draws, move) for state in states]
            results = run_step(states, fed, step + 1, runs=runs)
            named: list[dict[Any, Array]] = []
            for own, state in zip(results, states, strict=True):
                held: dict[Any, Array] = {name: np.array(state.stored[name]) for name in kept}
                named.append(held | {("result", n): array for n, array in enumerate(own)})
            found.append({key: self._together([own[key] for own in named]) for key in named[0]})
        for state in states:
            self._taken.update(_places(state.kind.graph, state.taken))
        return found

    def _together(self, parts: Sequence[Array]) -> Array:
        if len(parts) == 1:
            return parts[0]
        rows = rows_by_rank(zip(self._kinds, parts, strict=True))
        return narrowed(np.stack([rows[rank] for rank in sorted(rows)]), 1)

    def result(self, step: int, number: int) -> Array | None:
        return self._expected[step].get(("result", number))

    def stored(self, step: int, name: str) -> Array:
        return self._expected[step][name]

    def of_ranks(self, slices: Slices, array: Array, layout: Layout | None, padded: Sequence[int] = ()) -> Array:
        kind = slices.kind
        if len(array) == 1:
            return slices.of(array[0], layout, padded)
        return on_mesh(array[list(kind.ranks)], kind.mesh)

    def noise(self, step: int, key: Any) -> Noise:
        value = self.result(step, key[1]) if isinstance(key, tuple) else self.stored(step, key)
        if value is None or value.dtype.kind != "f":
            return Noise()
        found: list[Array] = []
        for move, run in self._moved:
            moved = run[step][key]
            if key in move.weights:
                moved = moved - (move.weights[key] - self._weights[key])
            found.append(np.broadcast_to(moved, value.shape) if len(moved) == 1 else moved)
        wide = np.broadcast_shapes(*(array.shape for array in (value, *found)))
        return noise_between(np.broadcast_to(value, wide), [np.broadcast_to(array, wide) for array in found])

    def known(self, step: int) -> Known:
        values: dict[Node, dict[tuple[int, ...], Any]] = {}
        self._run(step + 1, known_values(values))  # of every step that is run those of the last one stay
        return values if len(self._kinds) == 1 else {}

    def untaken(self) -> list[tuple[Node, str]]:
        return _untaken(self.graph, self._taken)


def _for(kind: RankKind, array: Array) -> Array:
    return array.reshape((1,) * kind.depth + array.shape)


def add_totals(graph: Graph, ranks: int, mean: bool) -> None:
    """Let updates read the sums of all ranks' gradients, or their means."""
    summed = summed_gradients(graph)
    for each in graph.graphs():
        _add_totals_of(each, summed, ranks, mean, is_region=each is not graph)


def _add_totals_of(graph: Graph, summed: set[Node], ranks: int, mean: bool, is_region: bool) -> None:
    """Add the totals of one graph. In a region, which may return them, every reader gets them."""
    totals, nodes = dict[Value, Value](), list[Node]()
    builder = Builder(graph, nodes)
    for node in graph.nodes:
        if node.phase == "update" or is_region:
            node.inputs = [totals.get(value, value) for value in node.inputs]
        nodes.append(node)
        if node in summed:
            builder.like(node).phase = "backward"
            total = builder.emit(AllReduce().with_ranks(tuple(range(ranks))), node)
            factor = builder.constant(1.0 / ranks if mean else 1.0, node.tensor_type.dtype)
            totals[node] = read = builder.emit(Mul(), total, factor)
            read.attrs[TOTAL] = str(node.attrs["gradient_for"])
    graph.nodes = nodes
    if is_region:
        graph.results = [totals.get(value, value) for value in graph.results]


class OwnRowsRun(KindRun):
    """A step in the places of all ranks. draws: see `OwnRowsReference`. move: adds rounding errors."""

    def __init__(
        self, state: KindState, step: int, seen: Seen | None, draws: Mapping[Node, Rows], move: Movement | None
    ) -> None:
        super().__init__(state, step, seen)
        self._draws, self._move, self._step = draws, move, step

    def _computed(self, node: Node, operands: list[Any], values: dict[Value, Any]) -> Any:
        if node in self._draws:
            return self._drawn(node, self._draws[node], operands)
        groups = _groups(node.op, len(self.kind.ranks))
        if groups:
            return self._of_batch(node, groups, operands, values)
        read = operands if self._move is None else self._move.operands(node, operands)
        found = super()._computed(node, read, values)
        if self._move is not None and TOTAL in node.attrs:
            return self._move.gradient(node.attrs[TOTAL], found, self._step)
        return found

    def _drawn(self, node: Node, rows: Rows, operands: Sequence[Array]) -> Any:
        """Draw for the rows of all ranks, and give each its own."""
        op, dimension, count = node.op, rows[0], len(self.kind.ranks)
        read, made = rows_beside(node, rows)
        shape = getattr(op, "shape", ())
        size = element_types(node.type)[0].shape[dimension]
        if shape:
            grown = (*shape[:dimension], size * count, *shape[dimension + 1 :])
            op = replace(op, shape=grown)  # type: ignore[type-var]  # operators are dataclasses
        assert isinstance(op, Op)
        given = [
            array if place is None or array.shape[1 + place[0]] != size else _joined(flat(array, self.kind.mesh), place)
            for array, place in zip(operands, read, strict=True)
        ]
        kernel, found = op.kernel(self._backend), list[tuple[Array, ...]]()
        for rank in range(max((len(array) for array in given), default=1)):  # others read each rank's own
            found.append(parts_of(kernel(*(array[rank % len(array)] for array in given))))
        results: list[Array] = []
        for number, place in enumerate(made):
            parts = [each[number] for each in found]
            if place is not None:
                split = [_split(part, place, count) for part in parts]
                parts = [split[rank % len(split)][rank] for rank in range(count)]
            results.append(narrowed(np.stack(parts), 1))
        return one_or_all(results)

    def _of_batch(
        self, node: Node, groups: Sequence[Sequence[int]], operands: list[Array], values: dict[Value, Any]
    ) -> Any:
        """Run an operator on the rows of each group of ranks together, and give each rank its own."""
        op, ranks = node.op, self.kind.ranks
        assert isinstance(op, Op)
        kernel = op.kernel(self._backend)
        flats = [np.array(flat(array, self.kind.mesh)) for array in operands]
        found: dict[int, list[Array]] = {}
        for group in groups:
            members = list(group)
            given = [_joined(a[members], FIRST)[0] if a.ndim > 2 else np.array(a[members[0]]) for a in flats]
            parts = parts_of(kernel(*given))
            own = {rank: parts_of(kernel(*(np.array(a[rank]) for a in flats))) for rank in members if op.sums_of_rows}
            for index in op.mutates:
                flats[index][members] = given[index]
            for place, rank in enumerate(members):
                found[rank] = [
                    own[rank][i] if i in op.sums_of_rows
                    else _split(part, FIRST, len(members))[place] if part.ndim > 1 else np.asarray(part)
                    for i, part in enumerate(parts)
                ]  # fmt: skip
        for index in op.mutates:
            operands[index] = values[node.inputs[index]] = flats[index]
        parts = zip(*(found[rank] for rank in ranks), strict=True)
        return one_or_all([narrowed(np.stack(part), 1) for part in parts])


def _groups(op: Any, ranks: int) -> list[Sequence[int]]:
    """Return the groups of ranks over whose rows an operator computes; none if it computes over each rank's own."""
    if not isinstance(op, Op):
        return []
    groups = list(op.over_all_ranks(tuple(range(ranks))).attributes().get("groups", ()))
    own = [(rank,) for rank in range(ranks) if not any(rank in group for group in groups)]
    return [*groups, *own] if any(len(group) > 1 for group in groups) else []


def _joined(array: Array, place: Rows) -> Array:
    """Return the rows of all ranks as one device has them, with a dimension of size 1 for these."""
    axis, outer = place
    count, *own = array.shape
    parts = array.reshape(count, *own[:axis], outer, own[axis] // outer, *own[axis + 1 :])
    return np.moveaxis(parts, 0, axis + 1).reshape(1, *own[:axis], count * own[axis], *own[axis + 1 :])


def _split(array: Array, place: Rows, count: int) -> Array:
    """Return each rank's own rows, along a first dimension."""
    axis, outer = place
    size = array.shape[axis] // count
    parts = array.reshape(*array.shape[:axis], outer, count, size // outer, *array.shape[axis + 1 :])
    return np.moveaxis(parts, axis + 1, 0).reshape(count, *array.shape[:axis], size, *array.shape[axis + 1 :])
