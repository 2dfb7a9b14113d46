"""Facts of a pipeline that is compiled without being run: one stage's messages and parameters."""

from typing import Any

import numpy as np
import pytest

from mspc import Parameter, Tensor, nn, ops
from mspc.common.api import _cell_graph_executor
from mspc.mindspore_api import context, state


@pytest.fixture(autouse=True)
def of_four_ranks(session: state.Session) -> None:
    state.swap(state.Session(size=4, launched=True))


class Product(nn.Cell):
    def construct(self, x: Any, w: Any) -> Any:
        return ops.matmul(x, w)


class Tied(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.w = Parameter(Tensor(np.ones((8, 8), np.float32)), name="w")
        self.first, self.last = Product(), Product()
        self.first.pipeline_stage, self.last.pipeline_stage = 0, 1

    def construct(self, x: Any) -> Any:
        return self.last(self.first(x, self.w), self.w)


class Parts(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.network = Tied()

    def construct(self, x: Any) -> Any:
        rows = x.shape[0] // 2
        return ops.concat((self.network(x[:rows]), self.network(x[rows:])))


@pytest.mark.parametrize(("rank", "sent", "received"), [(0, 2, 1), (3, 1, 2)])
def test_a_weight_that_two_stages_read_is_not_sent(rank: int, sent: int, received: int) -> None:
    state.current().rank = rank
    context.set_auto_parallel_context(parallel_mode="semi_auto_parallel", full_batch=True, pipeline_stages=2)
    phase, _ = _cell_graph_executor.compile(Parts().set_train(False), Tensor(np.ones((4, 8), np.float32)))
    names = list(_cell_graph_executor.get_parallel_graph_info(phase)["@graph_0"])
    counts = [sum(name.startswith(f"{kind}-") for name in names) for kind in ("Send", "Receive")]
    assert counts == [sent, received]  # activations of two parts, and the whole result back


def test_a_stage_sends_for_every_micro_batch() -> None:
    class Layers(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Dense(8, 8), nn.Dense(8, 8)
            self.first.pipeline_stage, self.last.pipeline_stage = 0, 1

        def construct(self, x: Any) -> Any:
            return self.last(self.first(x)).sum()

    state.current().rank = 0
    context.set_auto_parallel_context(parallel_mode="semi_auto_parallel", full_batch=True, pipeline_stages=2)
    cell = nn.PipelineCell(Layers(), 4)
    step = nn.TrainOneStepCell(cell, nn.Momentum(cell.trainable_params(), 0.1, 0.9))
    phase, _ = _cell_graph_executor.compile(step, Tensor(np.ones((8, 8), np.float32)))
    names = list(_cell_graph_executor.get_parallel_graph_info(phase)["@graph_0"])
    counts = [sum(name.startswith(f"{kind}-") for name in names) for kind in ("Send", "Receive", "Call")]
    assert counts == [4, 5, 8]  # activations; gradients, and the loss; forwards and backwards
