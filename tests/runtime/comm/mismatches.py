"""Programs whose ranks do not fit together, under mpirun.

Each must be refused before or at its first wrong step, with a message, and never hang or go on with other numbers.
"""

import itertools
import subprocess
from pathlib import Path

from mspc.engine.ranks.launcher import find_mpirun, mpirun_environment
from tests.serving import SERVED

RANKS = 4
HANG = 60.0
SCRIPT = '''
import sys
import numpy as np
import mspc as ms
from mspc import nn, ops
from mspc.communication import create_group, get_rank, init

ms.set_context(mode=ms.GRAPH_MODE)
init()
rank = get_rank()
create_group("pair", [rank % 2, rank % 2 + 2])
create_group("last", [1, 2, 3])

def total(x):
    return ops.ReduceSum()(x)

class Net(nn.Cell):
    def __init__(self, *calls):
        super().__init__()
        self.calls = nn.CellList([Call(call) for call in calls])
    def construct(self, x):
        for call in self.calls:
            x = x + 0.0 * call(x)
        return x

class Call(nn.Cell):
    def __init__(self, op):
        super().__init__()
        self.op = op
    def construct(self, x):
        found = self.op(x)
        return ops.ReduceSum()(found[0]) if isinstance(found, tuple) else ops.ReduceSum()(found)

class Rooted(nn.Cell):
    def __init__(self, root):
        super().__init__()
        self.op = ops.Broadcast(root)
    def construct(self, x):
        return ops.ReduceSum()(self.op((x,))[0])

CALLS = {
    "sum": lambda: Call(ops.AllReduce()),
    "max": lambda: Call(ops.AllReduce("max")),
    "gather": lambda: Call(ops.AllGather()),
    "scatter": lambda: Call(ops.ReduceScatter()),
    "all to all": lambda: Call(ops.AlltoAll(4, 0, 0)),
    "broadcast": lambda: Rooted(0),
    "broadcast from 1": lambda: Rooted(1),
    "pair": lambda: Call(ops.AllReduce(group="pair")),
    "last": lambda: Call(ops.AllReduce(group="last")),
}
common, own, size, other_size, steps = sys.argv[1:6]
odd = rank == 2

class Several(nn.Cell):
    def __init__(self, names):
        super().__init__()
        self.calls = nn.CellList([CALLS[name]() for name in names])
    def construct(self, x):
        y = x
        for call in self.calls:
            y = y + call(y)
        return y

net = Several((own if odd else common).split("+"))
second = Several(["sum"])
x = ms.Tensor(np.ones((int(other_size if odd else size), 4), np.float32))
if steps == "order":  # two programs that fit, in another order on one rank
    net(x), second(x)
    for which in (second, net) if odd else (net, second):
        which(x)
else:
    for _ in range(int(steps)):
        net(x)
print("went on", rank)
'''

ALL = ("sum", "max", "gather", "scatter", "all to all", "broadcast", "broadcast from 1")
SMALL, LARGE = "8", "80000"


def cases() -> list[tuple[str, ...]]:
    """(what ranks call, what rank 2 calls, rows, rank 2's rows, steps) of every mismatch."""
    found = [(one, other, SMALL, SMALL, "2") for one, other in itertools.combinations(ALL, 2)]
    found += [("sum", other, LARGE, LARGE, "2") for other in ALL[1:]]
    found += [(one, one, SMALL, "16", "2") for one in ALL]
    found += [("sum+pair", "pair+sum", SMALL, SMALL, "2"), ("sum", "sum+sum", SMALL, SMALL, "2")]
    found += [(one, other, SMALL, SMALL, "2") for one, other in itertools.combinations(("sum", "pair", "last"), 2)]
    return [*found, ("gather", "gather", SMALL, SMALL, "order"), ("sum", "sum", LARGE, LARGE, "order")]


def run(case: tuple[str, ...], folder: Path) -> tuple[int, str, str]:
    """(status, stdout, stderr) of a mismatch; status -99 where it hangs."""
    script = folder / "net.py"
    script.write_text(SCRIPT)
    line = [find_mpirun(), "-n", str(RANKS), "--oversubscribe", "--bind-to", "none", *SERVED]
    process = subprocess.Popen(
        [*line, "run", str(script), "--device", "cpu", "--", *case],
        env=mpirun_environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        out, err = process.communicate(timeout=HANG)
    except subprocess.TimeoutExpired:
        process.terminate()
        try:
            out, err = process.communicate(timeout=HANG)
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = "", "neither ended nor was terminated"
        return -99, out, err
    return process.returncode, out, err


def refused(status: int, out: str, err: str) -> bool:
    """Whether a mismatch was told and ended the job."""
    told = "do not fit together" in err or "which waits elsewhere" in err or "has ended while" in err
    return status in (1, 2) and told and "went on" not in out and "Traceback" not in err
