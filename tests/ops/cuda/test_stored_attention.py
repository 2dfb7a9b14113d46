"""Of keys that have much the same value, gradients of attention are what rounding of the result leaves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from mspc.ops.nn.attention import FlashAttentionScore
from tests.ops.cuda.cuda_emulator import NEEDED
from tests.ops.cuda.cuda_tensor_cores import TensorCores
from tests.ops.cuda.flash_cases import Wide, gradient_of
from tests.stored_attention import results_as_stored

SHAPE = (2, 24, 2, 32)


@pytest.mark.skipif(NEEDED is None, reason="g++ is not installed")
def test_gradients_of_kernels_are_those_of_results_as_they_are_stored(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    query, key, value, dout = (random.standard_normal(SHAPE) for _ in range(4))
    value = value[:, :1] + 1e-2 * value
    query, key, value, dout = (x.astype(ml_dtypes.bfloat16) for x in (query, key, value, dout))
    op = FlashAttentionScore(SHAPE[2], scale_value=SHAPE[3] ** -0.5, input_layout="BSND")
    wide = [x.astype(np.float64) for x in (query, key, value, dout)]
    forward: Any = op.run(Wide(), *wide[:3])  # type: ignore[arg-type]  # the tests' backend
    statistics, result = forward[0], forward[3].astype(ml_dtypes.bfloat16)
    backward = gradient_of(op)
    given = [*wide, statistics, result.astype(np.float64)]
    exact: Any = backward.run(Wide(), *given)  # type: ignore[arg-type]
    with results_as_stored():
        stored: Any = backward.run(Wide(), *given)  # type: ignore[arg-type]
    found = [np.full(x.shape, np.nan, x.dtype) for x in (query, key, value)]
    operands = [query, key, value, dout, statistics.astype(np.float32), result]
    launch: Any = backward.launch(TensorCores(tmp_path), operands, found)  # type: ignore[arg-type]
    launch()
    for place, name in enumerate(("query", "key", "value")):
        kernel = found[place].astype(np.float64)
        apart, lost = np.abs(kernel - stored[place]).max(), np.abs(stored[place] - exact[place]).max()
        assert apart <= 2**-7 * np.abs(stored[place]).max(), name
        if name != "value":
            assert lost > 8 * apart, name
