"""Compares data parallel mode with one device that trains on the global batch.

A network may compute different things from a rank's rows and from the global batch. So one device runs on every rank's
rows, each at a place of its own, and on all of them together; the relation between the two is read off their values,
and then asked of the ranks:

rows    the global value is the places', one after the other      sum    the places' values add up to it
same    every place has it                                      mean   they have it as their mean

An update of the ranks reads a sum or a mean of gradients, as the script says. If gradients are terms of a sum, the sum
is one device's; if one device has their mean, as for a loss that is a mean over rows, the sum is that many times as
large, and one device is given it so. The script's own collectives are treated alike.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from functools import partial
from typing import Any

import numpy as np

from mspc.ir.graph import Graph, Node, Parameter, Value, copied_region, element_types
from mspc.ir.late_dataclass import dataclass
from mspc.ir.types import TupleType
from mspc.ops.collective.base import Collective
from mspc.ops.collective.collectives import AllReduce
from mspc.ops.random.words import draws_by_place
from mspc.passes.communication.reduce_gradients import summed_gradients
from mspc.passes.lib.batch_rows import FIRST, FedRows, Rows, rows_beside
from mspc.passes.lib.opened_graphs import opened
from mspc.runtime.backend import NumPyBackend
from mspc.verify.difference import ComparedValue, coarsest, compare, largest_of
from mspc.verify.one_device import OneDevice, Values
from mspc.verify.scale.program_sizes import Sizing

Array = Any
SCRIPT = "by_script"
"""Attribute that says which operator of the script a node is, or whose gradient."""
STRICT = 0.25
"""By which part of their tolerance values may differ that every rank has."""
LOOSE = 64.0
"""How many tolerances apart values are still taken for related: a sum and a mean are far further apart."""


@dataclass
class BatchComparison:
    """The comparison with the global batch. exclusions: reasons why parts cannot be compared. factors: by parameter,
    the ratio of the gradients that the ranks' updates read to those of one device. reductions: how every output of the
    global batch follows from the ranks'. apart: the first operator whose value has no tie to those of the ranks' rows.
    """

    rows: list[ComparedValue] = field(default_factory=list[ComparedValue])
    exclusions: list[str] = field(default_factory=list[str])
    factors: dict[str, float] = field(default_factory=dict[str, float])
    reductions: dict[int, str] = field(default_factory=dict[int, str])
    apart: str = ""


@dataclass(frozen=True)
class GlobalBatchNetwork:
    """The network on the global batch. weights: first values. graph: None if there is none, for this `reason`."""

    graph: Graph | None
    weights: dict[str, Array] = field(default_factory=dict[str, Array])
    reason: str = ""


def name_by_script(graph: Graph) -> None:
    """Number the operators of the script. Differentiation may depend on sizes; the graphs of a rank's rows and of the
    global batch share only operators from before it."""
    for number, node in enumerate(graph.nodes):
        node.attrs[SCRIPT] = number
    graph.attrs[SCRIPT] = len(graph.nodes)


def name_gradients(graph: Graph) -> None:
    """Name the gradients of parameters as well, and take away numbers that differentiation has handed on."""
    seen: Counter[str] = Counter()
    numbers: set[object] = set()
    for node in graph.nodes:
        if node.attrs.get(SCRIPT) in numbers:
            del node.attrs[SCRIPT]
        numbers |= {node.attrs[SCRIPT]} if SCRIPT in node.attrs else set()
        name = str(node.attrs.get("gradient_for", ""))
        if name and SCRIPT not in node.attrs:
            node.attrs[SCRIPT] = f"gradient {seen[name]} of {name}"
            seen[name] += 1


def difference_of(one: Graph, global_graph: Graph) -> str:
    """Say why the two are different networks, or ""."""
    own, all_of = int(one.attrs.get(SCRIPT, 0)), int(global_graph.attrs.get(SCRIPT, 0))
    if own != all_of:
        return f"it has {all_of} operators for the global batch and {own} for a rank's rows"
    others = {node.attrs[SCRIPT]: node for node in global_graph.nodes if SCRIPT in node.attrs}
    for node in one.nodes:
        other = others.get(node.attrs.get(SCRIPT))
        if other is not None and node.op.name != other.op.name:
            return f"for the global batch {other.label} is in the place of {node.label}"
    return ""


def compare_batches(
    batch: GlobalBatchNetwork, feeds: list[list[Array]], of_rows: OneDevice, places: Sequence[Sequence[Values]],
    ranks: Sequence[Sequence[Values]], mean: bool,
) -> BatchComparison:  # fmt: skip
    """Compare the ranks' values with one device that was fed the global batch. feeds: the global inputs of every step.
    of_rows: one device with every rank's rows. places, ranks: the values of both for every step and rank. mean: updates
    read the mean of the ranks' gradients."""
    found = BatchComparison()
    if batch.graph is None:
        found.exclusions.append(batch.reason)
        return found
    graph = batch.graph
    first_rows = replace(of_rows, feeds=[steps[:1] for steps in of_rows.feeds], mark=SCRIPT).run()
    followed = _Followed(graph, first_rows[0], mean, found)
    first = OneDevice(graph, batch.weights, [feeds[:1]], SCRIPT, kernels=followed.kernel_of).run()
    followed.look_at_gradients(first[0][0])
    device = OneDevice(graph, batch.weights, [feeds], SCRIPT, kernels=followed.kernel_of, combine=followed.combined)
    expected = [step[0] for step in device.run()]
    if found.exclusions:
        found.apart = _first_apart(graph, first[0][0], first_rows[0])
        return found
    noise = device.noise([[values] for values in expected])
    least, count = coarsest(graph), len(ranks[0])
    for index, _ in enumerate(graph.results):
        key = "result", index
        worst: ComparedValue | None = None
        for step, values in enumerate(expected):
            relation = related(values[key], [place[key] for place in places[step]], least)
            if relation is None:
                found.exclusions.append(
                    f"output {index} of the global batch is neither the ranks' outputs one after the other nor their "
                    "sum nor their mean"
                )
                worst = None
                break
            if found.reductions.get(index, "same") == "same":  # by chance it may be alike in some step
                found.reductions[index] = relation[0]
            mine = [rank[key] for rank in ranks[step]]
            for together in _joined(relation, mine, values[key]):
                row = compare("global output", str(index), values[key], together, least, partial(noise, step, 0, key))
                worst = row if worst is None else max(worst, row, key=ComparedValue.badness)
        found.rows += [worst] if worst is not None else []
    for parameter in graph.parameters:
        if parameter.kind == "parameter":
            found.rows.append(_parameter(parameter, expected, ranks, count, batch.weights, least, noise))
    return found


def _first_apart(graph: Graph, batch: Values, places: Sequence[Values]) -> str:
    least = coarsest(graph)
    for node in graph.nodes:
        key = node.attrs.get(SCRIPT)
        if key in batch and key in places[0] and related(batch[key], [place[key] for place in places], least) is None:
            return node.label
    return ""


def _parameter(
    parameter: Parameter, expected: Sequence[Values], ranks: Sequence[Sequence[Values]], count: int,
    weights: dict[str, Array], least: float, noise: Callable[[int, int, Any], Any],
) -> ComparedValue:  # fmt: skip
    name, rows = parameter.name, list[ComparedValue]()
    for step, values in enumerate(expected):
        for rank in range(count):
            mine, allowed = ranks[step][rank].get(name), partial(noise, step, 0, name)
            rows.append(compare("global parameter", name, values[name], mine, least, allowed, weights.get(name)))
    return max(rows, key=ComparedValue.badness)


Relation = tuple[str, int]
"""("rows", dimension), ("same", 0), ("sum", 0), ("mean", 0), ("max", 0) or ("min", 0)."""


def related(value: Array, parts: Sequence[Array], least: float) -> Relation | None:
    """Find the relation of a value of the global batch to the places' values, or None."""
    first = parts[0]
    if any(part.shape != first.shape for part in parts) or first.ndim != value.ndim:
        return None
    if value.shape != first.shape:
        grown = [d for d, (a, b) in enumerate(zip(first.shape, value.shape, strict=True)) if a != b]
        joined = np.concatenate(parts, grown[0]) if len(grown) == 1 else None
        return ("rows", grown[0]) if joined is not None and _near(value, joined, least) else None
    if all(_near(value, part, least, STRICT) for part in parts):  # losses of all ranks may be close to each other
        return "same", 0
    for how in ("mean", "sum", "max", "min"):
        if _near(value, _reduced(how, parts), least):
            return how, 0
    zero = least * LOOSE * max(map(largest_of, parts))  # terms that cancel each other leave rounding
    return ("sum", 0) if max(largest_of(value), largest_of(_reduced("sum", parts))) <= zero else None


def _reduced(how: str, parts: Sequence[Array]) -> Array:
    wide = [part.astype(np.float64) if part.dtype.kind in "fV" else part for part in parts]
    if how in ("max", "min"):
        return (np.maximum if how == "max" else np.minimum).reduce(wide).astype(parts[0].dtype)
    if parts[0].dtype == bool:
        same = all(np.array_equal(part, parts[0]) for part in parts)
        return parts[0] if same else (np.logical_or if how == "sum" else np.logical_and).reduce(wide)
    total = np.sum(np.stack(wide), 0)
    if how == "sum":
        return total.astype(parts[0].dtype)
    if parts[0].dtype.kind in "iu" and np.any(total % len(parts)):
        return np.full_like(total, -1)
    return (total / len(parts)).astype(parts[0].dtype)


def _near(value: Array, found: Array, least: float, times: float = LOOSE) -> bool:
    row = compare("", "", value, np.asarray(found), least)
    return row.difference <= row.tolerance * times


def _joined(relation: Relation, parts: Sequence[Array], value: Array) -> list[Array | None]:
    """Return the ranks' values together, or each that has to be the global one; of other shapes None, which fits
    nothing."""
    how, dimension = relation
    if any(np.ndim(part) != np.ndim(value) for part in parts):
        return [None]
    try:
        if how == "same":
            return list(parts)
        return [np.concatenate(parts, dimension) if how == "rows" else _reduced(how, parts)]
    except ValueError:
        return [None]


class _Followed:
    """Replaces sums over ranks on one device that has the global batch."""

    def __init__(self, graph: Graph, places: Sequence[Values], mean: bool, found: BatchComparison) -> None:
        self.graph, self.places, self.mean, self.found = graph, places, mean, found
        self.summed = summed_gradients(graph)
        self.least = coarsest(graph)
        self.factor_of: dict[Any, float | None] = {}
        self.unknown: set[Node] = set()

    def look_at_gradients(self, global_values: Values) -> None:
        """Find the ratio of the ranks' sums to the gradients of one device. A gradient that is zero but for rounding
        gets the ratio of most others."""
        gradients = {node: node.attrs.get(SCRIPT) for node in self.graph.nodes if node in self.summed}
        known = {node: n for node, n in gradients.items() if n in global_values and n in self.places[0]}
        totals = {n: _reduced("sum", [place[n] for place in self.places]) for n in known.values()}
        sizes = {node: max(largest_of(global_values[n]), largest_of(totals[n])) for node, n in known.items()}
        zero = self.least * max(sizes.values(), default=0.0)
        small = [node for node, size in sizes.items() if size <= zero]
        for node, number in known.items():
            if node not in small:
                self._factor(node, global_values[number], f"the gradient of {node.attrs['gradient_for']}")
        others = Counter(f for f in self.factor_of.values() if f is not None)
        most = next((f for f, _ in others.most_common(1)), 1.0)
        self.unknown = set() if others else set(small)
        for node, number in known.items():
            global_value = global_values[number]
            if node in small or _near(totals[number], global_value * global_value.dtype.type(most), self.least):
                self.factor_of[number] = most  # a small gradient may fit several ratios

    def combined(self, node: Node, gradient: Array) -> Array:
        """Return a gradient as the ranks' updates read it."""
        if node not in self.summed:
            return gradient
        if node in self.unknown and np.any(gradient):
            why = "all gradients of the first step are zero, which shows no relation to those of the ranks' rows"
            self._exclude(why)
        factor = self._factor(node, gradient, f"the gradient of {node.attrs['gradient_for']}")
        if factor is None:
            return gradient
        factor = factor / len(self.places) if self.mean else factor
        self.found.factors[str(node.attrs["gradient_for"])] = factor
        return gradient * gradient.dtype.type(factor)

    def kernel_of(self, node: Node, backend: NumPyBackend) -> Callable[..., Any] | None:
        """Return the kernel of a collective of the script on one device in place of all ranks."""
        op = node.op
        if not isinstance(op, Collective):
            return None

        if not isinstance(op, AllReduce) or len(op.ranks) != len(self.places):

            def nothing(*_: Array) -> Any:
                self._exclude(f"{node.label} is of the script, and one device has nothing like it")
                made = tuple(np.zeros(each.shape, each.dtype.numpy) for each in element_types(node.type))
                return made if isinstance(node.type, TupleType) else made[0]

            return nothing

        def kernel(*operands: Array) -> Any:
            found = [self._collected(node, op, v, a) for v, a in zip(node.inputs, operands, strict=True)]
            return tuple(found) if len(found) > 1 else found[0]

        return kernel

    def _collected(self, node: Node, op: AllReduce, value: Value, array: Array) -> Array:
        source = value if isinstance(value, Node) else None
        if op.op in ("max", "min"):
            relation = related(array, [p[source.attrs[SCRIPT]] for p in self.places], self.least) if (
                source is not None and source.attrs.get(SCRIPT) in self.places[0]
            ) else ("same", 0)  # fmt: skip
            if relation is None or relation[0] not in (op.op, "same"):
                self._exclude(f"what {node.label} takes the {op.op} of is not that of the global batch")
            return array
        if op.op != "sum":
            self._exclude(f"{node.label} multiplies, which says nothing of the global batch")
            return array
        if source is None:
            return array * array.dtype.type(len(self.places))
        factor = self._factor(source, array, f"what {node.label} adds up")
        return array if factor is None else array * array.dtype.type(factor)

    def _factor(self, node: Node, array: Array, what: str) -> float | None:
        """Return how many times the global value the sum of the places' values is."""
        number = node.attrs.get(SCRIPT)
        if number is None or number not in self.places[0]:
            self._exclude(f"{what} is not known on every rank's rows")
            return None
        if number not in self.factor_of:
            relation = related(array, [place[number] for place in self.places], self.least)
            factors = {"mean": float(len(self.places)), "same": float(len(self.places)), "sum": 1.0}
            self.factor_of[number] = factors.get(relation[0]) if relation is not None else None
        factor = self.factor_of[number]
        if factor is None:
            self._exclude(f"{what} of the global batch is neither the sum nor the mean of those of the ranks' rows")
        return factor

    def _exclude(self, why: str) -> None:
        if why not in self.found.exclusions:
            self.found.exclusions.append(why)


# Runs operators that draw numbers on one device that has the rows of several places: it draws for the global batch,
# and every place has its own rows of that.


def rows_of_draws(graph: Graph, sharded: list[bool], global_graph: Graph | None) -> dict[Node, Rows]:
    """Find the rows of the batch in random results of `graph` and of the graphs that it runs. sharded: for every input
    whether places have rows of their own. global_graph: the network on all rows, which tells the rows if a rank has
    only one. Without it they are those of the pass that lets ranks draw."""
    draws = _draws(graph)
    for source in (graph, global_graph) if draws else ():
        others = [] if source is None else _draws(source)
        found = None if source is None else _rows_by_sizes(source, others, sharded)
        if found is not None and [node.op.name for node in others] == [node.op.name for node in draws]:
            return {node: found[other] for node, other in zip(draws, others, strict=True) if other in found}
    copy = copied_region(graph)
    others = _draws(copy)
    with opened(copy):
        followed = FedRows(copy, dict.fromkeys(_inputs(copy, sharded), FIRST))
    return {node: rows for node, o in zip(draws, others, strict=True) if (rows := followed.of(o)) is not None}


def _draws(graph: Graph) -> list[Node]:
    return [node for node in graph.all_nodes() if draws_by_place(node.op)]


def _inputs(graph: Graph, sharded: list[bool]) -> list[Parameter]:
    inputs = [p for p in graph.parameters if p.kind == "input"]
    return [p for p, own in zip(inputs, sharded, strict=True) if own]


def _rows_by_sizes(graph: Graph, draws: Sequence[Node], sharded: list[bool]) -> dict[Node, Rows] | None:
    """Find the rows in random results by the sizes that operators tie to those of the inputs, without what the ranks'
    pass follows. None if a rank has one row, which looks like no row, or the number of rows is a size of a parameter.

    A dimension is a product of sizes, of which one are rows. Sizes before it, and repetitions, are parts that each
    begin with rows.
    """
    sizing = Sizing()
    sizing.add(graph)
    sizing.divisors.settle()
    sizes, rows = sizing.divisors.largest(), dict[int, int]()
    for value in _inputs(graph, sharded):
        first, *inner = sizing.divisors.resolved(sizing.dims(value)[0][0]) or (-1,)
        if first < 0 or value.shape[0] == 1:
            return None
        rows[first] = value.shape[0] // math.prod(sizes[each] for each in inner)
    weights = [p for p in graph.parameters if p.kind == "parameter"]
    if any(not rows.keys().isdisjoint(sizing.divisors.resolved(dim)) for p in weights for dim in sizing.dims(p)[0]):
        return None
    found: dict[Node, Rows] = {}
    for node in draws:
        for d, (size, dim) in enumerate(zip(element_types(node.type)[0].shape, sizing.dims(node)[0], strict=True)):
            own = sizing.divisors.resolved(dim)
            place = next((place for place, each in enumerate(own) if each in rows), None)
            if place is not None and node not in found:
                inner = math.prod(sizes[each] for each in own[place + 1 :])
                found[node] = d, size // (rows[own[place]] * inner) or 1
    return found


def rows_on_ranks(graph: Graph, many: Graph, mark: str) -> dict[Node, Rows]:
    """Return the rows for which the ranks' operators of the same number draw. mark: the attribute that has numbers."""
    others = {node.attrs[mark]: node.op.rows for node in _draws(many) if mark in node.attrs and node.op.rows}
    known = [(node, others.get(node.attrs.get(mark))) for node in _draws(graph)]
    return {node: (rows[0], rows[1]) for node, rows in known if rows}


def drawing_at_places(rows: Mapping[Node, Rows]) -> Callable[[Node, NumPyBackend], Callable[..., Any] | None]:
    """Return the kernels of operators that draw numbers for rows; None for all others."""

    def kernel_of(node: Node, backend: NumPyBackend) -> Callable[..., Any] | None:
        if backend.comm.size == 1 or node not in rows or not draws_by_place(node.op):
            return None
        op, (dimension, _), comm = node.op, rows[node], backend.comm
        size = element_types(node.type)[0].shape[dimension]
        operand_rows, result_rows = rows_beside(node, rows[node])

        def gathered(array: Array, place: Rows | None) -> Array:
            if place is None or array.shape[place[0]] != size:  # it is the same for all rows
                return array
            axis = place[0]
            parts = comm.all_gather(_parted(array, *place), tuple(range(comm.size)), axis + 1)
            return parts.reshape(*array.shape[:axis], -1, *array.shape[axis + 1 :])

        def own(array: Array, place: Rows | None) -> Array:
            if place is None:
                return array
            axis = place[0]
            mine = np.split(_parted(array, *place), comm.size, axis + 1)[comm.rank]
            return np.array(mine.reshape(*array.shape[:axis], -1, *array.shape[axis + 1 :]))

        def kernel(*operands: Array) -> Any:
            shape = getattr(op, "shape", ())
            grown: Any = op
            if shape:
                grown = replace(grown, shape=(*shape[:dimension], size * comm.size, *shape[dimension + 1 :]))
            found = grown.kernel(backend)(*map(gathered, operands, operand_rows))
            return tuple(map(own, found, result_rows)) if isinstance(found, tuple) else own(found, result_rows[0])

        return kernel

    return kernel_of


def _parted(array: Array, axis: int, outer: int) -> Array:
    return array.reshape(*array.shape[:axis], outer, array.shape[axis] // outer, *array.shape[axis + 1 :])
