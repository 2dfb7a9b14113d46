"""Rows that find no room in a block, and ends where there are no rows, are told as on a CPU."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mspc.ir.graph import element_types
from mspc.ir.types import TensorType, dtype_of
from mspc.ops.nn.experts import ExpertPlaces
from mspc.ops.op import load_operators
from tests.ops.cuda.cuda_cases import NumPy
from tests.ops.cuda.cuda_emulator import Emulator


@pytest.mark.parametrize(
    ("ends", "message"),
    [
        ([2, 9, 9, 12], "12 rows of part 1 of the batch go to the experts of rank 1 of 2, .* room for 7"),
        ([2, 4, 99, 12], "an expert's rows end at 99, but there are 24 rows"),
    ],
)
def test_what_does_not_fit_is_told(ends: list[int], message: str, tmp_path: Path) -> None:
    load_operators()
    op = ExpertPlaces(outer=2, parts=2, room=7)
    given = np.array(ends, np.int64), np.arange(24, dtype=np.int32)
    types = [TensorType(dtype_of(array.dtype), array.shape) for array in given]
    results = [np.empty(t.shape, t.dtype.numpy) for t in element_types(op.infer(*types))]
    launch = op.launch(Emulator(tmp_path), given, results)  # type: ignore[arg-type]  # it plays a device
    assert launch is not None
    for run in (launch, lambda: op.run(NumPy(), *given)):  # type: ignore[arg-type]  # no communicator is needed
        with pytest.raises(IndexError, match=message):
            run()
