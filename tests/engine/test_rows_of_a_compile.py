"""A compile asks a data set for the types of its rows only: it reads one value, and shuffles nothing."""

from __future__ import annotations

import sys
from pathlib import Path

from mspc.engine.capture import capture
from mspc.mindspore_api import call_handler
from mspc.mindspore_api.state import Session, swap

SCRIPT = """
import numpy as np
import mindspore.dataset as ds
from mindspore import Model, nn

seen = []

def noted(x):
    seen.append(float(x[0]))
    return x

data = ds.NumpySlicesDataset(np.arange(1200, dtype=np.float32).reshape(600, 2), ["x"], shuffle=False)
data = data.map(noted, "x").shuffle(500).batch(8)
net = nn.Dense(2, 1)
Model(net, optimizer=nn.SGD(net.trainable_params())).train(1, data)
"""


def test_rows(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    before, launcher = swap(Session.of_rank(0, 1)), call_handler.installed()
    try:
        found = capture(script, [], Session.of_rank(0, 1))
        seen = sys.modules["__main__"].seen
    finally:
        swap(before)
        call_handler.install(launcher)
    (batch,) = found.args
    assert batch.shape == (8, 2)
    assert seen == [float(2 * row) for row in range(8)]
