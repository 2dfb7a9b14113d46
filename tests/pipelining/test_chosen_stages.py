"""A cell without a stage gets one, and the graph says by which rule."""

from typing import Any

import numpy as np

from mspc import Parameter, Tensor, nn, ops
from mspc.compiler.config import Config
from mspc.compiler.driver import DumpPoint, compile_call
from mspc.ir.graph import STAGE, Node
from mspc.mindspore_api import context
from mspc.ops.control.regions import body_of
from mspc.passes.lib.stage_placement import micro_batch_loop


class Layer(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.w = Parameter(Tensor(np.ones((8, 8))), name="w")
        self.product = ops.MatMul()

    def construct(self, x: Any) -> Any:
        return self.product(x, self.w)


class Net(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.between, self.last = Layer(), Layer(), Layer()
        self.first.pipeline_stage, self.last.pipeline_stage = 0, 1

    def construct(self, x: Any) -> Any:
        return self.last(self.between(self.first(x))).sum()


def staged_nodes(network: nn.Cell) -> list[Node]:
    """The operators of a micro-batch, once they have stages."""
    context.set_auto_parallel_context(
        parallel_mode="semi_auto_parallel", device_num=2, full_batch=True, pipeline_stages=2
    )
    step = nn.TrainOneStepCell(nn.PipelineCell(network, 2), nn.SGD(network.trainable_params(), 0.1)).set_train()
    found: list[Node] = []

    def look(point: DumpPoint) -> None:
        if point.name == "assign_stages":
            loop = micro_batch_loop(point.graph)
            assert loop is not None
            found.extend(body_of(loop).nodes)

    x = Tensor(np.ones((8, 8)))
    compile_call(step, (x,), Config.from_context(context.freeze(step), 2), look)
    return found


def test_a_cell_between_two_stages_is_of_that_of_what_it_reads() -> None:
    nodes = staged_nodes(Net())
    products = {node.scope: node for node in nodes if node.instance == "product" and node.phase == "forward"}
    (first, between, last) = products.values()
    assert [node.attrs[STAGE] for node in (first, between, last)] == [0, 0, 1]
    assert ["stage_from" in node.attrs for node in (first, between, last)] == [False, True, False]
    assert between.attrs["stage_from"] == "the latest of what it reads"
    assert between.scope.endswith("between-Layer")


def test_a_cell_in_a_cell_has_its_own_stage() -> None:
    network = Net()
    network.pipeline_stage = 1
    nodes = [node for node in staged_nodes(network) if node.phase == "forward" and "network-Net" in node.scope]
    of_first = [node.scope.endswith("first-Layer") for node in nodes]
    assert True in of_first
    assert [node.attrs[STAGE] for node in nodes] == [0 if first else 1 for first in of_first]


def test_an_operator_may_have_a_stage_of_its_own() -> None:
    network = Net()
    network.between.product.set_stage(1)
    stages = {node.scope: node.attrs[STAGE] for node in staged_nodes(network) if node.instance == "product"}
    assert [stages[scope] for scope in stages if scope.endswith("between-Layer")] == [1]


def test_names_of_cells_give_stages_as_attributes_do() -> None:
    network = nn.PipelineCell(nn.WithLossCell(Net(), nn.MSELoss()), 2, stage_config={"_backbone.between": 1})
    assert [cell.pipeline_stage for cell in network.network.backbone_network.cells()] == [0, 1, 1]
