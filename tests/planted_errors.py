"""Plants errors in copies of the package, one each, and sees whether `mspc verify` finds them.

    python tests/planted_errors.py             # all of them, on both networks
    python tests/planted_errors.py tanh stale  # those whose names begin so

Errors in what all devices share (`planted_shared.py`) are looked for by the judge that must see them: that of
`--against torch`, of `--mpi`, or of data parallel mode. An error is a file, text that stands there once, and what
stands there instead. A copy without one must verify. Where a network has nothing that an error touches, the other one
must find it; `FREE` says which these are, and why.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.planted import Planted  # found where this file is run, too
from tests.planted_shared import IN_PARALLEL, PARALLEL, STEPS, THROUGH_MPI

PACKAGE = Path(__file__).resolve().parent.parent
LEFT_OUT = ("tests", "docs", "benchmarks", "build", "dist")
SAMPLE = "samples/transformer/net.py"
NETWORK = '''
import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops
from mindspore.common.initializer import initializer

ms.set_auto_parallel_context(parallel_mode="semi_auto_parallel", dataset_strategy="full_batch")
ms.set_seed(1)


class Net(nn.Cell):
    """x[64, 32], less the largest of its row -> two layers with a mask between -> [64, 16]"""

    def __init__(self):
        super().__init__()
        self.w1 = Parameter(initializer("xavier_uniform", [32, 64]))
        self.w2 = Parameter(initializer("xavier_uniform", [64, 16]))
        self.gain = Parameter(initializer("ones", [16]))
        self.turn = Parameter(initializer("ones", [16]))
        self.peak = ops.ReduceMax(keep_dims=True).shard(((2, 4),))
        self.less = ops.Sub().shard(((8, 1), (8, 1)))
        self.up = ops.MatMul().shard(((2, 1), (1, 4)))
        self.tanh = ops.Tanh().shard(((2, 4),))
        self.drop = ops.Dropout(keep_prob=0.8, Seed0=3).shard(((2, 4),))
        self.down = ops.MatMul().shard(((2, 4), (4, 1)))
        self.scale = ops.Mul().shard(((8, 1), (1,)))
        self.turned = ops.Mul().shard(((1, 8), (8,)))

    def construct(self, x):
        hidden = self.tanh(self.up(self.less(x, self.peak(x, 1)), self.w1))
        kept, _ = self.drop(hidden)
        return self.turned(self.scale(self.down(kept, self.w2), self.gain), self.turn)


class Loss(nn.Cell):
    def __init__(self, net):
        super().__init__()
        self.net = net
        self.loss = nn.MSELoss()

    def construct(self, x, y):
        return self.loss(self.net(x), y)


net = Net()
optimizer = nn.Momentum(net.trainable_params(), 0.1, 0.9)
step = nn.TrainOneStepWithLossScaleCell(Loss(net), optimizer, nn.DynamicLossScaleUpdateCell(8.0, 2, 2))
step(Tensor(np.ones([64, 32]), ms.float32), Tensor(np.ones([64, 16]), ms.float32))
'''


STALE = '''fresh = super().kernel(be)
        kept: dict[int, Any] = {}

        def one(x: Any) -> Any:
            kept[be.step] = fresh(x)
            return kept.get(be.step - 1, kept[be.step])
'''
ERRORS = (
    Planted(
        "gradient-rule", "ops/math/matmul.py",
        "return self.products(b, x, y, dout)",
        "return self.products(b, x, y, out)",
    ),
    Planted("tanh", "ops/nn/activation.py", "return dy * (1 - y * y)", "return dy * (1 - y)"),
    Planted(
        "freed-too-early", "runtime/buffers.py",
        "last = last_use.get(node, index)",
        "last = (index + last_use.get(node, index)) // 2",
    ),
    Planted(
        "mask-from-step-2", "ops/random/dropout.py",
        "part = self.part(x.shape)",
        "part = self.part(x.shape) if be.step < 2 else (x.shape, (0,) * x.ndim, x.shape)",
    ),
    Planted(
        "maximum-never-negative", "runtime/comm/interface.py",
        "first = np.asarray(parts[0])",
        'first = np.maximum(parts[0], 0) if op == "max" else np.asarray(parts[0])',
    ),
    Planted(
        "overflow-on-one-rank", "runtime/comm/local.py",
        "return [total, *(total.copy() for _ in parts[1:])]",
        "return list(parts) if total.dtype == bool else [total, *(total.copy() for _ in parts[1:])]",
    ),
    Planted(
        "replica-differs", "runtime/comm/local.py",
        "return [total, *(total.copy() for _ in parts[1:])]",
        "return [total, *(total.copy() for _ in parts[2:]), total * total.dtype.type(1.001)]",
    ),
    Planted(
        "reduction-dropped", "ops/collective/collectives.py",
        "return partial(comm.all_reduce, op=self.op, ranks=self.ranks)",
        "return same if self.ranks[1:] == (4,) else partial(comm.all_reduce, op=self.op, ranks=self.ranks)",
    ),
    Planted(
        "wrong-offset", "ops/collective/collectives.py",
        "begin = tuple(n.start - o.start for n, o in zip(new, old, strict=True))\n"
        "        end = tuple(n.stop - o.start for n, o in zip(new, old, strict=True))",
        "begin = tuple(0 for n, o in zip(new, old, strict=True))\n"
        "        end = tuple(n.stop - n.start for n, o in zip(new, old, strict=True))",
    ),
    Planted("mean-without-1/n", "passes/communication/redistribution_plan.py", "1.0 / count)", "1.0)"),
    Planted(
        "swapped-ranks", "runtime/comm/local.py",
        "gathered = np.concatenate(parts, axis)",
        "gathered = np.concatenate([*parts[1::-1], *parts[2:]], axis)",
    ),
    Planted("stale-gradient", "ops/collective/collectives.py", "one = super().kernel(be)\n", STALE),
    Planted(
        "reversed-reduce-scatter", "runtime/comm/local.py",
        "return pieces(combine(parts, op), len(parts), axis)",
        "return pieces(combine(parts, op), len(parts), axis)[::-1]",
    ),
    Planted(
        "transposed-all-to-all", "runtime/comm/local.py",
        "return [np.concatenate([row[i] for row in split], concat_dim) for i in range(len(parts))]",
        "return [np.concatenate(split[i], concat_dim) for i in range(len(parts))]",
    ),
)
FREE = {
    "tanh": (SAMPLE, "has no Tanh"),
    "mask-from-step-2": (SAMPLE, "has no random mask"),
    "maximum-never-negative": (SAMPLE, "takes no maximum over ranks"),
    "overflow-on-one-rank": (SAMPLE, "looks for no overflow"),
    "mean-without-1/n": (SAMPLE, "has sums in parts alone, no means"),
    "swapped-ranks": (SAMPLE, "gathers nothing"),
}
"""Errors that touch nothing in a network, and why."""


SHARED = {
    "torch": (STEPS, ("--ranks", "1", "--against", "torch")),
    "mpi": (THROUGH_MPI, ("--ranks", "2", "--mpi")),
    "data parallel": (IN_PARALLEL, ("--ranks", "2")),
}
"""Errors in what is shared, and the options of the judge that sees them, on a network in data parallel mode."""


def linked(package: Path, made: Path, own: tuple[str, ...]) -> None:
    """A folder of links to all that a package holds. own: the path of a file in it, whose folders are made anew."""
    made.mkdir()
    for path in package.iterdir():
        if path.name == own[0] and path.is_dir():
            linked(path, made / path.name, own[1:])
        elif path.name != own[0] and path.name not in LEFT_OUT and not path.name.startswith("."):
            (made / path.name).symlink_to(path)


def copied(folder: Path, planted: Planted | None, text: str = NETWORK) -> Path:
    """The package once more in `folder`, with the error in a file of its own; the path of a network of this text beside
    it.

    Raises:
        ValueError: the text of the error does not stand in its file, or more than once.
    """
    linked(PACKAGE, folder / "mspc", Path(planted.file).parts if planted is not None else ("",))
    if planted is not None:
        path = folder / "mspc" / planted.file
        source = (PACKAGE / planted.file).read_text(encoding="utf-8")
        if source.count(planted.old) != 1:
            raise ValueError(f"{planted.name}: {planted.file} has its text {source.count(planted.old)} times, not once")
        path.write_text(source.replace(planted.old, planted.new), encoding="utf-8")
    network = folder / "network.py"
    network.write_text(text, encoding="utf-8")
    return network


def verified(
    planted: Planted | None, target: str, timeout: float | None = None, options: Sequence[str] = ("--ranks", "8")
) -> subprocess.CompletedProcess[str]:
    """`mspc verify` of a copy with the error. target: SAMPLE, "" for the network of this file, PARALLEL for that of
    `planted_shared.py`."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        network = copied(folder, planted, PARALLEL if target == PARALLEL else NETWORK)
        script = folder / "mspc" / target if target == SAMPLE else network
        environment = os.environ | {"PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
        return subprocess.run(
            [sys.executable, "-m", "mspc", "verify", str(script), *options, "--quiet"],
            cwd=folder, env=environment, capture_output=True, text=True, timeout=timeout, check=False,
        )  # fmt: skip


def main(names: list[str]) -> int:
    wrong = 0
    chosen = [e for e in ERRORS if not names or any(e.name.startswith(n) for n in names)]
    for target in (SAMPLE, "") if chosen else ():
        for planted in (None, *chosen):
            free = planted is not None and FREE.get(planted.name, ("", ""))[0] == target and target
            start = time.perf_counter()
            run = verified(planted, target)
            wanted = 0 if planted is None or free else 1
            said = (run.stdout.splitlines() or run.stderr.splitlines() or [""])[-1]
            wrong += run.returncode != wanted
            mark = "as wanted" if run.returncode == wanted else "NOT AS WANTED"
            name = planted.name if planted is not None else "no error"
            print(f"{target or 'network'}: {name}: status {run.returncode}, {mark}, "
                  f"{time.perf_counter() - start:.1f} s: {said[:150]}", flush=True)  # fmt: skip
    for judge, (errors, options) in SHARED.items():
        some = [e for e in errors if not names or any(e.name.startswith(n) for n in names)]
        for planted in (None, *some) if some else ():
            start = time.perf_counter()
            run = verified(planted, PARALLEL, options=options)
            as_wanted = run.returncode == (0 if planted is None else 1)
            wrong += not as_wanted
            said = (run.stdout.splitlines() or run.stderr.splitlines() or [""])[-1]
            print(f"{judge}: {'no error' if planted is None else planted.name}: status {run.returncode}, "
                  f"{'as wanted' if as_wanted else 'NOT AS WANTED'}, {time.perf_counter() - start:.1f} s: {said[:150]}",
                  flush=True)  # fmt: skip
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
