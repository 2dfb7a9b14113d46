"""Optimizer parallel: which ranks hold what of a parameter, and why one stays as it is."""

from __future__ import annotations

import itertools
import math

import pytest

from mspc.ir.graph import Builder, Graph, Parameter
from mspc.ir.layout import Layout
from mspc.ir.types import FLOAT32, TensorType
from mspc.ops.optim.optimizer import AssignAdd
from mspc.passes.lib.propagation import shard_parameters, why_not_sharded

BELOW = "all parameters that are trained are below the threshold of {} KiB"
MESHES = ((8,), (2, 4), (4, 2), (2, 2, 2), (4, 2, 3), (3, 4, 2))


def trained(rows: int, update: bool = True, **attributes: object) -> Graph:
    """A graph with a parameter of `rows` rows of 1 KiB that is updated."""
    graph = Graph("trained")
    graph.attrs = {"ranks": 8, "parallel_optimizer": True, **attributes}
    parameter = Parameter("w", TensorType(FLOAT32, (rows, 256)), kind="parameter", trainable=True)
    graph.parameters = [parameter]
    b = Builder(graph)
    b.phase = "update" if update else "forward"
    graph.results = [b.emit(AssignAdd(), parameter, parameter)]
    return graph


@pytest.mark.parametrize(
    ("graph", "reason"),
    [
        (trained(64), ""),
        (trained(63), BELOW.format(64)),
        (trained(64, parallel_optimizer_threshold=65), BELOW.format(65)),
        (trained(1, parallel_optimizer_threshold=1), ""),
        (trained(64, update=False), "no parameter is trained"),
    ],
)
def test_the_reason_why_nothing_is_cut(graph: Graph, reason: str) -> None:
    assert why_not_sharded(graph) == reason


def test_a_graph_without_a_parameter_to_train_says_so() -> None:
    graph = trained(64)
    graph.parameters[0].trainable = False
    assert why_not_sharded(graph) == "no parameter is trained"


@pytest.mark.parametrize("mesh", MESHES, ids=str)
@pytest.mark.parametrize("wanted", [-1, 2, 3, 4, 8])
def test_replicas_hold_equal_parts_of_what_they_held(mesh: tuple[int, ...], wanted: int) -> None:
    """Whatever axes shard the parameter before: its slices stay, each is divided over `wanted` of its replicas."""
    for axes in itertools.chain.from_iterable(itertools.combinations(range(len(mesh)), n) for n in range(len(mesh))):
        layout = Layout.of(mesh, [(), axes])
        graph = trained(48 * 8, ranks=math.prod(mesh), optimizer_weight_shard_size=wanted)
        parameter = graph.parameters[0]
        parameter.type = TensorType(FLOAT32, (48 * 8, 48))
        parameter.layout = layout
        shard_parameters(graph)
        cut = parameter.layout
        replicas = math.prod(mesh) // math.prod(layout.strategy)
        parts = replicas if wanted == -1 else wanted
        assert isinstance(cut, Layout)
        assert cut.ranks == layout.ranks
        assert cut.strategy in ((parts, layout.strategy[1]), layout.strategy)
        if parts > 1 and replicas % parts == 0 and (len(layout.unused) == 1 or wanted == -1):
            assert cut.strategy == (parts, layout.strategy[1])
        holders = [cut.slice_index(rank) for rank in range(cut.ranks)]
        for rank, held in enumerate(holders):
            assert held[1] == layout.slice_index(rank)[1]
            assert holders.count(held) == cut.ranks // math.prod(cut.strategy)
