"""Plants errors in the code of mspc, one each, and sees whether `mspc verify` finds them.

    python tests/planted_errors.py             # all of them, on the networks that they touch
    python tests/planted_errors.py tanh stale  # those whose names begin so

An error is a file, text that stands there once, and what stands there instead. Each is planted in a process of its own
(`planted.py`). Every network must verify without an error. Errors in code that all devices share (`planted_shared.py`)
are looked for by the judge that must see them: `--against torch`, `--mpi`, data parallel mode, or the reference, which
runs no judged pass. If a network has nothing that an error touches, another one must find it; `FREE` says which these
are, and why.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.planted import PACKAGE, Case, Planted, outcomes, plant  # found where this file is run, too
from tests.planted_networks import NETWORKS
from tests.planted_shared import (
    BY_THEMSELVES,
    IN_PARALLEL,
    IN_PARTS,
    IN_PASSES,
    OF_KINDS,
    PARALLEL,
    PARTED,
    STEPS,
    THROUGH_MPI,
)

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
    Planted("tanh", "ops/nn/activation.py", "dy: dy * (1 - y * y)", "dy: dy * (1 - y)"),
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
        "return partial(comm.all_reduce, op=self.op, ranks=self.ranks)\n\n    def launch",
        "return same if self.ranks[1:] == (4,) else partial(comm.all_reduce, op=self.op, ranks=self.ranks)"
        "\n\n    def launch",
    ),
    Planted(
        "wrong-offset", "ops/collective/collectives.py",
        "begin = tuple(n.start - o.start for n, o in zip(new, old, strict=True))\n"
        "        end = tuple(n.stop - o.start for n, o in zip(new, old, strict=True))",
        "begin = tuple(0 for n, o in zip(new, old, strict=True))\n"
        "        end = tuple(n.stop - n.start for n, o in zip(new, old, strict=True))",
    ),
    Planted(
        "mean-without-1/n", "passes/lib/redistribution.py",
        "scale=1.0 / math.prod(mesh[a] for a in parts)",
        "scale=1.0",
    ),
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
    "overflow-on-one-rank": (SAMPLE, "looks for no overflow"),
    "mean-without-1/n": (SAMPLE, "has sums in parts alone, no means"),
    "transposed-all-to-all": (SAMPLE, "has no all-to-all"),
    "calls-numbered-alike": ("folded", "is of all devices, and the check of random numbers numbers calls itself"),
    "decay-subtracted": ("parallel", "nn.SGD decays before its operator, so that this is of ops.SGD alone"),
}
"""Errors that touch nothing in a network, and why."""


NO_ERROR = "no error"
TANH = [error for error in ERRORS if error.name == "tanh"]


def cases(folder: Path) -> Iterator[tuple[Case, str]]:
    """Every case that a process can have of its own, with what verify must say.

    Args:
        folder: networks are written there.
    """
    written = {"network": (NETWORK, 8), "parallel": (PARALLEL, 2), "parted": (PARTED, 2), **NETWORKS}
    paths = {name: folder / f"{name}.py" for name in written} | {SAMPLE: PACKAGE / SAMPLE}
    for name, (text, _) in written.items():
        paths[name].write_text(text, encoding="utf-8")
    ranks = {name: count for name, (_, count) in written.items()} | {SAMPLE: 8}
    planted: list[tuple[str, str, Sequence[Planted]]] = [
        ("network", "ranks", ERRORS), (SAMPLE, "ranks", ERRORS), ("parallel", "steps", STEPS),
        ("parallel", "ranks", IN_PARALLEL),
        *(("parted", judge, IN_PARTS) for judge in ("ranks", "scale", "folder")),
        *((name, judge, TANH) for name in ("loops", "folded") for judge in ("ranks", "torch")),
        *((name, "ranks", errors) for kind in (IN_PASSES, BY_THEMSELVES, OF_KINDS)
          for name, errors in kind.items()),
        *((name, "scale", errors) for name, errors in IN_PASSES.items()),
    ]  # fmt: skip
    known: set[tuple[str, str]] = set()
    for name, judge, errors in planted:
        if (name, judge) not in known:
            known.add((name, judge))
            yield Case(f"{name}: {judge}: {NO_ERROR}", nothing, paths[name], ranks[name], judge), "equal"
        for error in errors:
            wanted = "equal" if FREE.get(error.name, ("",))[0] == name else "differs"
            yield Case(f"{name}: {judge}: {error.name}", partial(plant, error), paths[name], ranks[name], judge), wanted


def nothing() -> None:
    """Plant no error."""


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


def verified_through_mpi(planted: Planted | None, timeout: float | None = None) -> subprocess.CompletedProcess[str]:
    """`mspc verify --mpi` of a copy of the package with the error, as ranks are processes of their own."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        network = copied(folder, planted, PARALLEL)
        environment = os.environ | {"PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
        return subprocess.run(
            [sys.executable, "-P", "-m", "mspc", "verify", str(network), "--ranks", "2", "--mpi", "--quiet"],
            cwd=folder, env=environment, capture_output=True, text=True, timeout=timeout, check=False,
        )  # fmt: skip


def main(names: list[str]) -> int:
    def is_asked(name: str) -> bool:
        return not names or any(name.startswith(each) for each in names)

    wrong = 0
    start = time.perf_counter()

    def show(name: str, kind: str, wanted: str, said: str) -> None:
        nonlocal wrong
        wrong += kind != wanted
        mark = "as wanted" if kind == wanted else "NOT AS WANTED"
        print(f"{name}: {kind}, {mark}, {time.perf_counter() - start:.0f} s: {said[:150]}", flush=True)

    with tempfile.TemporaryDirectory() as folder:
        every = [(case, wanted) for case, wanted in cases(Path(folder)) if is_asked(case.name.rpartition(": ")[2])]
        wanted = {case.name: want for case, want in every}
        for case, kind, said in outcomes([case for case, _ in every]):
            show(case.name, kind, wanted[case.name], said)
    for planted in [error for error in THROUGH_MPI if is_asked(error.name)]:
        run = verified_through_mpi(planted)
        kind = {0: "equal", 1: "differs"}.get(run.returncode, f"status {run.returncode}")
        show(f"parallel: mpi: {planted.name}", kind, "differs", (run.stdout.splitlines() or [""])[-1])
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
