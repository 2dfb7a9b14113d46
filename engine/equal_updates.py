"""Compares what ranks in data parallel mode compute of values that all of them have alike, up to the updates.

Each rank compiles a graph of its own there, which may hold its number: it may slice its own data, or draw numbers of
its own. Behind the collectives that make gradients alike the ranks must compute the same, or their parameters drift
apart: a schedule of the script with another rate on one rank, another norm to clip to.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping

import numpy as np

from mspc.analysis.aliasing import updated_parameters
from mspc.compiler.unreduced_gradients import own_values
from mspc.ir.diagnostics import OWN_FILES, MspcError
from mspc.ir.graph import Constant, Graph, Node, Parameter, Value
from mspc.ir.late_dataclass import dataclass
from mspc.ir.text.printer import print_graph
from mspc.ops.collective.base import Collective
from mspc.runtime.comm.agreement import gathered
from mspc.runtime.comm.interface import Communicator

LONGEST = 200
"""Characters of an operator that a message shows."""
NOTES = (
    "ranks that train together share every update: what is behind the gradients' collectives must be the same on all",
    "in data_parallel mode, parameter_broadcast=False says that every rank is meant to have its own",
)


@dataclass(frozen=True)
class SharedUpdates:
    """What leads to updates of trained parameters, from the last collectives on; without updates that take what only
    this rank has.

    lines: of each operator its text, where the script has it, and the first parameter that it leads to. reads: names of
    the parameters and constants that they read."""

    lines: tuple[tuple[str, str, str], ...] = ()
    reads: frozenset[str] = frozenset()

    @property
    def digest(self) -> str:
        return hashlib.sha256("\n".join(text for text, _, _ in self.lines).encode()).hexdigest()


def shared_updates(graph: Graph) -> SharedUpdates:
    """What all ranks must do alike, of a graph of data parallel mode."""
    own = own_values(graph)
    numbers: dict[Value, str] = {}
    found: list[tuple[str, str, str]] = []
    reads: set[str] = set()
    for place, parameters in updated_parameters(graph).items():
        names = [p.name for p in parameters if p.kind == "parameter" and p.trainable and p not in own]
        if not names or graph.nodes[place] in own:
            continue
        for member in _new(graph.nodes[place], numbers):
            attributes = "".join(f" {key}={value}" for key, value in member.op.attributes().items())
            attributes += "".join(f" runs {_digest(region)}" for region in member.regions)
            text = f"{member.op.name}({', '.join(_text(value, numbers) for value in member.inputs)}){attributes}"
            at = next((str(f) for f in member.frames if not f.file.startswith(OWN_FILES)), "")
            found.append((text, at, names[0]))
            reads |= {value.name for value in member.inputs if isinstance(value, Parameter)}
            numbers[member] = f"%{len(numbers)}"
    return SharedUpdates(tuple(found), frozenset(reads))


def compare_updates(comm: Communicator, own: SharedUpdates) -> None:
    """All ranks call this together. Raises MspcError where they update parameters in different ways."""
    digests: list[str] = gathered(comm, own.digest)
    other = next((rank for rank, digest in enumerate(digests) if digest != digests[0]), None)
    if other is None:
        return
    of_ranks: list[list[list[str]]] = gathered(comm, [[text[:LONGEST], at, name] for text, at, name in own.lines])
    end = [["nothing more", "", ""]]
    pairs = zip(of_ranks[0] + end, of_ranks[other] + end, strict=False)
    one, two = next((pair for pair in pairs if pair[0][0] != pair[1][0]), (end[0], end[0]))
    said = [f"`{text}`{f' ({at})' if at else ''}" for text, at, _ in (one, two)]
    raise MspcError(
        f"the update of parameter '{one[2] or two[2]}' differs between ranks: rank 0 has {said[0]} and rank {other} "
        f"{said[1]}",
        notes=NOTES,
    )


def _new(node: Node, known: Collection[Value]) -> list[Node]:
    """The operators that lead to a node, and it itself, in the order in which they run, without those that are known;
    collectives, whose results all ranks have alike, are the ends."""
    found: dict[Node, None] = {}
    stack: list[tuple[Node, bool]] = [(node, False)]
    while stack:
        current, done = stack.pop()
        if done:
            found[current] = None
        elif current not in found and current not in known and not _agrees(current):
            stack.append((current, True))
            stack += [(value, False) for value in reversed(current.inputs) if isinstance(value, Node)]
    return list(found)


def _digest(region: Graph) -> str:
    """A short identity of what a region computes, whatever the lines of its source are."""
    lines = [line for line in print_graph(region).splitlines() if not line.lstrip().startswith("#")]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:8]


def _agrees(node: Node) -> bool:
    return isinstance(node.op, Collective) and node.op.agrees


def _text(value: Value, numbers: Mapping[Value, str]) -> str:
    if isinstance(value, Constant):
        array = np.asarray(value.value)
        return str(array) if array.size == 1 else f"{array.shape} {hashlib.sha256(array.tobytes()).hexdigest()[:8]}"
    if isinstance(value, Parameter):
        return value.name
    return numbers.get(value, "what all ranks have")
