"""Exchanges of pieces on simulated ranks: right results, and no more memory than source and target."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest

from mspc.ir.graph import Builder, Graph, Parameter
from mspc.ir.layout import Layout
from mspc.ir.types import FLOAT64, TensorType
from mspc.ops.collective.collectives import NeighborExchange
from mspc.ops.collective.exchange import Exchange, PasteSlices
from mspc.ops.collective.one_rank import OneRank
from mspc.ops.control.structural import TupleGetItem
from mspc.ops.op import RankPlacement
from mspc.ops.tensor.reshape import Reshape
from mspc.runtime.backend import NumPyBackend
from mspc.runtime.comm.agreement import arrival_kernels
from mspc.runtime.comm.local import LocalComm, World
from mspc.runtime.executor import Executor
from tests.redistributions import random_pairs

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
