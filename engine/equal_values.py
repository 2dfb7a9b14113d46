"""Checks that ranks in data parallel mode update parameters in the same way and feed equal inputs.

Each rank compiles its own graph there, which may contain its rank number: it may slice its data, or draw its own random
numbers. After the collectives that make gradients equal, all ranks must compute the same, or their parameters diverge:
for example with a different learning rate or clipping norm on one rank.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

from mspc.analysis.aliasing import updated_parameters
from mspc.compiler.driver import Compiled, own_values
from mspc.ir.diagnostics import OWN_FILES, MspcError
from mspc.ir.graph import Constant, Graph, Node, Parameter, Value
from mspc.ir.late_dataclass import dataclass
from mspc.ir.text.printer import print_graph
from mspc.ops.collective.base import Collective
from mspc.runtime.comm.agreement import gathered
from mspc.runtime.comm.interface import Communicator, fingerprint
from mspc.runtime.data import slices_of
from mspc.runtime.device_choice import RANK_LOCAL_MODES

LONGEST = 200
"""Maximum number of characters of an operator in a message."""
NOTES = (
    "ranks that train together share every update: the work after the gradients' collectives must be equal on all",
    "in data_parallel mode, parameter_broadcast=False says that every rank is meant to have its own",
)


@dataclass(frozen=True)
class SharedUpdates:
    """Operators from the last collectives to the updates of trained parameters, without updates that read rank-local
    values.

    lines: (text of an operator, its line in the script, the first parameter that it leads to). reads: names of the
    parameters and constants that they read.
    """

    lines: tuple[tuple[str, str, str], ...] = ()
    reads: frozenset[str] = frozenset()

    @property
    def digest(self) -> str:
        return hashlib.sha256("\n".join(text for text, _, _ in self.lines).encode()).hexdigest()


def shared_updates(graph: Graph) -> SharedUpdates:
    """Return the operators of a data parallel graph that must be equal on all ranks."""
    own = own_values(graph)
    numbers: dict[Value, str] = {}
    found: list[tuple[str, str, str]] = []
    reads: set[str] = set()
    for place, parameters in updated_parameters(graph).items():
        names = [p.name for p in parameters if p.kind == "parameter" and p.trainable and p not in own]
        if not names or graph.nodes[place] in own:
            continue
        for member in _new_producers(graph.nodes[place], numbers):
            attributes = "".join(f" {key}={value}" for key, value in member.op.attributes().items())
            attributes += "".join(f" runs {_digest(region)}" for region in member.regions)
            text = f"{member.op.name}({', '.join(_text(value, numbers) for value in member.inputs)}){attributes}"
            at = next((str(f) for f in member.frames if not f.file.startswith(OWN_FILES)), "")
            found.append((text, at, names[0]))
            reads |= {value.name for value in member.inputs if isinstance(value, Parameter)}
            numbers[member] = f"%{len(numbers)}"
    return SharedUpdates(tuple(found), frozenset(reads))


def compare_updates(comm: Communicator, own: SharedUpdates) -> None:
    """Compare the updates of all ranks, which call this together. Raise MspcError if they differ."""
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
        notes=NOTES, code="E0805",
    )


def _new_producers(node: Node, known: Collection[Value]) -> list[Node]:
    """Return the transitive producers of a node and the node itself, in execution order, without known ones. The search
    stops at collectives, whose results are equal on all ranks."""
    found: dict[Node, None] = {}
    stack: list[tuple[Node, bool]] = [(node, False)]
    while stack:
        current, done = stack.pop()
        if done:
            found[current] = None
        elif current not in found and current not in known:
            if isinstance(current.op, Collective) and current.op.agrees:
                continue
            stack.append((current, True))
            stack += [(value, False) for value in reversed(current.inputs) if isinstance(value, Node)]
    return list(found)


def _digest(region: Graph) -> str:
    """Return a digest of a region's computation that is independent of source lines."""
    lines = [line for line in print_graph(region).splitlines() if not line.lstrip().startswith("#")]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:8]


def _text(value: Value, numbers: Mapping[Value, str]) -> str:
    if isinstance(value, Constant):
        array = np.asarray(value.value)
        return str(array) if array.size == 1 else f"{array.shape} {hashlib.sha256(array.tobytes()).hexdigest()[:8]}"
    if isinstance(value, Parameter):
        return value.name
    return numbers.get(value, "what all ranks have")


# Comparison of the inputs of ranks that share a batch, in the first steps of a graph.
#
# With full-batch data every rank feeds the global batch and takes its slice. If they feed different batches, as after a
# shuffle without a seed, they train on a mixture of rows. Ranks that feed the same slice must feed the same values.


Array = Any
COMPARED_STEPS = 3
"""Number of steps that are compared: different data, as after an unseeded shuffle, differ within them."""
WHOLE_BATCH = "the global batch"
"""Slice text of an array that is the global batch, which the rank slices itself."""


def compared_inputs(compiled: Compiled, graph: Graph, ranks: int) -> list[Parameter] | None:
    """Return the inputs of a rank's graph that must be equal. Return None, on all ranks, if the graph has no
    communication, so that each rank may run it at any time, or if every rank trains on its own rows."""
    mode = compiled.config.mode
    if ranks == 1 or mode in RANK_LOCAL_MODES or mode == "data_parallel":
        return None
    communicates = any(isinstance(node.op, Collective) for node in compiled.graph.all_nodes())
    if compiled.config.pipeline_stages == 1 and not communicates:
        return None
    read = {value for node in graph.nodes for value in node.inputs} | set(graph.results)
    return [p for p in graph.parameters if p.kind == "input" and p in read]


def compare_inputs(
    comm: Communicator, rank: int, inputs: Sequence[Parameter], fed: Mapping[str, Array], step: int,
    fetch: Callable[[Array], Array],
) -> None:  # fmt: skip
    """Compare the inputs of ranks; all ranks call this together.

    fed: the script's array by input name. fetch: converts an array of the job's device to NumPy. Raise MspcError if
    ranks feed different values for the same part of an input.
    """
    own: dict[str, list[Any]] = {}
    for parameter in inputs:
        array = np.ascontiguousarray(fetch(fed[parameter.name]))
        own[parameter.name] = [_place(parameter, array, rank), zlib.crc32(array.reshape(-1).view(np.uint8))]
    place = any(place != WHOLE_BATCH for place, _ in own.values())
    rows = comm.all_gather(np.array([[*fingerprint(json.dumps(own)), place]], np.int64), tuple(range(comm.size)), 0)
    if not rows[:, -1].any() and (rows == rows[0]).all():
        return
    of_ranks: list[dict[str, list[Any]]] = gathered(comm, own)
    first: dict[tuple[str, str], int] = {}
    for other, said in enumerate(of_ranks):
        for name, (where, digest) in said.items():
            before = first.setdefault((name, where), other)
            if of_ranks[before][name][1] != digest:
                raise _different(comm, name, (before, other), where, fed.get(name), step, fetch)


def _place(parameter: Parameter, array: Array, rank: int) -> str:
    if array.shape != parameter.shape:
        return WHOLE_BATCH
    slices = slices_of(parameter, rank)
    return WHOLE_BATCH if slices is None else ", ".join(f"{s.start}:{s.stop}" for s in slices)


AT_ONCE = 4096
"""Elements with a common checksum in the search for the first difference."""


def first_difference(
    comm: Communicator, own: Array | None, ranks: tuple[int, int]
) -> tuple[list[int], str, str] | None:
    """Return (the index, its texts on both ranks) of the first element in which arrays of two ranks differ, None if
    there is none; all ranks call this together. own: this rank's array."""
    array = np.asarray(own) if own is not None and comm.rank in ranks else np.zeros(0)
    data = np.ascontiguousarray(array).reshape(-1)
    blocks = [data[at : at + AT_ONCE] for at in range(0, data.size, AT_ONCE)]
    told = gathered(comm, [array.shape, [zlib.crc32(block.view(np.uint8)) for block in blocks]])
    number = next((i for i, (a, b) in enumerate(zip(*(told[r][1] for r in ranks), strict=False)) if a != b), 0)
    texts = gathered(comm, [str(value) for block in blocks[number : number + 1] for value in block])
    for place, (one, two) in enumerate(zip(*(texts[rank] for rank in ranks), strict=False), number * AT_ONCE):
        if one != two:
            return [int(i) for i in np.unravel_index(place, told[ranks[0]][0])], one, two
    return None


def _different(
    comm: Communicator, name: str, ranks: tuple[int, int], where: str, own: Array, step: int,
    fetch: Callable[[Array], Array],
) -> MspcError:  # fmt: skip
    """Return the error of two ranks that feed different values; all ranks make it together."""
    place = first_difference(comm, None if own is None else fetch(own), ranks)
    row = ""
    if place is not None and place[0]:
        row = f": in row {place[0][0]} it has {place[1]} on rank {ranks[0]} and {place[2]} on rank {ranks[1]}"
    part = "the global batch" if where == WHOLE_BATCH else f"its slice [{where}]"
    return MspcError(
        f"ranks {ranks[0]} and {ranks[1]} feed different values of input '{name}' in step {step}, for {part}{row}",
        notes=[
            "these ranks must feed the same rows in the same order: seed the shuffling or drawing "
            "(np.random.seed, mindspore.dataset.config.set_seed) alike on all ranks",
            'if every rank has rows of its own, set dataset_strategy="data_parallel"',
        ], code="E0805",
    )
