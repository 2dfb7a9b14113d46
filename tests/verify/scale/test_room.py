"""What cannot shrink and does not fit into memory is said before anything is made."""

from __future__ import annotations

from pathlib import Path

import pytest

from mspc.commands.compile import CompileOptions
from mspc.commands.report.verbosity import Loudness
from mspc.commands.verify_scale import verify_scale
from mspc.ir.builder import Builder
from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Graph, Parameter
from mspc.ir.types import FLOAT64, TensorType
from mspc.ops.math.arithmetic import Add, Neg
from mspc.ops.tensor.reshape import Reshape
from mspc.runtime import available_memory
from mspc.runtime.available_memory import available_bytes
from mspc.verify.scale import room
from mspc.verify.scale.rank_kinds import RankKind
from mspc.verify.scale.room import check_fits

PRIMES = """
import mindspore as ms
from mindspore import Parameter, Tensor, nn, ops
from mindspore.common.initializer import Normal, initializer


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.table = Parameter(initializer(Normal(0.02), [1000003, 500029], ms.float32))
        self.product = ops.MatMul().shard(((2, 1), (1, 1)))

    def construct(self, x):
        return ops.reduce_mean(self.product(x, self.table))


ms.set_auto_parallel_context(parallel_mode="semi_auto_parallel", full_batch=True)
Net()(Tensor(shape=(64, 1000003), dtype=ms.float32))
"""


def test_sizes_that_cannot_shrink(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("net.py").write_text(PRIMES)
    with pytest.raises(MspcError) as caught:
        verify_scale("net.py", CompileOptions(ranks=2, loudness=Loudness(quiet=True)), 0)
    assert caught.value.exit_status == 2
    assert caught.value.message.startswith("the least sizes that keep the plan as it is do not fit: they take ")
    assert "parameter 'table' alone 3725.5 GiB" in caught.value.message
    assert "table (1000003, 500029) keeps its sizes" in caught.value.notes[0]


def chain() -> Graph:
    """y = -x, that in another shape, and the sum of that with itself: two tensors of 800 bytes beside x."""
    x = Parameter("x", TensorType(FLOAT64, (10, 10)), "input")
    builder = Builder(Graph("net"))
    flat = builder.emit(Reshape((100,)), builder.emit(Neg(), x))
    graph = Graph("net")
    graph.parameters, graph.results = [x], [builder.emit(Neg(), builder.emit(Add(), flat, flat))]
    graph.nodes = builder.nodes
    return graph


@pytest.mark.parametrize(("available", "fits"), [(3199, False), (3200, True)])
def test_what_is_alive_at_once(available: int, fits: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "available_bytes", lambda: available)
    graph = chain()
    kinds = [RankKind((0, 1), chain(), mesh=(2,))]
    if fits:
        check_fits(graph, kinds, graph, 2)
        return
    with pytest.raises(MspcError, match=r"they take 3.1 KiB \(3,200 bytes\)"):
        check_fits(graph, kinds, graph, 2)


def test_memory_that_a_container_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    free = available_bytes()
    assert free > 0
    monkeypatch.setattr(available_memory, "CONTROL_GROUP", tmp_path)
    (tmp_path / "memory.max").write_text("5000\n")
    (tmp_path / "memory.current").write_text("2000\n")
    assert available_bytes() == 3000
    (tmp_path / "memory.max").write_text("max\n")
    assert available_bytes() > 3000
