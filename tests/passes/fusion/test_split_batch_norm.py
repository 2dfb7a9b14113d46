"""split_batch_norm: batches of any number of values of a channel, also of one."""

from __future__ import annotations

import numpy as np
import pytest

from mspc.ir.builder import Builder
from mspc.ir.graph import Graph, Parameter
from mspc.ir.types import FLOAT32, TensorType
from mspc.ops.nn.batch_norm import BatchNorm, BatchNormGrad
from mspc.ops.op import Op, load_operators
from mspc.passes.fusion.split_batch_norm import SplitBatchNorm
from tests.interpret import random_feeds, run_global, same

load_operators()
SHAPES = ((1, 3), (1, 3, 1, 1), (2, 3), (1, 3, 2, 1), (4, 3, 2, 2))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("trains", [True, False])
@pytest.mark.parametrize("kind", [BatchNorm, BatchNormGrad])
def test_the_parts_compute_what_the_operator_does(kind: type[Op], trains: bool, shape: tuple[int, ...]) -> None:
    op = kind(is_training=trains)
    images = 1 if kind is BatchNorm else 2
    b = Builder(Graph("norm"))
    for number in range(5):
        own = shape if number < images else shape[1:2]
        b.graph.parameters.append(Parameter(f"x{number}", TensorType(FLOAT32, own)))
    b.graph.results = [b.emit(op, *b.graph.parameters)]
    feeds = {name: np.abs(value) + 0.5 for name, value in random_feeds(b.graph).items()}
    expected = run_global(b.graph, feeds)
    assert SplitBatchNorm().run(b.graph)
    b.graph.verify()
    assert not any(isinstance(node.op, kind) for node in b.graph.nodes)
    same(run_global(b.graph, feeds), expected)
