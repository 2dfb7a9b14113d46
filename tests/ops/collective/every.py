"""Every collective on the ranks of a communicator, forward and backward, beside NumPy on the arrays of all ranks."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from mspc.ops.collective.base import Collective
from mspc.ops.collective.collectives import (
    AllGather,
    AllReduce,
    AlltoAll,
    AlltoAllV,
    Broadcast,
    CollectiveGather,
    CollectiveScatter,
    NeighborExchange,
    Reduce,
    ReduceScatter,
)
from tests.executors import Executor, NumPyBackend
from tests.graphs import Builder, DType, Graph, Parameter, TensorType, TupleType, Value, dtype_of, element_types
from tests.operators import Barrier, Receive, ReceiveFromStage, Send, SendToStage, TupleGetItem

Array = np.ndarray
TYPES = ("Float32", "Float16", "BFloat16", "Int32")
SHAPES = ((1, 1), (3, 0), (0, 2), (3, 5))
COMBINE: dict[str, Any] = {"sum": np.add, "max": np.maximum, "min": np.minimum, "prod": np.multiply}


@dataclass
class Case:
    """A collective of a group. op: as member number i calls it. shape: of member i's operand. forward: from all
    members' operands to what member i gets. backward: from all members' gradients, operands and results to what
    member i's operand gets; None where there is no gradient."""

    name: str
    op: Callable[[int], Collective]
    shape: Callable[[int], tuple[int, ...]]
    forward: Callable[[list[Array], int], list[Array]]
    backward: Callable[[list[list[Array]], list[Array], list[list[Array]], int], Array] | None


def reduced(op: str, parts: Sequence[Array]) -> Array:
    """The parts combined; numbers are such that every element type holds all sums and products exactly."""
    return COMBINE[op].reduce(np.stack(parts), axis=0).astype(parts[0].dtype)


def cases(members: tuple[int, ...], rows: int, columns: int) -> Iterator[Case]:
    """All collectives, of tensors [rows, columns] of which a member holds one or one for each member."""
    count = len(members)
    whole, root = (rows * count, columns), members[-1]

    def piece(x: Array, i: int, axis: int = 0) -> Array:
        return np.split(x, count, axis)[i]

    for op in COMBINE:
        yield _all_reduce(op, members, (rows, columns))
        yield Case(
            f"ReduceScatter {op}", lambda i, op=op: ReduceScatter(op, rank_list=members), lambda i: whole,
            lambda xs, i, op=op: [piece(reduced(op, xs), i)],
            (lambda ds, xs, outs, i: np.concatenate([d[0] for d in ds])) if op == "sum" else None,
        )  # fmt: skip
        yield Case(
            f"Reduce {op}", lambda i, op=op: Reduce(count - 1, op, rank_list=members, rank_id=i),
            lambda i: (rows, columns),
            lambda xs, i, op=op: [reduced(op, xs) if i == count - 1 else np.zeros(1, xs[0].dtype)],
            lambda ds, xs, outs, i: ds[-1][0],
        )  # fmt: skip
    yield Case(
        "AllGather", lambda i: AllGather(rank_list=members), lambda i: (rows, columns),
        lambda xs, i: [np.concatenate(xs)], lambda ds, xs, outs, i: piece(reduced("sum", [d[0] for d in ds]), i),
    )  # fmt: skip
    yield Case(
        "Broadcast", lambda i: Broadcast(root, rank_list=members), lambda i: (rows, columns),
        lambda xs, i: [xs[-1]], lambda ds, xs, outs, i: ds[i][0],
    )  # fmt: skip
    yield Case(
        "CollectiveScatter", lambda i: CollectiveScatter(root, rank_list=members, rank_id=i), lambda i: whole,
        lambda xs, i: [piece(xs[-1], i)],
        lambda ds, xs, outs, i: np.concatenate([d[0] for d in ds]) if i == count - 1 else np.zeros_like(xs[i]),
    )  # fmt: skip
    yield Case(
        "CollectiveGather", lambda i: CollectiveGather(root, rank_list=members, rank_id=i),
        lambda i: (rows, columns),
        lambda xs, i: [np.concatenate(xs) if i == count - 1 else np.zeros(1, xs[0].dtype)],
        lambda ds, xs, outs, i: piece(ds[-1][0], i),
    )  # fmt: skip
    for split, concat in itertools.product((0, 1), repeat=2):
        yield Case(
            f"AlltoAll {split} {concat}",
            lambda i, split=split, concat=concat: AlltoAll(count, split, concat, rank_list=members),
            lambda i, split=split: whole if split == 0 else (rows, columns * count),
            lambda xs, i, s=split, c=concat: [np.concatenate([piece(x, i, s) for x in xs], c)],
            lambda ds, xs, outs, i, s=split, c=concat: np.concatenate([piece(d[0], i, c) for d in ds], s),
        )  # fmt: skip
    yield from (_uneven(members, columns), _ring(members, (rows, columns)))
    yield Case("Barrier", lambda i: Barrier(rank_list=members), lambda i: (rows, columns), lambda xs, i: [xs[i]], None)


def _all_reduce(op: str, members: tuple[int, ...], shape: tuple[int, ...]) -> Case:
    """The element that max or min chooses gets the gradient on every rank that has it; a product's is product /
    factor."""

    def backward(ds: list[list[Array]], xs: list[Array], outs: list[list[Array]], i: int) -> Array:
        total = reduced("sum", [d[0] for d in ds])
        if op == "prod":
            return (total * outs[i][0] / xs[i]).astype(total.dtype)
        return total if op == "sum" else np.where(xs[i] == outs[i][0], total, np.zeros_like(total))

    return Case(
        f"AllReduce {op}", lambda i: AllReduce(op, rank_list=members), lambda i: shape,
        lambda xs, i: [reduced(op, xs)], backward,
    )  # fmt: skip


def _uneven(members: tuple[int, ...], block: int) -> Case:
    """Member i sends (i + j) % 3 blocks to member j."""
    count = len(members)
    sent = [[(i + j) % 3 for j in range(count)] for i in range(count)]
    size = max(1, block)

    def op(i: int) -> Collective:
        come = tuple(row[i] for row in sent)
        return AlltoAllV(block_size=size, send_numel_list=tuple(sent[i]), recv_numel_list=come, rank_list=members)

    def part(x: Array, counts: list[int], j: int) -> Array:
        start = size * sum(counts[:j])
        return x[start : start + size * counts[j]]

    return Case(
        "AlltoAllV", op, lambda i: (size * sum(sent[i]),),
        lambda xs, i: [np.concatenate([part(x, sent[j], i) for j, x in enumerate(xs)])],
        lambda ds, xs, outs, i: np.concatenate(
            [part(d[0], [row[j] for row in sent], i) for j, d in enumerate(ds)]
        ),
    )  # fmt: skip


def _ring(members: tuple[int, ...], shape: tuple[int, ...]) -> Case:
    """Every member sends its tensor to the next one."""
    count = len(members)

    def op(i: int) -> Collective:
        to, of = (members[(i + 1) % count],), (members[(i - 1) % count],)
        return NeighborExchange(to, of, (shape,), recv_type=dtype_of("Float32"), rank_list=members)

    return Case(
        "NeighborExchange", op, lambda i: shape, lambda xs, i: [xs[i - 1]],
        lambda ds, xs, outs, i: ds[(i + 1) % count][0],
    )  # fmt: skip


@lru_cache(maxsize=4096)
def numbers(seed: int, shape: tuple[int, ...], dtype: DType) -> Array:
    """1, 2 and their negatives: eight of them have a product and a sum that every element type holds. Not to be
    written to: every rank of a process has the same."""
    found = np.random.default_rng(seed).choice([-2.0, -1.0, 1.0, 2.0], shape).astype(dtype.numpy)
    found.flags.writeable = False
    return found


def groups(size: int) -> list[tuple[int, ...]]:
    """All ranks, all turned around, and some in no order."""
    everyone = tuple(range(size))
    if size == 8:
        return [everyone[::-1], (6, 1, 4)]
    return [everyone, everyone[::-1], (size - 1, 0), *([(2, 0, 1)] if size > 3 else []), (size - 1,)]


def check_all(comm: Any, executor: Callable[[Graph], Any] | None = None) -> int:
    """Run all on this rank and compare; all ranks call this together. Returns how many results were compared.

    Args:
        executor: makes what runs a graph on this rank; on NumPy where it is None.
    """
    executor = executor or (lambda graph: Executor(graph, NumPyBackend(comm), {}))
    compared = 0
    for name, shape in itertools.product(TYPES, SHAPES):
        compared += _check_messages(comm.rank, comm.size, executor, dtype_of(name), shape)
        compared += _check_stage_messages(comm.rank, comm.size, executor, dtype_of(name), shape)
    for members in groups(comm.size):
        if comm.rank not in members:
            continue
        for name, (rows, columns) in itertools.product(TYPES, SHAPES if comm.size < 8 else SHAPES[2:]):
            for case in cases(members, rows, columns):
                compared += _check(comm.rank, executor, case, members, dtype_of(name))
    return compared


def _check(rank: int, executor: Callable[[Graph], Any], case: Case, members: tuple[int, ...], dtype: DType) -> int:
    me = members.index(rank)
    places = range(len(members))
    ops = [case.op(i) for i in places]
    if isinstance(ops[0], NeighborExchange):
        ops = [op.__class__(**(op.attributes() | {"recv_type": dtype})) for op in ops]
    xs = [numbers(i, case.shape(i), dtype) for i in places]
    outs = [case.forward(xs, i) for i in places]
    backward = case.backward if dtype.is_float else None
    douts = [[numbers(100 + i, out.shape, dtype) for out in each] for i, each in enumerate(outs)]
    found = run(executor, ops[me], xs[me], douts[me] if backward else None)
    what = f"{case.name} of {dtype} {xs[me].shape} on rank {rank} of {members}"
    expected = [*outs[me], *([backward(douts, xs, outs, me)] if backward else [])]
    for got, wanted in zip(found, expected, strict=True):
        assert (got.shape, got.dtype) == (wanted.shape, wanted.dtype), what
        np.testing.assert_array_equal(got, wanted, what)
    return len(found)


def _check_messages(
    rank: int, size: int, executor: Callable[[Graph], Any], dtype: DType, shape: tuple[int, ...]
) -> int:
    """Every rank sends a tensor to the next one before it receives; the gradient comes back."""
    after, before = (rank + 1) % size, (rank - 1) % size
    graph = Graph("one")
    kind = TensorType(dtype, shape)
    x, dout = (Parameter(name, kind, "input") for name in ("x", "dout"))
    graph.parameters = [x, dout]
    b = Builder(graph)
    send, receive = Send(3, after), Receive(3, before, shape, dtype)
    sent = b.emit(send, x)
    arrived = b.emit(receive)
    receive.bprop(b, arrived, dout)
    (grad,) = send.bprop(b, x, sent, dout)
    assert grad is not None
    graph.results = [sent, arrived, grad]
    found = executor(graph).run([numbers(rank, shape, dtype), numbers(100 + rank, shape, dtype)])
    wanted = numbers(rank, shape, dtype), numbers(before, shape, dtype), numbers(100 + after, shape, dtype)
    for got, right in zip(found, wanted, strict=True):
        assert (got.shape, got.dtype) == (right.shape, right.dtype)
        np.testing.assert_array_equal(got, right, f"message of {dtype} {shape} on rank {rank}")
    return len(wanted)


def _check_stage_messages(
    rank: int, size: int, executor: Callable[[Graph], Any], dtype: DType, shape: tuple[int, ...]
) -> int:
    """Every rank of one of two stages sends two micro-batches to its partner of the other, which reads the second one
    first."""
    distance = size // 2
    if not distance or rank >= 2 * distance:
        return 0
    graph = Graph("one")
    kind = TensorType(dtype, shape)
    graph.parameters = parts = [Parameter(f"part_{i}", kind, "input") for i in range(2)]
    b = Builder(graph)
    stage, other, away = (0, 1, distance) if rank < distance else (1, 0, -distance)
    sent = [b.emit(SendToStage(other, away, 5 + i, i), part) for i, part in enumerate(parts)]
    arrived = [b.emit(ReceiveFromStage(stage=other, distance=-away, sr_tag=5 + i, shape=shape, dtype=dtype,
                                       micro_batch=i)) for i in (1, 0)]  # fmt: skip
    graph.results = [*sent, *arrived]
    found = executor(graph).run([numbers(100 * i + rank, shape, dtype) for i in range(2)])
    wanted = [numbers(100 * i + r, shape, dtype) for r, i in ((rank, 0), (rank, 1), (rank + away, 1), (rank + away, 0))]
    for got, right in zip(found, wanted, strict=True):
        assert (got.shape, got.dtype) == (right.shape, right.dtype)
        np.testing.assert_array_equal(got, right, f"message of {dtype} {shape} to stage {other} from stage {stage}")
    return len(wanted)


def run(executor: Callable[[Graph], Any], op: Collective, x: Array, douts: list[Array] | None) -> list[Array]:
    """The results, and the operand's gradient where those of the results are given."""
    graph = Graph("one")
    kind = TensorType(dtype_of(x.dtype.name), x.shape)
    operand = Parameter("x", kind, "input")
    graph.parameters.append(operand)
    b = Builder(graph)
    out = b.emit(op, operand)
    several = isinstance(out.type, TupleType)
    results: list[Value] = (
        [b.emit(TupleGetItem(i), out) for i in range(len(element_types(out.type)))] if several else [out]
    )
    fed = [x]
    if douts is not None:
        given = [Parameter(f"dout{i}", kind, "input") for i, kind in enumerate(element_types(out.type))]
        graph.parameters += given
        fed += douts
        (grad,) = op.gradient(b, [operand], out, given if several else given[0])
        assert grad is not None
        results.append(grad)
    graph.results = results
    return executor(graph).run(fed)
