"""The result of `shard` takes global tensors where it is called by itself, and gives one device's results."""

from __future__ import annotations

import linecache
from pathlib import Path

import pytest

from mspc.commands.run import run_script

SCRIPT = """
import numpy as np
import mindspore as ms
from mindspore import Tensor, nn, ops
from mindspore.communication import init

ms.set_context(mode=ms.PYNATIVE_MODE)
init()
ms.set_auto_parallel_context({settings})

def product(x, y):
    return ops.matmul(ops.exp(x / 64.0), y)

def total(x, y):
    return product(x, y).sum()

class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.fn = {net}

    def construct(self, x, y):
        return self.fn(x, y)

wrapped = (lambda fn: ms.shard(fn, ((2, 1), (1, 2)))) if {cuts} else (lambda fn: fn)
x, y = (Tensor(np.arange(begin, begin + 64).reshape(8, 8), ms.float32) for begin in (0, 7))
results = [wrapped(product)(x, y), wrapped(total)(x, y), ms.grad(wrapped(total), (0, 1))(x, y)]
results += [ms.value_and_grad(wrapped(total))(x, y), ms.jit(wrapped(product))(x, y)]

def told(result):
    if isinstance(result, tuple):
        return [told(each) for each in result]
    return [list(result.shape), float(np.abs(result.asnumpy()).sum(dtype=np.float64).round(1))]

results += [Net()(x, y)] if {holds} else []
print(told(tuple(results)))
"""
MODES = ('parallel_mode="auto_parallel", search_mode="sharding_propagation"', 'parallel_mode="semi_auto_parallel"')


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    linecache.clearcache()
    return Path("net.py")


def printed(script: Path, capsys: pytest.CaptureFixture[str], settings: str, ranks: int, net: str = "") -> str:
    script.write_text(SCRIPT.format(settings=settings, net=net or "product", cuts=ranks > 1, holds=bool(net)))
    run_script(script, ranks, simulate=True)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == ranks
    assert len(set(lines)) == 1
    return lines[0]


@pytest.mark.parametrize("settings", MODES)
def test_values_and_shapes_are_those_of_one_device(
    script: Path, capsys: pytest.CaptureFixture[str], settings: str
) -> None:
    one = printed(script, capsys, "", 1)
    assert one.startswith("[[[8, 8], ")
    assert printed(script, capsys, settings, 4) == one


def test_a_network_that_holds_one_is_fed_as_its_settings_say(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = 'parallel_mode="semi_auto_parallel", dataset_strategy="full_batch"'
    found = printed(script, capsys, whole, 4, "ms.shard(product, ((2, 1), (1, 2)))")
    assert found == printed(script, capsys, "", 1, "product")


def test_what_the_script_says_of_its_data_counts(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = 'parallel_mode="semi_auto_parallel", dataset_strategy=((2, 1), (1, 1))'
    assert printed(script, capsys, said, 4) != printed(script, capsys, MODES[1], 4)
