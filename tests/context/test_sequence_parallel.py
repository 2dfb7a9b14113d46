"""Norms, dropout and residuals between products of heads are sharded along the sequence, from one strategy on.

Random networks with sharded sequences have the numbers of one device; a few of each way of saying so.
The network that benchmarks compile at full size trains as on one device, as one graph of its layers too.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from mspc.analysis.cost.nodes import sent_bytes
from mspc.commands.compile import CompileOptions
from mspc.commands.verify import verify_target
from mspc.compiler.driver import Compiled
from mspc.ir.graph import element_layouts
from tests.compiled_scripts import compiled_script
from tests.context.drawn_network import WAYS, DrawnNetwork
from tests.judged_seeds import EQUAL
from tests.sharded_beside_one import beside_one_device
from tests.shares import share_of

RANKS, LENGTH, WIDTH = 4, 128, 8
NETWORK = """
import sys
import numpy as np
import mindspore as ms
from mindspore import Parameter, Tensor, nn, ops
LAYERS, MODE = int(sys.argv[1]), sys.argv[2]
more = {"search_mode": "sharding_propagation"} if MODE == "auto_parallel" else {}
ms.set_auto_parallel_context(parallel_mode=MODE, dataset_strategy="full_batch", device_num=4, **more)
random = np.random.default_rng(5)
def weight(*shape):
    return Parameter(Tensor(random.normal(size=shape) * 0.3, ms.float64))
class Norm(nn.Cell):
    def __init__(self):
        super().__init__()
        self.gamma, self.beta, self.norm = weight(8), weight(8), ops.LayerNorm(2, -1)
    def construct(self, x):
        return self.norm(x, self.gamma, self.beta)[0]
class Half(nn.Cell):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down, self.drop = Norm(), weight(8, 32), weight(32, 8), nn.Dropout(p=0.2)
        self.column = ops.MatMul().shard(((1, 1), (1, 4)))
        self.row = ops.MatMul().shard(((1, 4), (4, 1)))
        self.add = ops.Add()
    def construct(self, x):
        h = ops.gelu(self.column(self.norm(x).reshape(-1, 8), self.up))
        return self.add(x, self.drop(self.row(h, self.down).reshape(1, 128, 8)))
class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.halves = nn.CellList([Half() for _ in range(2 * LAYERS)])
        self.halves[0].add.shard(((1, 4, 1), (1, 4, 1)))
    def construct(self, x):
        for half in self.halves:
            x = half(x)
        return ops.square(x).mean()
net = Net()
step = nn.TrainOneStepCell(net, nn.SGD(net.trainable_params(), 0.1)).set_train()
step(Tensor(random.normal(size=(1, 128, 8)), ms.float64))
"""
MODES = ["semi_auto_parallel", "auto_parallel"]


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "net.py"
    path.write_text(NETWORK, encoding="utf-8")
    return path


def made(script: Path, layers: int, mode: str) -> Compiled:
    return compiled_script(script, RANKS, str(layers), mode)


@pytest.mark.parametrize("mode", MODES)
def test_one_strategy_is_carried_through_norms_dropout_and_residuals(script: Path, mode: str) -> None:
    graph = made(script, 2, mode).graph
    names = ("LayerNorm", "Dropout", "Add")
    found = [node for node in graph.nodes if node.op.name in names and len(node.inputs[0].shape) == 3]
    found = [node for node in found if node.phase == "forward"]
    assert len(found) == 3 * 4
    for node in found[1:]:  # the first norm reads what the script feeds, which every rank has
        assert element_layouts(node.layout)[0].strategy == (1, RANKS, 1), node


@pytest.mark.parametrize("mode", MODES)
def test_a_layer_sends_what_megatron_lm_does(script: Path, mode: str) -> None:
    """Two gathers and two scatters forward, as many for gradients; two small sums for each norm (Korthikanti et al.,
    arXiv 2205.05198)."""
    found: list[Counter[str]] = []
    for layers in (3, 4):
        nbytes: Counter[str] = Counter()
        for node in made(script, layers, mode).rank_graph(1).nodes:
            nbytes[node.op.name] += int(sent_bytes(node))
        found.append(nbytes)
    more = found[1] - found[0]
    each = (RANKS - 1) * LENGTH * WIDTH * 8 // RANKS
    assert more["AllGather"] == more["ReduceScatter"] == 4 * each
    assert more["AllReduce"] <= 2 * 2 * 2 * WIDTH * 8  # gradients of two norms
    assert set(more) == {"AllGather", "ReduceScatter", "AllReduce"}


@pytest.mark.parametrize("mode", MODES)
def test_masks_and_gradients_are_those_of_one_device(script: Path, mode: str) -> None:
    verify_target(str(script), CompileOptions(script_arguments=("1", mode)), seed=1)


@pytest.mark.share(3)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("number", range(share_of(24)))
def test_networks_with_sharded_sequences_are_those_of_one_device(number: int, way: str) -> None:
    outcome = beside_one_device(9000 + number, DrawnNetwork(9000 + number, (way,)))
    assert outcome.kind == EQUAL, outcome.message


def test_gradients_keep_their_ring_where_other_layouts_of_theirs_were_tried() -> None:
    """Propagation tries layouts at an attention's gradients in which ranks hold all keys, and may go back."""
    outcome = beside_one_device(30026, DrawnNetwork(30026))
    assert "SBH" in outcome.text
    assert outcome.kind == EQUAL, outcome.message


SCRIPT = Path(__file__).parents[2] / "benchmarks" / "networks" / "long_llama.py"
SIZES = "2 16 4 2 24 32"
"""Layers, width, heads, heads of keys, hidden width, vocabulary."""


@pytest.mark.share(4)
@pytest.mark.parametrize(
    "arguments",
    [f"{SIZES} 1 4 1 16 1", f"{SIZES} 2 2 1 16 0", f"lazy {SIZES} 1 2 2 16 1", f"lazy {SIZES} 1 4 1 16 2"],
)
def test_long_texts_train_as_on_one_device(arguments: str, tmp_path: Path) -> None:
    script = tmp_path / "net.py"
    text = SCRIPT.read_text(encoding="utf-8")
    script.write_text(text.replace("HALF = ms.bfloat16", "HALF = ms.float32"), encoding="utf-8")
    verify_target(str(script), CompileOptions(script_arguments=tuple(arguments.split())), seed=1)
