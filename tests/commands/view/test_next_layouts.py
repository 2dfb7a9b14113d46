"""The next best layouts cost what the search's own tables say, summed up over the step."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from mspc.analysis.cost.machine import H200
from mspc.commands.view.alternatives import next_ways
from mspc.commands.view.dump import Dump, read_dump
from mspc.passes.lib.layout_search import Search
from mspc.search.layouts.cheapest import mesh_of
from mspc.search.model.model import CostModel
from mspc.search.plans.alternatives import LARGE
from mspc.search.solver.elimination import Elimination
from tests.commands.view.reading import compiled

NETWORK = """
import mindspore as ms
import numpy as np
from mindspore import nn, ops, Tensor, Parameter

ms.set_auto_parallel_context(parallel_mode="semi_auto_parallel", device_num=4, dataset_strategy="full_batch")

class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.first = ops.MatMul().shard(((2, 2), (2, 1)))
        self.second = ops.MatMul().shard(((1, 1), (1, 4)))
        self.w = Parameter(Tensor(np.ones((64, 32), np.float32)), name="w")
        self.v = Parameter(Tensor(np.ones((32, 16), np.float32)), name="v")

    def construct(self, x):
        return self.second(self.first(x, self.w), self.v)

Net()(Tensor(np.ones((8, 64), np.float32)))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("alternatives")
    (place / "net.py").write_text(NETWORK)
    return compiled(place / "net.py", place / "graphs", only_ranks=(0,))


def model_of(dump: Dump) -> CostModel:
    """The search's problem with nothing decided, as `next_ways` has left the graph."""
    assert dump.configured is not None
    search = Search(dump.configured)
    search.structure([node for node in dump.configured.nodes if node.phase == "forward"])
    return CostModel(search, mesh_of(search))  # (2, 2), of which the layouts that stand are made, too


def test_what_a_way_costs_more_is_the_difference_of_two_complete_plans(folder: Path) -> None:
    dump = read_dump(folder)
    assert dump.configured is not None
    assert dump.decided is not None
    ways = next_ways(dump.configured, dump.decided, H200)
    model = model_of(dump)
    stand: dict[int, int] = {}
    for node, decided in zip(dump.configured.nodes, dump.decided.nodes, strict=True):
        if node in model.of:
            choices = model.variables[model.of[node]].choices
            (stand[model.of[node]],) = (i for i, choice in enumerate(choices) if choice.inputs == decided.in_layouts)
    stored = {parameter.name: parameter.layout for parameter in dump.decided.parameters}
    for parameter in dump.configured.parameters:
        if parameter in model.of:
            numbers = model.variables[model.of[parameter]].outputs[0]
            (stand[model.of[parameter]],) = (
                i for i, n in enumerate(numbers) if model.layout(parameter, int(n)) == stored[parameter.name]
            )
    values = [stand.get(variable, 0) for variable in range(len(model.variables))]
    elimination = Elimination([variable.size for variable in model.variables], model.factors)
    bandwidth = H200.link.bandwidth.at(LARGE)
    told = 0
    for number, rows in ways.items():
        variable = model.of[dump.configured.nodes[number]]
        assert rows[0].operands == dump.decided.nodes[number].in_layouts
        for way in rows[1:]:
            costs = []
            for i, choice in enumerate(model.variables[variable].choices):
                if choice.inputs == way.operands:
                    changed = [*values[:variable], i, *values[variable + 1 :]]
                    costs.append(elimination.cost(changed) - elimination.cost(values))
            assert way.seconds == pytest.approx(min(costs) / bandwidth, abs=1e-12)
            told += 1
    assert told >= 4
    assert sorted(len(rows) for rows in ways.values()) == [3, 3]


def test_the_search_is_not_beaten_by_more_than_it_could_save(folder: Path) -> None:
    """A product whose operand is sharded otherwise than the one before leaves it: the way that spares the exchange
    costs less."""
    dump = read_dump(folder)
    assert dump.configured is not None
    assert dump.decided is not None
    ways = next_ways(dump.configured, dump.decided, H200)
    assert any(way.seconds < 0 for rows in ways.values() for way in rows[1:])
    assert all(a.seconds <= b.seconds for rows in ways.values() for a, b in pairwise(rows[1:]))


def test_graphs_that_do_not_go_together_tell_nothing(folder: Path) -> None:
    dump = read_dump(folder)
    assert dump.configured is not None
    assert dump.plan is not None
    assert next_ways(dump.configured, dump.plan, H200) == {}
