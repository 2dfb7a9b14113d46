"""Search for the origin of a NaN or an infinity in the loss.

The losses are checked once they are known, before the first update. If one is not finite, the nodes so far run again,
one by one, and their results are checked: the parameters are still those at the begin of the step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from mspc.ir.diagnostics import ExecutionError
from mspc.ir.graph import Graph, Node, Value
from mspc.ir.layout import Layout
from mspc.runtime.comm.interface import collectives_of
from mspc.runtime.faults.record import NodeFailure, StoppedByOther, shown_turns
from mspc.runtime.plan import ExecutionPlan, hooked, run_instructions

NOWHERE = np.iinfo(np.int64).max


class Inside(NamedTuple):
    """Node inside of a region, by its index there, and the iterations of the loops around it, the outermost first."""

    graph: Graph
    index: int
    turns: tuple[int, ...]


class Origin(NamedTuple):
    """Origin of values that are not finite.

    parameter: text about a parameter that contained one before the step, or "". index: of the first node that makes
    one, or `NOWHERE`. inside: the node in its graphs, if that node runs graphs.
    """

    parameter: str
    index: int
    inside: Inside | None = None


class NonFiniteSearch(Protocol):
    """Part of an executor that the search uses."""

    graph: Graph
    rank: int
    step: int

    @property
    def boundary(self) -> int:
        """Index of the first node that updates a parameter."""

    @property
    def comm(self) -> Any:
        """Communicator of arrays on the host."""

    def search(self) -> Origin: ...


class Stepping(NonFiniteSearch, Protocol):
    """The same part of an executor that has its values in slots and runs node by node."""

    plan: ExecutionPlan
    slots: list[Any]

    def hook_regions(self, call: Callable[..., Any] | None) -> None: ...

    def slot_value(self, value: Value) -> Any: ...


def check_finite(executor: Stepping, losses: Sequence[Value], updated: bool = False) -> None:
    """Check the losses of the running step. updated: parameters have changed since they were computed. Raise
    ExecutionError if one is a NaN or an infinity; the message names step, rank and the first node that made one."""
    for loss in losses:
        value = executor.slot_value(loss)
        if not math.isfinite(value if np.ndim(value) == 0 else np.asarray(value).flat[0]):
            raise explained(executor, loss, float(np.asarray(value).flat[0]), updated)


def explained(executor: NonFiniteSearch, loss: Value, value: float, updated: bool) -> ExecutionError:
    """Return the error of a loss that is not finite. updated: parameters have changed since it was computed."""
    comm = executor.comm
    together = any(collectives_of(executor.graph.nodes[: executor.boundary]))
    if updated or (together and comm.size > 1 and not _same_on_all_ranks(executor, loss)):
        # The other ranks may have a finite loss and would not take part in running collectives again.
        index = executor.graph.nodes.index(loss) if isinstance(loss, Node) else -1
        return _error(executor, value, Origin("", index))
    origin = executor.search()
    if together and comm.size > 1:
        ranks = tuple(range(comm.size))
        found = comm.all_gather(np.array([-1 if origin.parameter else origin.index], dtype=np.int64), ranks, 0)
        owner = int(np.argmin(found))
        if owner != comm.rank:
            return StoppedByOther(f"step {executor.step}: the loss is {value}; rank {owner} reports it")
    return _error(executor, value, origin)


def _error(executor: NonFiniteSearch, value: float, origin: Origin) -> ExecutionError:
    message = f"the loss of step {executor.step} is {_text(value)} on rank {executor.rank}"
    message = f"{message}; {origin.parameter}" if origin.parameter else message
    inside = origin.inside
    nodes, index = (inside.graph.nodes, inside.index) if inside else (executor.graph.nodes, origin.index)
    if not 0 <= index < len(nodes):
        return ExecutionError(message)
    node = nodes[index]
    operands = ", ".join(str(operand.type) for operand in node.inputs)
    first = "to read it is" if origin.parameter else "such value comes from"
    return NodeFailure(
        f"{message}; the first {first} {node.label}{shown_turns(inside.turns) if inside else ''}",
        [f"its operands are ({operands}), its result {node.type}"],
        node.frames,
        index,
        inside.graph.name if inside else "",
    )


def search(executor: Stepping, turns: Callable[[], tuple[int, ...]]) -> Origin:
    """Return the place at which the running step first made a value that is not finite. turns: returns the iterations
    of the loops around the running node."""
    held = ""
    for parameter in executor.graph.parameters:
        if not held and not _finite(executor.slot_value(parameter)):
            kind = {"input": "argument"}.get(parameter.kind, parameter.kind)
            held = f"{kind} {parameter.name!r} held such a value before the step"
    first, inside = NOWHERE, list[Inside]()

    def call_inside(graph: Graph, index: int, kernel: Callable[..., Any], *operands: Any) -> Any:
        value = kernel(*operands)
        if not inside and not _finite(value):
            inside.append(Inside(graph, index, turns()))
        return value

    def call(index: int, kernel: Callable[..., Any], *operands: Any) -> Any:
        nonlocal first
        if first == NOWHERE:
            inside.clear()
        value = kernel(*operands)
        if first == NOWHERE and not _finite(value):
            first = index
        return value

    executor.hook_regions(call_inside)
    # Every step runs to the end, so that all ranks meet in the same collectives.
    run_instructions(hooked(executor.plan.before_update, call), executor.slots, [0])
    executor.hook_regions(None)
    runs = first != NOWHERE and executor.graph.nodes[first].regions
    return Origin(held, int(first), inside[0] if runs and inside else None)


def _finite(value: Any) -> bool:
    if isinstance(value, tuple | list):
        return all(_finite(element) for element in value)
    array = np.asarray(value)
    return array.dtype.kind not in "fV" or bool(np.isfinite(array).all())


def _same_on_all_ranks(executor: NonFiniteSearch, loss: Value) -> bool:
    """Return whether all ranks have the same loss: in the modes that shard operators it is the global batch's,
    otherwise a rank's own."""
    if isinstance(loss.layout, Layout):
        return loss.layout.is_replicated
    return executor.graph.attrs.get("mode") in ("semi_auto_parallel", "auto_parallel")


def _text(value: float) -> str:
    return "NaN" if math.isnan(value) else "an infinity"
