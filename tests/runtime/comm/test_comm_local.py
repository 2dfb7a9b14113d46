"""Collectives between simulated ranks: results, order of turns, failures and ranks that would wait for
ever.
Collectives under MPI give the bits of the simulation.
"""

import sys
import tracemalloc
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from mspc.engine.ranks.launcher import find_mpirun, mpirun_environment
from mspc.runtime.comm.agreement import arrival_kernels
from mspc.runtime.comm.interface import combine, pieces
from tests.errors import failure_of
from tests.executors import Executor, LocalComm, NumPyBackend, OneRank, World
from tests.graphs import FLOAT64, Builder, ExecutionError, Graph, Layout, Parameter, RankPlacement, TensorType
from tests.operators import Exchange, NeighborExchange, PasteSlices, Reshape, TupleGetItem
from tests.redistributions import random_pairs
from tests.runtime.comm.collectives import digest, results
from tests.serving import succeed

ALL = (0, 1, 2, 3)


def on_ranks(main: Any, size: int = 4) -> list[Any]:
    return World(size).run(main)


def test_exchange_keeps_the_order_of_pieces_between_two_ranks() -> None:
    def main(comm: LocalComm) -> Any:
        after, before = (comm.rank + 1) % 4, (comm.rank - 1) % 4
        sends = [
            (after, np.array([comm.rank, 0])),
            (after, np.array([comm.rank, 1])),
            (comm.rank, np.array([7])),
        ]
        receives = [(before, (2,), np.int64), (comm.rank, (1,), np.int64), (before, (2,), np.int64)]
        return [piece.tolist() for piece in comm.exchange(sends, receives)]

    assert on_ranks(main) == [[[(r - 1) % 4, 0], [7], [(r - 1) % 4, 1]] for r in ALL]


def test_ranks_that_only_send_or_only_receive() -> None:
    def main(comm: LocalComm) -> Any:
        if comm.rank == 0:
            return comm.exchange([(3, np.ones(2))], [])
        return comm.exchange([], [(0, (2,), np.float64)]) if comm.rank == 3 else None

    assert on_ranks(main)[3][0].tolist() == [1, 1]


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_half_precision_is_summed_in_float32(dtype: Any) -> None:
    parts = [np.full(3, 1, dtype)] + [np.full(3, 2**-9, dtype)] * 4
    assert combine(parts, "sum").dtype == dtype
    exact = np.float32(1 + 4 * 2**-9).astype(dtype)
    assert combine(parts, "sum")[0] == exact
    one_by_one = parts[0]
    for part in parts[1:]:
        one_by_one = one_by_one + part
    assert dtype is np.float16 or one_by_one[0] != exact


def test_booleans_combine_as_any_and_all() -> None:
    parts = [np.array([True, False]), np.array([True, True])]
    assert combine(parts, "max").tolist() == [True, True]
    assert combine(parts, "min").tolist() == [True, False]


def test_unknown_reductions_and_odd_cuts_are_refused() -> None:
    with pytest.raises(ValueError, match="cannot combine with 'avg'; known are sum, max, min, prod"):
        combine([np.ones(1)], "avg")
    with pytest.raises(ValueError, match=r"dimension 0 of shape \(3,\) does not divide by 2 ranks"):
        pieces(np.ones(3), 2, 0)


def test_turns_are_in_rank_order_and_steps_end_together() -> None:
    said: list[str] = []

    def main(comm: LocalComm) -> None:
        for step in range(2):
            if comm.rank % 2 == 0:
                comm.all_reduce(np.ones(1), "sum", (0, 2))
            comm.pause()
            said.append(f"{step}:{comm.rank}")

    on_ranks(main)
    assert said == [f"{step}:{rank}" for step in range(2) for rank in ALL]


def test_different_operations_of_a_group_are_reported() -> None:
    def main(comm: LocalComm) -> None:
        if comm.rank == 1:
            comm.all_gather(np.ones(2), (0, 1), 0)
        else:
            comm.all_reduce(np.ones(2), "sum", (0, 1))

    with pytest.raises(ExecutionError, match="rank 1 is in AllGather where rank 0 is in AllReduce"):
        on_ranks(main, 2)


def test_a_rank_that_ends_early_is_reported_to_those_that_wait() -> None:
    def main(comm: LocalComm) -> None:
        if comm.rank != 1:
            comm.all_reduce(np.ones(2), "sum", (0, 1, 2))

    error = failure_of(on_ranks, main, 3)
    assert "would wait for ever in AllReduce(sum) with ranks" in error.message
    assert "rank 1 has ended" in error.notes


def test_the_failure_of_one_rank_ends_all() -> None:
    reached: list[int] = []

    def main(comm: LocalComm) -> None:
        if comm.rank == 2:
            raise KeyError("mine")
        comm.all_reduce(np.ones(2), "sum", ALL)
        reached.append(comm.rank)

    with pytest.raises(KeyError, match="mine"):
        on_ranks(main)
    assert reached == []


def test_a_piece_of_another_shape_is_refused() -> None:
    def main(comm: LocalComm) -> None:
        comm.exchange([(1 - comm.rank, np.ones(2))], [(1 - comm.rank, (3,), np.float64)])

    with pytest.raises(ExecutionError, match=r"expects float64 of shape \(3,\) from rank"):
        on_ranks(main, 2)


def test_a_piece_that_nobody_takes_is_reported() -> None:
    def main(comm: LocalComm) -> None:
        if comm.rank == 0:
            comm.exchange([(1, np.ones(2)), (2, np.ones(2))], [])
        if comm.rank == 1:
            comm.exchange([], [(0, (2,), np.float64)])

    error = failure_of(on_ranks, main, 3)
    assert error.message == "rank 0 would wait for ever in a send to ranks 1, 2"
    assert error.notes == ("rank 0 waits in a send to ranks 1, 2", "rank 1 has ended", "rank 2 has ended")


def test_one_rank_alone() -> None:
    comm = OneRank()
    x = np.ones((2, 2))
    for result in (
        comm.all_reduce(x, "sum", (0,)),
        comm.all_gather(x, (0,), 0),
        comm.all_to_all(x, (0,), 0, 1),
    ):
        np.testing.assert_array_equal(result, x)
        assert not np.shares_memory(result, x)
    assert comm.exchange([(0, x)], [(0, (2, 2), np.float64)])[0].shape == (2, 2)


COMPUTES = 2.0
SENT = f"""
import time
import numpy as np
from mspc.runtime.comm.mpi import MpiComm
comm, array = MpiComm(), np.arange(300_000, dtype=np.uint8)
comm.barrier((0, 1))
begin = time.perf_counter()
if comm.rank == 0:
    comm.send(array, 1, 1)
    array[:] = 0
    time.sleep({COMPUTES})
else:
    found = comm.receive(0, 1, array.shape, array.dtype)
    assert (found == array).all()
    print(time.perf_counter() - begin)
comm.finalize()
"""


def test_mpi_equals_the_simulation_bit_for_bit() -> None:
    script = Path(__file__).with_name("collectives.py")
    command = [find_mpirun(), "-n", "3", "--oversubscribe", "--bind-to", "none", sys.executable, str(script)]
    done = succeed(*command, env=mpirun_environment())
    simulated = World(3).run(lambda comm: digest(results(comm)))
    assert sorted(done.stdout.split("\n")[:3]) == [f"{rank} {text}" for rank, text in enumerate(simulated)]


def test_a_message_arrives_while_its_sender_computes() -> None:
    """Where ranks cannot read each other's memory, MPI hands long messages over only as both call it."""
    command = [find_mpirun(), "-n", "2", "--oversubscribe", "--bind-to", "none", sys.executable, "-c", SENT]
    environment = {**mpirun_environment(), "OMPI_MCA_smsc": "^cma,xpmem,knem"}
    done = succeed(*command, env=environment)
    assert float(done.stdout) < COMPUTES / 2


MIXED = ((Layout.of((2, 3), [(0,), (1,)]), Layout.of((3, 2), [(0,), (1,)]), "PasteSlices"),
         (Layout.of((2, 3), [(0, 1), ()]), Layout.of((6,), [(), (0,)]), "Concat"),
         (Layout.of((2, 4), [(1,), (0,)]), Layout.of((8,), [(0,), ()]), "Concat"))  # fmt: skip


def rank_graph(source: Layout, target: Layout, shape: tuple[int, ...], rank: int) -> Graph:
    """One rank's graph of an exchange of pieces."""
    graph = Graph("rank")
    graph.parameters.append(Parameter("x", TensorType(FLOAT64, source.local_shape(shape))))
    type = TensorType(FLOAT64, shape)
    place = RankPlacement(rank, (type,), (source,), (type,), (target,))
    result = Exchange(source, target).expand(Builder(graph), place, graph.parameters)
    assert result is not None
    graph.results = [result]
    return graph


def exchanged(source: Layout, target: Layout, whole: Any, steps: int = 1) -> list[Any]:
    """The values that every rank holds after the exchange."""

    def main(comm: LocalComm) -> Any:
        graph = rank_graph(source, target, whole.shape, comm.rank)
        executor = Executor(graph, NumPyBackend(comm), {})
        for _ in range(steps):
            (result,) = executor.run([whole[source.slices_for(comm.rank, whole.shape)]])
        return result

    return World(source.ranks).run(main)


@pytest.mark.parametrize(("source", "target", "join"), MIXED)
def test_pieces_are_received_into_the_new_slice(source: Layout, target: Layout, join: str) -> None:
    whole = np.arange(48.0 * 24).reshape(48, 24)
    joins: set[str] = set()
    for rank in range(source.ranks):
        graph = rank_graph(source, target, whole.shape, rank)
        names = [graph.nodes[i].op.name for i in sorted(arrival_kernels(graph, NumPyBackend(OneRank())))]
        assert len(names) in (0, 2)
        joins.update(names[1:])
    assert join in joins
    for rank, mine in enumerate(exchanged(source, target, whole, steps=2)):
        np.testing.assert_array_equal(mine, whole[target.slices_for(rank, whole.shape)])


@pytest.mark.parametrize("seed", range(2))
def test_random_layouts(seed: int) -> None:
    for source, target, shape in random_pairs(seed, 40, (4, 6, 8, 12)):
        whole = np.arange(float(np.prod(shape))).reshape(shape)
        for rank, mine in enumerate(exchanged(source, target, whole)):
            np.testing.assert_array_equal(mine, whole[target.slices_for(rank, shape)])


@pytest.mark.parametrize(("source", "target", "join"), MIXED)
def test_an_exchange_holds_source_and_target_only(source: Layout, target: Layout, join: str) -> None:
    """Counted over all ranks together; one message more is allowed, and some small change for the threads."""
    shape = (960, 960)
    sources = [np.ones(source.local_shape(shape)) for _ in range(source.ranks)]

    def main(comm: LocalComm) -> Any:
        executor = Executor(rank_graph(source, target, shape, comm.rank), NumPyBackend(comm), {})
        return executor.run([sources[comm.rank]])[0]

    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        results = World(source.ranks).run(main)
        peak = tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
    targets = sum(result.nbytes for result in results)
    assert targets <= peak <= targets + sources[0].nbytes // 2


def exchange_and_paste() -> tuple[Graph, Builder, list[Any]]:
    """x on rank 0 sent to itself and pasted beside x."""
    graph = Graph("rank")
    graph.parameters.append(Parameter("x", TensorType(FLOAT64, (2, 3))))
    b = Builder(graph)
    x = graph.parameters[0]
    received = b.emit(
        NeighborExchange(
            send_rank_ids=(0,), recv_rank_ids=(0,), recv_shapes=((2, 3),), recv_type=FLOAT64, rank_list=(0,)
        ),
        x,
    )
    piece = b.emit(TupleGetItem(0), received)
    both = b.emit(PasteSlices(shape=(4, 3), begins=((0, 0), (2, 0))), x, piece)
    return graph, b, [received, piece, both]


def test_a_piece_that_somebody_else_reads_stays_its_own() -> None:
    backend = NumPyBackend(OneRank())
    x = np.arange(6.0).reshape(2, 3)
    for reader in ("nobody", "a result", "a node"):
        graph, b, (_, piece, both) = exchange_and_paste()
        graph.results = [both]
        if reader == "a result":
            graph.results.append(piece)
        if reader == "a node":
            graph.results.append(b.emit(Reshape((3, 2)), piece))
        assert bool(arrival_kernels(graph, backend)) == (reader == "nobody")
        found = Executor(graph, backend, {}).run([x])
        np.testing.assert_array_equal(found[0], np.concatenate([x, x]))
        assert all(not np.shares_memory(x, other) for other in found[1:])
