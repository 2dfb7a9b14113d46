"""Run of a rank's graph that records its values, to compare runs operator by operator.

Graphs of micro-batches also run node by node: those of a loop over micro-batches on one device, and of the calls of a
stage's program. Their random numbers are those of the calls.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from mspc.analysis.aliasing import results_over
from mspc.ir.graph import MICRO_BATCH, WORK, Constant, Graph, Node, Parameter, Value
from mspc.ir.layout import Layout
from mspc.ir.types import StackType, TensorType
from mspc.ops.control.regions import Scan, body_of, spread
from mspc.ops.fused.elementwise import FusedElementwise, steps_of
from mspc.ops.fused.updates import GroupedUpdate, gradient_index
from mspc.runtime.backend import NumPyBackend
from mspc.runtime.faults.record import PLACE_WORDS, NodeFailure
from mspc.runtime.plan import copy_value
from mspc.runtime.regions.region import Regions

Array = Any
COMBINE = {"sum": np.add, "mean": np.add, "max": np.maximum, "min": np.minimum, "prod": np.multiply,
           "all": np.logical_and, "any": np.logical_or}  # fmt: skip


def observe(
    graph: Graph, backend: NumPyBackend, parameters: Mapping[Parameter, Array], mark: str,
    combined: Callable[[Node, Array], Array] | None = None,
    operands: Callable[[Node, list[Array]], list[Array]] | None = None,
    kernel_of: Callable[[Node, NumPyBackend], Callable[..., Array] | None] | None = None,
) -> dict[Any, Array]:  # fmt: skip
    """Return the values of one step: results of nodes with the attribute `mark` under its value, results of the graph
    under ("result", i), parameters after the step under their names. A result that aliases a parameter is recorded as
    it was before later updates, as the executor returns it. A node of a micro-batch is recorded under (value of `mark`,
    number of the micro-batch).

    On a fused node the attribute has a value for every member (None for a member without one), whose results are
    computed here. combined: returns the value that updates read in place of a parameter's gradient, given its node and
    value. operands: returns the values that a node reads in place of its operands. kernel_of: returns a replacement of
    a node's kernel, or None. Raise NodeFailure if a kernel failed.
    """
    walk = _Walk(graph, backend, mark, combined, operands, kernel_of)
    values: dict[Any, Array] = dict(parameters)
    with np.errstate(all="ignore"):
        results = walk.run(graph, values)
    observed = walk.observed
    for i, result in enumerate(results):
        observed["result", i] = np.array(result)
    for parameter in graph.parameters:
        observed[parameter.name] = np.array(values[parameter])
    return observed


class _Walk:
    """Run of a step, node by node. observed: the values recorded so far."""

    def __init__(
        self, graph: Graph, backend: NumPyBackend, mark: str, combined: Callable[[Node, Array], Array] | None,
        operands: Callable[[Node, list[Array]], list[Array]] | None,
        kernel_of: Callable[[Node, NumPyBackend], Callable[..., Array] | None] | None,
    ) -> None:  # fmt: skip
        self.backend, self.mark = backend, mark
        self.combined, self.operands, self.kernel_of = combined, operands, kernel_of
        self.observed: dict[Any, Array] = {}
        self._regions = Regions(graph, backend, [0] * PLACE_WORDS)
        self._over: dict[Graph, list[list[Node]]] = {}
        graphs = graph.graphs() if combined is not None else ()
        self._with_gradients = {each for each in graphs if any("gradient_for" in node.attrs for node in each.nodes)}

    def run(self, graph: Graph, values: dict[Any, Array], micro_batch: int | None = None) -> list[Array]:
        """Return the results of a graph. values: initially of its parameters; the values of its nodes are added while
        live."""
        if graph not in self._over:
            self._over[graph] = results_over(graph)
        totals: dict[Any, Array] = {}
        wanted = {value for value in graph.results if isinstance(value, Node)}
        handed: dict[Value, Array] = {}
        where = "" if micro_batch is None else f" in micro-batch {micro_batch}"
        for index, (node, over) in enumerate(zip(graph.nodes, self._over[graph], strict=True)):
            shown = totals if node.phase == "update" else {}
            inputs = [v.value if isinstance(v, Constant) else shown.get(v, values[v]) for v in node.inputs]
            if self.operands is not None:
                inputs = self.operands(node, inputs)
            result = values[node] = _computed(node, self._kernel(node), inputs, self.backend, index, where)
            if node in wanted:
                handed[node] = copy_value(result)
            if self.combined is not None and node.attrs.get("gradient_for"):
                totals[node] = self.combined(node, result)
            self._store(node, inputs, result, micro_batch)
            del inputs, result
            for value in over:
                del values[value]
                totals.pop(value, None)
        return [
            copy_value(v.value if isinstance(v, Constant) else handed[v] if v in handed else values[v])
            for v in graph.results
        ]

    def _store(self, node: Node, inputs: list[Array], result: Any, micro_batch: int | None) -> None:
        if isinstance(node.op, FusedElementwise | GroupedUpdate):
            names, members = _members(node, node.op, inputs, result, self.backend, self.mark)
            found: list[tuple[Any, Array]] = list(zip(names, members, strict=False))
            self.observed |= {name: np.array(value) for name, value in found if name is not None}
        elif self.mark in node.attrs and isinstance(node.type, TensorType) and not isinstance(node.type, StackType):
            name = node.attrs[self.mark]
            self.observed[name if micro_batch is None else (name, micro_batch)] = np.array(result)

    def _kernel(self, node: Node) -> Callable[..., Any] | None:
        """Return the replacement of the node's kernel, or None."""
        if isinstance(node.op, Scan) and node.op.micro_batches:
            return partial(self._run_loop, node, node.op)
        if WORK in node.attrs:
            return partial(self._run_stage_call, node, int(node.attrs[MICRO_BATCH]))
        if node.regions:
            kernel = self._regions.kernel(node)
            for region in self._regions.prepared:
                if region.graph in self._with_gradients or (self.kernel_of is not None and self.backend.comm.size > 1):
                    region.hook(self._in_region)
            return kernel
        return None if self.kernel_of is None else self.kernel_of(node, self.backend)

    def _in_region(self, graph: Graph, index: int, kernel: Callable[..., Any], *operands: Any) -> Any:
        """Run a node of a region. Its readers get the total of a gradient."""
        node = graph.nodes[index]
        own = None if self.kernel_of is None or self.backend.comm.size == 1 else self.kernel_of(node, self.backend)
        result = (own or kernel)(*operands)
        return self.combined(node, result) if self.combined is not None and "gradient_for" in node.attrs else result

    def _run_loop(self, node: Node, op: Scan, *operands: Array) -> tuple[Array, ...]:
        """Run a loop over micro-batches."""
        behind, body = op.carried + op.scanned, body_of(node)
        copies = [copy_value(a) for a in operands[:behind]]
        carried, scanned = copies[: op.carried], copies[op.carried :]
        kept: list[list[Array]] = []
        for turn in range(op.turns)[:: -1 if op.reverse else 1]:
            found = self._one_micro_batch(body, turn, *carried, *(a[turn] for a in scanned), *operands[behind:])
            carried = list(found[: op.carried])
            kept.append(list(found[op.carried :]))
        entries = zip(body.results[op.carried :], zip(*kept[:: -1 if op.reverse else 1], strict=True), strict=True)
        stacks = [list(rows) if isinstance(value.type, StackType) else np.stack(rows) for value, rows in entries]
        return (*carried, *stacks)

    def _run_stage_call(self, node: Node, number: int, *operands: Any) -> tuple[Array, ...]:
        """Run the call of a stage's program on a micro-batch."""
        return self._one_micro_batch(node.regions[0], number, *spread(node, operands))

    def _one_micro_batch(self, graph: Graph, number: int, *operands: Array) -> tuple[Array, ...]:
        """Run a graph on a micro-batch, with the random numbers of its iteration."""
        around = self.backend.turns
        self.backend.turns = (*around, number)
        try:
            return tuple(self.run(graph, dict(zip(graph.parameters, operands, strict=True)), number))
        finally:
            self.backend.turns = around


def _computed(
    node: Node, kernel: Callable[..., Array] | None, inputs: list[Array], backend: NumPyBackend, index: int, at: str
) -> Any:
    """Return the node's result by `kernel` or its own kernel. Raise NodeFailure with the rank and the position
    (`at`)."""
    try:
        run = kernel or node.op.kernel(backend)  # type: ignore[attr-defined]  # operators have kernels
        return run(*inputs)
    except NodeFailure:  # from a node inside
        raise
    except Exception as error:
        raise NodeFailure.of(node, index, error, f"rank {backend.comm.rank}{at}") from error


def _members(
    node: Node, op: FusedElementwise | GroupedUpdate, inputs: list[Array], result: Any, backend: NumPyBackend, mark: str
) -> tuple[list[Any], list[Array]]:
    """Return (names, values) of the members of a fused node."""
    names = list(node.attrs.get(mark, ()))
    if isinstance(op, FusedElementwise):
        if not names:
            return [], []
        lines: list[Array] = []
        for step in steps_of(op):
            operands = [(inputs if kind == "x" else lines)[index] for kind, index in step.operands]
            lines.append(step.op.kernel(backend)(*operands))
        return names, lines
    place = gradient_index(op.member)
    widened = node.attrs.get(f"cast_{mark}", ())
    gradients = [m[place].astype(m[0].dtype) for m in op.members(inputs)] if widened and place is not None else []
    if op.member.outputs > 1:
        return list(widened), gradients
    return [*names, *widened], [*result, *gradients] if names else gradients


def join(ranks: Sequence[Mapping[Any, Array]], key: Any, layout: Layout) -> Array:
    """Return the global value assembled from the ranks' slices. Partial values are combined; among replicas the lowest
    rank's is used. (A rank does not compute values that nothing needs.) Raise KeyError if no rank has some slice,
    ValueError if the slices of two ranks have different shapes."""
    holders = [values for values in ranks if key in values]
    if not holders:
        raise KeyError(key)
    first = np.asarray(holders[0][key])
    shards = layout.strategy
    joined = np.empty(tuple(n * c for n, c in zip(first.shape, shards, strict=True)), first.dtype)
    seen: dict[tuple[int, ...], set[tuple[int, ...]]] = {}
    for rank, values in enumerate(ranks):
        place = layout.coordinates(rank)
        index, part = layout.slice_index(rank), tuple(place[a] for a in layout.partial)
        parts = seen.setdefault(index, set())
        if part in parts or key not in values:
            continue
        slices = layout.slices_for(rank, joined.shape)
        mine = np.asarray(values[key])
        if mine.shape != first.shape:
            raise ValueError(f"rank {rank} holds shape {mine.shape}, another one {first.shape}")
        joined[slices] = COMBINE[layout.reduction](joined[slices], mine) if parts else mine
        parts.add(part)
    wanted = math.prod(layout.mesh[a] for a in layout.partial)
    if len(seen) < math.prod(shards) or any(len(parts) < wanted for parts in seen.values()):
        raise KeyError(key)
    if layout.reduction == "mean":
        joined = (joined / math.prod(layout.mesh[a] for a in layout.partial)).astype(first.dtype)
    return joined
