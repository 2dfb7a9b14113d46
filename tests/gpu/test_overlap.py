"""Which products are told that a collective holds multiprocessors beside them."""

from __future__ import annotations

from mspc.ops.collective.collectives import AllReduce
from mspc.ops.math.matmul import MatMul
from mspc.runtime.gpu.overlap import Overlap
from tests.runtime.graphs import GraphMaker

PAIR = (0, 1)


def test_products_count_until_the_collective_is_over() -> None:
    make = GraphMaker()
    x, w = make.parameter("x", (4096, 4096)), make.parameter("w", (4096, 4096))
    # 67 MB at 340 GB/s and 12 us: 209 us. A product of 103 GFLOP takes 345 us, a third of its rows 116 us.
    reduced = make.node(AllReduce(rank_list=PAIR), x, shape=(4096, 4096))
    large = make.node(MatMul(), make.parameter("z", (3072, 4096)), w, shape=(3072, 4096))
    small = make.node(MatMul(), make.parameter("y", (1024, 4096)), w, shape=(1024, 4096))
    overlap = Overlap(rounds=True)
    assert overlap.taken(small) == 0
    assert overlap.idle
    overlap.begins(3, reduced, 8)
    assert not overlap.idle
    assert overlap.taken(small) == 8
    assert overlap.taken(small) == 8
    assert overlap.taken(small) == 0, "it is over"
    overlap.ends(3)
    overlap.begins(7, reduced, 8)
    assert overlap.taken(large) == 8, "half of the time"
    assert overlap.taken(large) == 0
    overlap.ends(7)
    overlap.begins(9, reduced, 8)
    overlap.ends(9)
    assert overlap.taken(small) == 0, "it was waited for"


def test_collectives_of_one_stream_follow_each_other() -> None:
    make = GraphMaker()
    x, w = make.parameter("x", (4096, 4096)), make.parameter("w", (4096, 4096))
    reduced = make.node(AllReduce(rank_list=PAIR), x, shape=(4096, 4096))
    small = make.node(MatMul(), make.parameter("y", (1024, 4096)), w, shape=(1024, 4096))
    overlap = Overlap(rounds=True)
    overlap.begins(1, reduced, 0)  # NCCL does not say what it takes
    overlap.begins(2, reduced, 8)
    assert not overlap.idle
    assert [overlap.taken(small) for _ in range(5)] == [8, 8, 8, 0, 0]


def test_products_that_are_not_rounded_take_longer_than_the_collective() -> None:
    make = GraphMaker()
    x, w = make.parameter("x", (4096, 4096)), make.parameter("w", (4096, 4096))
    reduced = make.node(AllReduce(rank_list=PAIR), x, shape=(4096, 4096))
    small = make.node(MatMul(), make.parameter("y", (1024, 4096)), w, shape=(1024, 4096))
    for rounds, blocks in ((True, 8), (False, 0)):
        overlap = Overlap(rounds)
        overlap.begins(1, reduced, 8)
        assert overlap.taken(small) == blocks, "687 us in the place of 116"
