"""A small script of a network in two stages, which tests of one rule each complete and run on simulated ranks."""

import contextlib
import io
from pathlib import Path

from mspc.commands.run import run_script

HEAD = """
import numpy as np
import mspc as ms
from mspc import Parameter, Tensor, nn, ops
from mspc.communication import get_rank, init
from mspc.parallel import AutoParallel

init()
ms.set_seed(3)
drawn = np.random.RandomState(5)


class Layer(nn.Cell):
    def __init__(self, width=8):
        super().__init__()
        self.w = Parameter(Tensor(drawn.randn(width, width) * 0.3), name="w")

    def construct(self, x):
        return ops.tanh(ops.matmul(x, self.w))


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.last = Layer(), Layer(), Layer()

    def construct(self, x, y):
        return ((self.last(self.second(self.first(x))) - y) ** 2).mean()


def staged(first=0, second=0, last=1):
    net = Net()
    for cell, stage in ((net.first, first), (net.second, second), (net.last, last)):
        if stage is not None and STAGES > 1:
            cell.pipeline_stage = stage
    return net


def batch(rows=8):
    return Tensor(drawn.randn(rows, 8)), Tensor(drawn.randn(rows, 8))


def settings(**more):
    asked = {"parallel_mode": "semi_auto_parallel", "full_batch": True, "pipeline_stages": STAGES}
    ms.set_auto_parallel_context(**(asked | more))


def sums(net):
    return ["%s %.10e" % (p.name, np.abs(p.asnumpy()).sum()) for p in net.trainable_params()]
"""


def printed(folder: Path, text: str, ranks: int = 2, stages: int = 2) -> list[str]:
    """The lines that a script prints on all ranks; of one stage nothing is printed twice."""
    path = folder / f"script_{stages}.py"
    path.write_text(f"STAGES = {stages}\n{HEAD}\n{text}")
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
        run_script(path, ranks, simulate=True)
    return out.getvalue().splitlines()


def same_as_one_stage(folder: Path, text: str) -> list[str]:
    """The lines of a script that is run in one stage; those of two stages are the same on each of two ranks."""
    one = printed(folder, text, ranks=1, stages=1)
    assert one
    assert sorted(printed(folder, text)) == sorted([*one, *one])
    return one
