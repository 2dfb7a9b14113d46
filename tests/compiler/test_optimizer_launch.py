"""An optimizer that is launched by itself: its gradients are replicated, its parameters and states sharded where a
strategy says so."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mspc import Tensor, nn, ops
from mspc.compiler.config import Config
from mspc.compiler.driver import compile_call
from mspc.ir.text.parser import parse
from mspc.ir.text.printer import print_graph
from mspc.ops.collective.collectives import Collective
from mspc.ops.op import REGISTRY


@pytest.mark.parametrize("mode", ["semi_auto_parallel", "auto_parallel"])
@pytest.mark.parametrize("strategy", ["data_parallel", "full_batch", ((4, 1), (4, 1))])
@pytest.mark.parametrize("parallel", [False, True])
def test_optimizer_parallel_cuts_what_is_updated(mode: str, strategy: object, parallel: bool) -> None:
    net = nn.Dense(8, 16)
    optimizer = nn.Adam(net.trainable_params(), 0.1)
    gradients = tuple(Tensor(np.ones(p.shape, np.float32)) for p in optimizer.parameters)
    config = Config(
        ranks=4, mode=mode, dataset_strategy=strategy, parallel_optimizer=parallel, parallel_optimizer_threshold=0
    )  # type: ignore[arg-type]  # a str or a tuple
    compiled = compile_call(optimizer, (gradients,), config)
    graph = compiled.rank_graph(0)
    shapes = {p.name: p.shape for p in graph.parameters if p.shape}
    rows = 4 if parallel else 16
    assert shapes["gradients0"] == (16, 8)
    assert shapes["weight"] == shapes["moment1.weight"] == shapes["moment2.weight"] == (rows, 8)
    assert shapes["bias"] == shapes["moment1.bias"] == (rows,)
    assert not any(isinstance(node.op, Collective) for node in graph.nodes)
    assert graph.results == [] == parse(print_graph(graph), REGISTRY).graphs[0].results
    assert compiled.traced.rebuild([]) == ((True, True, True), (True, True, True))


def test_what_an_optimizer_computes_besides_its_updates_is_handed_out() -> None:
    class Telling(nn.SGD):
        def construct(self, gradients: Any) -> Any:
            norm = ops.sqrt(ops.reduce_sum(ops.square(gradients[0])))
            return norm, super().construct(gradients)

    net = nn.Dense(2, 3)
    optimizer = Telling(net.trainable_params(), 0.1)
    gradients = tuple(Tensor(np.ones(p.shape, np.float32)) for p in optimizer.parameters)
    compiled = compile_call(optimizer, (gradients,), Config())
    assert [value.shape for value in compiled.graph.results] == [()]
    assert compiled.traced.rebuild([1.5]) == (1.5, (True, True))
