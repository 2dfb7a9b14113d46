"""Runs the collectives of a compile on numbers made for them: a network's own may be such that a wrong maximum, or a
flag that one rank alone sees, changes nothing.

Input:  %4 = AllReduce(%3) {op: max, rank_list: (0, 1)}: both ranks bring numbers of either sign, then negative ones.
Output: a row for every kind of collective whose results are not NumPy's of what all ranks brought.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from mspc.ir.graph import STAGES, WORK, Graph, Node, element_types, operand_types
from mspc.ir.types import TensorType
from mspc.ops.collective.collectives import AllGather, AllReduce, AlltoAll, ReduceScatter
from mspc.runtime.backend import NumPyBackend
from mspc.runtime.comm.interface import Communicator
from mspc.runtime.comm.local import World
from mspc.verify.difference import ComparedValue, compare

Array = Any
LARGEST = 8
"""Of the whole numbers that are made: half precision holds their sums."""
ROUNDS = 2
KINDS = (AllReduce, AllGather, ReduceScatter, AlltoAll)
_COMBINE: dict[str, Callable[..., Array]] = {"sum": np.sum, "max": np.max, "min": np.min, "prod": np.prod}
_OF_FLAGS: dict[str, Callable[..., Array]] = {"sum": np.any, "max": np.any, "min": np.all, "prod": np.all}


def collectives(ranks: int, plain_of: Callable[[int], Graph]) -> list[ComparedValue]:
    """The rows of what differs.

    Args:
        plain_of: a rank's graph. Graphs of all ranks, of several stages those of each, have the same collectives in the
            same order; where they do not, as in a folder that was edited, nothing is tried.

    Raises:
        NodeFailure: a kernel failed.
    """
    graphs = [plain_of(rank) for rank in range(ranks)]
    if not any(_one_of_each(graphs, rank) for rank in range(ranks)):
        return []
    ran = World(ranks).run(lambda comm: computed(comm, graphs))
    return [row for row in expected_rows(ranks, plain_of, ran) if not row.same]


def computed(comm: Communicator, graphs: Sequence[Graph]) -> list[Array]:
    """What a rank gets of the collectives that are tried, one array after the other. graphs: of all ranks."""
    found: list[Array] = []
    for number, nodes in enumerate(_one_of_each(graphs, comm.rank)):
        backend = NumPyBackend(comm)
        node = nodes[comm.rank]
        kernel = node.op.kernel(backend)  # type: ignore[union-attr]  # the operator of a rank
        for step in range(1, ROUNDS + 1):
            backend.step = step
            results = kernel(*_operands(node, number, step, comm.rank))
            found += [np.array(a) for a in (results if isinstance(results, tuple) else (results,))]
    return found


def expected_rows(ranks: int, plain_of: Callable[[int], Graph], ran: Sequence[Sequence[Array]]) -> list[ComparedValue]:
    """A row for every array that a rank has `computed`."""
    rows: list[ComparedValue] = []
    graphs = [plain_of(rank) for rank in range(ranks)]
    for rank, arrays in enumerate(ran):
        found = iter(arrays)
        for number, nodes in enumerate(_one_of_each(graphs, rank)):
            for step in range(1, ROUNDS + 1):
                made = {member: _operands(node, number, step, member) for member, node in nodes.items()}
                for expected in _expected(nodes[rank].op, made, rank):
                    name = f"{nodes[rank].op.name} of rank {rank}"
                    rows.append(compare("collective", name, expected, next(found), 0.0))
    return rows


def _one_of_each(graphs: Sequence[Graph], rank: int) -> list[dict[int, Node]]:
    """The smallest collective of every kind, as each rank of this one's stage has it."""
    size = len(graphs) // max(1, int(graphs[rank].attrs.get(STAGES, 1)))
    first = rank // size * size
    orders = [
        [n for n in _all_nodes(graph) if isinstance(n.op, KINDS) and len(n.op.members) > 1]
        for graph in graphs[first : first + size]
    ]
    if len({tuple(map(_kind, nodes)) for nodes in orders}) > 1:
        return []
    smallest: dict[Any, int] = {}
    for index, node in enumerate(orders[0]):
        type = node.inputs[0].type
        if isinstance(type, TensorType) and not type.dtype.is_complex:
            held = smallest.setdefault(_kind(node), index)
            if _size(node) < _size(orders[0][held]):
                smallest[_kind(node)] = index
    return [{first + i: nodes[index] for i, nodes in enumerate(orders)} for index in smallest.values()]


def _all_nodes(graph: Graph) -> Iterator[Node]:
    """Those of a graph, and of its work on micro-batches."""
    seen: set[Graph] = set()
    for node in graph.nodes:
        yield node
        if WORK in node.attrs and node.regions[0] not in seen:
            seen.add(node.regions[0])
            yield from node.regions[0].nodes


def _kind(node: Node) -> tuple[Any, ...]:
    """What tells collectives apart, beside shapes and which ranks they are of."""
    op: Any = node.op
    fields = [getattr(op, name, None) for name in ("op", "axis", "split_dim", "concat_dim")]
    return (op.name, *fields, len(op.members), element_types(node.inputs[0].type)[0].dtype, len(node.inputs))


def _size(node: Node) -> int:
    return sum(type.size for type in operand_types(node))


def _operands(node: Node, number: int, step: int, rank: int) -> list[Array]:
    """What a rank brings: whole numbers of either sign, then none that is positive; of flags one rank's are set."""
    generator = np.random.default_rng([number, step, rank])
    made: list[Array] = []
    for value in node.inputs:
        type = value.tensor_type
        if type.dtype.kind == "b":
            made.append(np.full(type.shape, rank == node.op.ranks[-1]))  # type: ignore[union-attr]  # a collective
            continue
        most = 1 if getattr(node.op, "op", "") == "prod" else LARGEST
        numbers = generator.integers(1, most, type.shape, endpoint=True)
        if type.dtype.kind != "u":
            numbers = numbers * (generator.choice([-1, 1], type.shape) if step == 1 else -1)
        made.append(numbers.astype(type.dtype.numpy))
    return made


def _expected(op: Any, made: Mapping[int, Sequence[Array]], rank: int) -> list[Array]:
    """What the rank gets, by NumPy, of what the ranks of its group brought."""
    place = op.ranks.index(rank)
    results: list[Array] = []
    for parts in zip(*(made[member] for member in op.ranks), strict=True):
        if isinstance(op, AllGather):
            results.append(np.concatenate(parts, op.axis))
        elif isinstance(op, AlltoAll):
            pieces = [np.split(part, len(parts), op.split_dim)[place] for part in parts]
            results.append(np.concatenate(pieces, op.concat_dim))
        else:
            kind = parts[0].dtype
            function = (_OF_FLAGS if kind == np.bool_ else _COMBINE)[op.op]
            wide = np.int64 if kind.kind in "iu" else np.float64
            total = function(np.stack([part.astype(wide) for part in parts]), axis=0).astype(kind)
            results.append(np.split(total, len(parts), op.axis)[place] if isinstance(op, ReduceScatter) else total)
    return results
