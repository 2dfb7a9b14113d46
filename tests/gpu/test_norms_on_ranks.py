"""Batch norms of two ranks on emulated GPUs beside NumPy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mspc import Tensor, nn, set_seed
from mspc.compiler.config import Config
from mspc.compiler.driver import compile_call
from tests.gpu.test_ranks import steps
from tests.ops.cuda.cuda_emulator import NEEDED

pytestmark = pytest.mark.skipif(NEEDED is None, reason="g++ is not installed")
CHANNELS = 6


class Norms(nn.Cell):
    """Two batch norms, the second of what a ReLU leaves."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.BatchNorm2d(CHANNELS), nn.BatchNorm2d(CHANNELS, momentum=0.5)
        self.relu, self.loss = nn.ReLU(), nn.MSELoss()

    def construct(self, x: Any, y: Any) -> Any:
        return self.loss(self.second(self.relu(self.first(x))), y)


def test_trained_norms_equal_numpys(tmp_path: Path) -> None:
    set_seed(1)
    network = Norms()
    step = nn.TrainOneStepCell(network, nn.Momentum(network.trainable_params(), 0.05, 0.9))
    step.set_train()
    generator = np.random.default_rng(4)
    data = [generator.standard_normal((4, CHANNELS, 5, 5)).astype(np.float32) for _ in range(2)]
    config = Config(ranks=2, mode="auto_parallel", dataset_strategy="full_batch", device="GPU")
    found = compile_call(step, [Tensor(each) for each in data], config)
    wanted, got = (steps(found, data, tmp_path, gpu) for gpu in (False, True))
    for (losses, parameters), (also, others) in zip(wanted, got, strict=True):
        np.testing.assert_allclose(also, losses, rtol=1e-4)
        for name, value in parameters.items():
            np.testing.assert_allclose(others[name], value, rtol=2e-3, atol=2e-5, err_msg=name)
