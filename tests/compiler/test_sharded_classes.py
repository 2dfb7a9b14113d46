"""Softmax and cross entropy over classes of which every rank has a slice equal one device, and send no logits."""

from __future__ import annotations

from pathlib import Path

import pytest

from mspc.commands.compile import CompileOptions
from mspc.commands.verify import verify_target
from mspc.ir.graph import operand_types
from mspc.ops.collective.base import Collective
from tests.compiler.sharded_networks import HEAD, check_equals_one_device, compiled

ROWS, CLASSES = 64, 512
NETWORK = f"""
class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.w = Parameter(tensor(8, {CLASSES}), "w")
        self.head = P.MatMul().shard(((2, 1), (1, 4)))
        self.dense, self.sparse = nn.SoftmaxCrossEntropyWithLogits(), nn.SoftmaxCrossEntropyWithLogits(True, "mean")
    def construct(self, x, labels):
        logits = self.head(x, self.w)
        return {{result}}
labels = Tensor(random.integers(0, {CLASSES}, {ROWS}), ms.int32)
net = Net()
nn.TrainOneStepCell(net, nn.Momentum(net.trainable_params(), 0.1, 0.9))(tensor({ROWS}, 8), labels)
"""
RESULTS = {
    "cross_entropy": "ops.cross_entropy(logits, labels)",
    "cross_entropy, ignored classes, smoothing": (
        "ops.cross_entropy(logits, ops.select(labels > 50, labels, -100), label_smoothing=0.1)"
    ),
    "SoftmaxCrossEntropyWithLogits": f"self.dense(logits, ops.one_hot(labels, {CLASSES}, 1.0, 0.0)).mean()",
    "SparseSoftmaxCrossEntropyWithLogits": "self.sparse(logits, labels)",
    "softmax": "(ops.softmax(logits) * ops.exp(self.w[0])).sum()",
    "log_softmax in halves": "(ops.log_softmax(logits.astype(ms.float16)) * 0.01).astype(ms.float32).mean()",
}


@pytest.mark.parametrize("name", RESULTS)
def test_steps_equal_one_device(name: str, tmp_path: Path) -> None:
    check_equals_one_device(tmp_path, NETWORK.format(result=RESULTS[name]))


@pytest.mark.parametrize("name", [name for name in RESULTS if name != "softmax"])
def test_ranks_send_numbers_of_rows_alone(name: str, tmp_path: Path) -> None:
    """Neither logits nor a mask of the classes, of which a rank has ROWS / 2 x CLASSES / 4; and for each its reason."""
    graph = compiled(tmp_path, NETWORK.format(result=RESULTS[name])).rank_graph(0)
    collectives = [node for node in graph.nodes if isinstance(node.op, Collective)]
    assert sum("of rows, of which each rank has a slice" in str(node.attrs["reason"]) for node in collectives) >= 2
    largest = max(type.size for node in collectives for type in operand_types(node))
    assert largest <= 8 * CLASSES // 4  # the gradient of the head


def test_a_strategy_may_shard_what_is_normalised(tmp_path: Path) -> None:
    script = tmp_path / "net.py"
    text = NETWORK.format(result="(self.soft(logits) * self.w[0]).sum()")
    made = "self.soft = P.Softmax().shard(((2, 4),))\n        "
    script.write_text(HEAD + text.replace("self.dense,", made + "self.dense,"))
    verify_target(str(script), CompileOptions(), seed=1)
