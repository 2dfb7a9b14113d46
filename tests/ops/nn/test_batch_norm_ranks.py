"""BatchNorm whose statistics ranks share: two of them gather those of each, more add theirs up."""

from __future__ import annotations

import numpy as np
import pytest

from mspc.ir.builder import Builder
from mspc.ir.graph import Graph, Value, element_types
from mspc.ir.layout import Layout
from mspc.ir.types import FLOAT64, TensorType
from mspc.ops.collective.collectives import AllGather, AllReduce
from mspc.ops.nn.batch_norm import BatchNorm
from mspc.ops.op import RankPlacement, load_operators
from tests.ops.backend import BACKEND
from tests.ops.ranks import on_ranks

load_operators()
SHAPE = (48, 4, 3)
TYPES = (TensorType(FLOAT64, SHAPE), *[TensorType(FLOAT64, SHAPE[1:2])] * 4)
OP = BatchNorm(is_training=True, momentum=0.25)


def layouts(ranks: int, channels: int) -> tuple[Layout, ...]:
    """The batch over some ranks, channels over others."""
    mesh = (ranks, channels)
    return Layout(mesh, ((0,), (1,), ())), *[Layout(mesh, ((1,),))] * 4


@pytest.mark.parametrize(("ranks", "channels"), [(2, 1), (3, 2), (8, 1), (12, 1), (16, 2)])
def test_ranks_are_one_device(ranks: int, channels: int) -> None:
    """Far from 0, where a sum of squares would have no digits left; every rank has the same bits."""
    ins = layouts(ranks, channels)
    random = np.random.default_rng(ranks)
    inputs = [random.normal(size=SHAPE) + 1e4 + np.arange(48).reshape(48, 1, 1), *random.uniform(1, 2, (4, 4))]
    outs = ins
    made = element_types(OP.infer(*TYPES))
    moving = [np.array(array) for array in inputs]
    expected = OP.run(BACKEND, *moving)
    by_slice: dict[object, list[bytes]] = {}
    for rank, (found, _, operands) in enumerate(on_ranks(OP, ranks * channels, TYPES, ins, made, outs, inputs)):
        got = [*found, *operands[3:]]
        for array, whole, layout in zip(got, [*expected, *moving[3:]], [*outs, *ins[3:]], strict=True):
            wanted = whole[layout.slices_for(rank, whole.shape)]
            np.testing.assert_allclose(array, wanted, rtol=1e-10, atol=1e-10)
        own = [np.ascontiguousarray(array).tobytes() for array in got[1:]]
        assert by_slice.setdefault(ins[1].slice_index(rank), own) == own


@pytest.mark.parametrize(("ranks", "channels"), [(2, 1), (4, 2), (8, 1), (12, 1)])
def test_bytes_are_those_that_are_sent(ranks: int, channels: int) -> None:
    ins = layouts(ranks, channels)
    b = Builder(Graph("norm"))
    given = [Value(t.with_shape(layout.local_shape(t.shape))) for t, layout in zip(TYPES, ins, strict=True)]
    assert OP.expand(b, RankPlacement(0, TYPES, ins, (), ()), given) is not None
    meeting = [node for node in b.graph.nodes if node.op.is_collective]
    assert [type(node.op) for node in meeting] == ([AllGather] if ranks == 2 else [AllReduce] * 2)
    assert all(node.attrs["reason"] == "statistics are those of the batch of all ranks" for node in meeting)
    sent = sum(node.op.sent_bytes(node.inputs[0].tensor_type.nbytes, ranks) for node in meeting)
    assert OP.moved_bytes(TYPES, ins) == sent
