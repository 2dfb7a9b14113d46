"""Runs collectives of communicators and of compiles on numbers made for them, and compares them with NumPy.

Small and large arrays (which are sent by other means), groups in any order of ranks, element types of every width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from mspc.ir.graph import STAGES, WORK, Graph, Node, element_types, operand_types
from mspc.ir.late_dataclass import dataclass
from mspc.ir.types import BFLOAT16, TensorType
from mspc.ops.collective.collectives import AllGather, AllReduce, AlltoAll, ReduceScatter
from mspc.runtime.backend import NumPyBackend
from mspc.runtime.comm.interface import Communicator
from mspc.runtime.comm.local import World
from mspc.verify.difference import ComparedValue, compare

Array = Any
TYPES = (np.float32, np.float64, np.float16, BFLOAT16.numpy, np.int32, np.int64, np.uint8, np.bool_)
REDUCE: dict[str, Callable[..., Array]] = {"sum": np.sum, "max": np.max, "min": np.min, "prod": np.prod}
OF_FLAGS: dict[str, Callable[..., Array]] = {"sum": np.any, "max": np.any, "min": np.all, "prod": np.all}
LARGE = 3001
"""Elements: too many for one message, and divided by no usual number of ranks."""


@dataclass(frozen=True)
class _Question:
    """One test of a collective. group: the ranks that take part. ask: calls the communicator. answer: the right result.
    """

    label: str
    group: tuple[int, ...]
    ask: Callable[[Communicator], Array]
    answer: Callable[[int], Array]


def asked(comm: Communicator) -> list[Array]:
    """Return this rank's results of all questions for it."""
    return [np.array(q.ask(comm)) for q in _questions(comm.size) if comm.rank in q.group]


def expected(rank: int, size: int) -> list[tuple[str, Array]]:
    """(label, array) of the same by NumPy."""
    return [(q.label, np.asarray(q.answer(rank))) for q in _questions(size) if rank in q.group]


def _questions(size: int) -> Iterator[_Question]:
    everyone = tuple(range(size))
    groups = [everyone, everyone[::-1]] if size > 2 else [everyone]
    if size > 3:
        groups += [everyone[::2], everyone[1::2]]
    for group in groups:
        for number, dtype in enumerate(TYPES):
            for how in REDUCE:
                for shape in ((3,), (LARGE,)) if how == "sum" or dtype == np.float32 else ((3,),):
                    yield _reduced(group, how, dtype, shape, number)
            yield from _moved(group, dtype, number)
    yield from _sent(everyone)


def _made(rank: int, number: int, dtype: Any, shape: tuple[int, ...]) -> Array:
    """Return whole numbers so small that every type holds their sums and products, of both signs if it has them."""
    generator = np.random.default_rng([rank, number])
    if np.dtype(dtype) == bool:
        return generator.integers(0, 2, shape).astype(bool)
    low = 0 if np.dtype(dtype).kind == "u" else -2
    return generator.integers(low, 3, shape).astype(dtype)


def _reduced(group: tuple[int, ...], how: str, dtype: Any, shape: tuple[int, ...], number: int) -> _Question:
    return _Question(
        f"all_reduce {how} of {np.dtype(dtype).name}{shape} over {group}", group,
        lambda comm: comm.all_reduce(_made(comm.rank, number, dtype, shape), how, group),
        lambda rank: _combined([_made(member, number, dtype, shape) for member in group], how),
    )  # fmt: skip


def _combined(parts: Sequence[Array], how: str) -> Array:
    """Combine arrays by NumPy, in a type that holds every result."""
    dtype = parts[0].dtype
    if dtype == np.bool_:
        return OF_FLAGS[how](np.stack(parts), axis=0)
    wide = np.int64 if dtype.kind in "iu" else np.float64
    return REDUCE[how](np.stack([part.astype(wide) for part in parts]), axis=0).astype(dtype)


def _moved(group: tuple[int, ...], dtype: Any, number: int) -> Iterator[_Question]:
    count = len(group)
    shape = (2 * count, 3 * count)
    name = f"of {np.dtype(dtype).name} over {group}"

    def made(rank: int) -> Array:
        return _made(rank, number, dtype, shape)

    for axis in (0, 1):
        yield _Question(
            f"all_gather {name} along {axis}", group,
            lambda comm, axis=axis: comm.all_gather(made(comm.rank), group, axis),
            lambda rank, axis=axis: np.concatenate([made(member) for member in group], axis),
        )  # fmt: skip
        yield _Question(
            f"reduce_scatter {name} along {axis}", group,
            lambda comm, axis=axis: comm.reduce_scatter(made(comm.rank), "sum", group, axis),
            lambda rank, axis=axis: np.split(_combined(list(map(made, group)), "sum"), count, axis)[group.index(rank)],
        )  # fmt: skip
        yield _Question(
            f"all_to_all {name} from {axis} to {1 - axis}", group,
            lambda comm, axis=axis: comm.all_to_all(made(comm.rank), group, axis, 1 - axis),
            lambda rank, axis=axis: np.concatenate(
                [np.split(made(member), count, axis)[group.index(rank)] for member in group], 1 - axis
            ),
        )  # fmt: skip
    for root in {group[0], group[-1]}:
        yield _Question(
            f"broadcast {name} from {root}", group,
            lambda comm, root=root: comm.broadcast(made(comm.rank), root, group), lambda rank, root=root: made(root),
        )  # fmt: skip


def _sent(everyone: tuple[int, ...]) -> Iterator[_Question]:
    count, shape = len(everyone), (4, 3)

    def made(rank: int) -> Array:
        return _made(rank, 99, np.float32, shape)

    def around(comm: Communicator) -> Array:
        after, before = (comm.rank + 1) % count, (comm.rank - 1) % count
        (found,) = comm.exchange([(after, made(comm.rank))], [(before, shape, np.float32)])
        return found

    def handed(comm: Communicator) -> Array:
        comm.send(made(comm.rank), (comm.rank + 1) % count, 7)
        return comm.receive((comm.rank - 1) % count, 7, shape, np.float32)

    def both(comm: Communicator) -> Array:
        after, before, mine = (comm.rank + 1) % count, (comm.rank - 1) % count, made(comm.rank)
        wanted = [(before, shape, np.float32), (after, shape, np.float32)]
        return np.stack(comm.exchange([(after, mine), (before, -mine)], wanted))

    yield _Question("exchange with neighbours", everyone, around, lambda rank: made((rank - 1) % count))
    if count > 1:
        yield _Question(
            "exchange with both neighbours", everyone, both,
            lambda rank: np.stack([made((rank - 1) % count), -made((rank + 1) % count)]),
        )  # fmt: skip
        yield _Question("send and receive", everyone, handed, lambda rank: made((rank - 1) % count))


# The collectives of a compile run on made numbers, because with a network's own a wrong maximum, or a flag that only
# one rank sees, may change nothing.
#
# Input: %4 = AllReduce(%3) {op: max, rank_list: (0, 1)}: both ranks bring numbers of either sign, then negative ones.
#
# Output: a row for every kind of collective whose results differ from NumPy's.


LARGEST = 8
"""Limit of the whole numbers that are made: half precision holds their sums."""
ROUNDS = 2
KINDS = (AllReduce, AllGather, ReduceScatter, AlltoAll)


def collectives(ranks: int, plain_of: Callable[[int], Graph]) -> list[ComparedValue]:
    """Return the rows that differ. plain_of: a rank's graph. The graphs of all ranks, or of each stage, have the same
    collectives in the same order; if they do not, as in an edited folder, nothing is tried. Raise NodeFailure if a
    kernel failed."""
    graphs = [plain_of(rank) for rank in range(ranks)]
    if not any(_one_of_each(graphs, rank) for rank in range(ranks)):
        return []
    ran = World(ranks).run(lambda comm: computed(comm, graphs))
    return [row for row in expected_rows(ranks, plain_of, ran) if not row.same]


def computed(comm: Communicator, graphs: Sequence[Graph]) -> list[Array]:
    """Return a rank's results of the tried collectives, one array after the other. graphs: of all ranks."""
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
    """Return a row for every array that a rank has `computed`."""
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
    """Return the smallest collective of every kind, as each rank of this one's stage has it."""
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
    """Yield the nodes of a graph, and of its work on micro-batches."""
    seen: set[Graph] = set()
    for node in graph.nodes:
        yield node
        if WORK in node.attrs and node.regions[0] not in seen:
            seen.add(node.regions[0])
            yield from node.regions[0].nodes


def _kind(node: Node) -> tuple[Any, ...]:
    op: Any = node.op
    fields = [getattr(op, name, None) for name in ("op", "axis", "split_dim", "concat_dim")]
    return (op.name, *fields, len(op.members), element_types(node.inputs[0].type)[0].dtype, len(node.inputs))


def _size(node: Node) -> int:
    return sum(type.size for type in operand_types(node))


def _operands(node: Node, number: int, step: int, rank: int) -> list[Array]:
    """Make a rank's operands: whole numbers of either sign, then none that is positive; one rank's flags are set."""
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
    """Compute the rank's result by NumPy from the operands of its group."""
    place = op.ranks.index(rank)
    results: list[Array] = []
    for parts in zip(*(made[member] for member in op.ranks), strict=True):
        if isinstance(op, AllGather):
            results.append(np.concatenate(parts, op.axis))
        elif isinstance(op, AlltoAll):
            pieces = [np.split(part, len(parts), op.split_dim)[place] for part in parts]
            results.append(np.concatenate(pieces, op.concat_dim))
        else:
            total = _combined(parts, op.op)
            results.append(np.split(total, len(parts), op.axis)[place] if isinstance(op, ReduceScatter) else total)
    return results
