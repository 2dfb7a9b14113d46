"""A rank that stores a slice of a parameter holds nothing else of it, however the script made the parameter."""

from __future__ import annotations

import gc
import tracemalloc
from pathlib import Path

import pytest

from mspc.commands.run import run_script

SIZE = 1024
GLOBAL_BYTES = SIZE * SIZE * 4
BESIDES = GLOBAL_BYTES // 2
"""Bytes of what else ranks hold: their graphs and scripts, half as much as this. No second copy goes into them."""
RANKS = 4
SCRIPT = f"""
import gc
import tracemalloc
import numpy as np
import mindspore as ms
from mindspore import nn, ops, Tensor, Parameter
from mindspore.common.initializer import initializer, Initializer
from mindspore.communication import get_rank, init

init()
ms.set_auto_parallel_context(parallel_mode="MODE", device_num={RANKS}, dataset_strategy="DATA")


class Drawn(Initializer):
    def draw(self, generator, shape):
        return generator.standard_normal(shape, np.float32)


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.w = Parameter(initializer("normal", [{SIZE}, {SIZE}]), "w")
        self.v = Parameter(initializer("zeros", [{SIZE}]), "v", requires_grad=False)
        self.matmul = ops.MatMul().shard(((1, 1), (1, {RANKS})))

    def construct(self, x):
        return self.matmul(x, self.w)


net = Net()
BEFORE
for _ in range(2):
    net(Tensor(np.ones((4, {SIZE})), ms.float32))
AFTER
gc.collect()
print(get_rank(), tracemalloc.get_traced_memory()[0], net.w[0, 0], net.w.shape, net.w.dtype)
"""
WAYS = [
    ("", ""),
    ("net.w.set_data(initializer('uniform', net.w.shape))", ""),
    ("net.w.set_data(initializer(Drawn(), net.w.shape))", ""),
    ("net.w.set_data(np.ones(net.w.shape, np.float32))", ""),
    ("net.w.asnumpy()", ""),
    ("net.w[0] = 3", ""),
    ("net.w.set_dtype(ms.float16); net.w.set_dtype(ms.float32)", ""),
    ("", "net.w.set_data(initializer('uniform', net.w.shape))"),
    ("", "net.w.set_data(initializer(Drawn(), net.w.shape))"),
    ("", "net.w.set_data(np.ones(net.w.shape, np.float32))"),
    (
        "ms.save_checkpoint(net, f'w{get_rank()}'); ms.load_checkpoint(f'w{get_rank()}.safetensors', net)",
        "",
    ),
]
"""What a script does before its first step, and behind its last."""


def text_of(before: str, after: str, mode: str) -> str:
    text = SCRIPT.replace("BEFORE", before).replace("AFTER", after)
    return text.replace("MODE", mode or "semi_auto_parallel").replace("DATA", mode or "full_batch")


@pytest.fixture(scope="module", autouse=True)
def imported(tmp_path_factory: pytest.TempPathFactory) -> None:
    """All that the runs import is there already when the first of them is measured."""
    folder = tmp_path_factory.mktemp("imported")
    before, after = ("\n".join(texts) for texts in zip(*WAYS, strict=True))
    (folder / "train.py").write_text(text_of(before, after, ""))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        run_script(folder / "train.py", RANKS, simulate=True)


def held(script: Path, capsys: pytest.CaptureFixture[str], before: str, after: str = "", mode: str = "") -> list[int]:
    """Bytes that all ranks together hold when each of them has run."""
    script.write_text(text_of(before, after, mode))
    gc.freeze()  # every rank looks for garbage, among what is made from now on
    tracemalloc.start()
    start, _ = tracemalloc.get_traced_memory()
    run_script(script, RANKS, simulate=True)
    tracemalloc.stop()
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert len({tuple(line[2:]) for line in lines}) == 1, "all ranks see the same values"
    return [int(line[1]) - start for line in lines]


@pytest.mark.parametrize(("before", "after"), WAYS)
def test_ranks_hold_slices(
    before: str, after: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    found = held(tmp_path / "train.py", capsys, before, after)
    assert max(found) < GLOBAL_BYTES + BESIDES


def test_a_rank_holds_a_replicated_parameter_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    found = held(tmp_path / "train.py", capsys, "", mode="data_parallel")
    assert max(found) < RANKS * GLOBAL_BYTES + BESIDES
