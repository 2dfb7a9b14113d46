"""Model in every parallel mode, and around AutoParallel: fitted, evaluated and predicting as on one device."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mspc.commands.run import run_script

TEXT = """
import json
import numpy as np
import mindspore as ms
from mindspore import nn, ops, Parameter, Tensor
import mindspore.dataset as ds
from mindspore.common.initializer import initializer
from mindspore.communication import init, get_rank, get_group_size
from mindspore.parallel.auto_parallel import AutoParallel
from mindspore.train import Model

init()
rank, size = get_rank(), get_group_size()
ms.set_seed(1)
draw = np.random.default_rng(0)
x, y = draw.standard_normal((8, 6)).astype(np.float32), (np.arange(8) % 4).astype(np.int32)


class Net(nn.Cell):
    def __init__(self, classes_cut):
        super().__init__()
        self.w = Parameter(initializer("normal", (6, 4)), "w")
        self.product = ops.MatMul()
        if classes_cut:
            self.product.shard(((1, 1), (1, size)))

    def construct(self, x):
        return self.product(x, self.w)


net = Net(CUT)
target = net
OWN = True
MODE
part = slice(rank * 8 // size, (rank + 1) * 8 // size) if OWN else slice(None)
data = ds.GeneratorDataset([(x[part], y[part])], ["x", "y"])
model = Model(target, nn.CrossEntropyLoss(), nn.SGD(net.trainable_params(), 0.5), metrics={"acc", "loss"})
model.fit(2, data, data)
print(json.dumps([part.start, model.eval(data), model.predict(Tensor(x[part])).asnumpy().tolist()]))
"""
CONTEXT = 'ms.set_auto_parallel_context(parallel_mode="{}"{})'
NOT_OWN = "; OWN = False"


def found(script: Path, mode: str, sharded: bool, ranks: int, capsys: Any) -> list[Any]:
    script.write_text(TEXT.replace("MODE", mode).replace("CUT", str(sharded)))
    run_script(script, ranks, simulate=True)
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


@pytest.mark.parametrize(
    ("mode", "sharded"),
    [
        (CONTEXT.format("data_parallel", ", gradients_mean=True"), False),
        (CONTEXT.format("semi_auto_parallel", ""), True),
        (CONTEXT.format("semi_auto_parallel", ', dataset_strategy="full_batch"') + NOT_OWN, True),
        (CONTEXT.format("auto_parallel", ""), False),
        (CONTEXT.format("auto_parallel", ', search_mode="sharding_propagation"'), True),
        ("target = AutoParallel(net)", True),
        ('target = AutoParallel(net, "sharding_propagation"); target.dataset_strategy("full_batch")' + NOT_OWN, True),
    ],
    ids=["data", "semi", "full", "auto", "propagated", "AutoParallel", "AutoParallel full"],
)
def test_it_is_as_on_one_device(mode: str, sharded: bool, tmp_path: Path, capsys: Any) -> None:
    script = tmp_path / "modes.py"
    [[_, results, outputs]] = found(script, "", False, 1, capsys)
    ranks = found(script, mode, sharded, 4, capsys)
    assert len(ranks) == 4
    for start, own_results, own in ranks:
        assert own_results == pytest.approx(results, rel=1e-5)
        place = slice(None) if start is None else slice(start, start + 2)
        np.testing.assert_allclose(own, outputs[place], rtol=1e-4, atol=1e-6)
