"""Fused attention with masks, addends, windows and dropped weights: its kernels run by g++ with tensor cores played in
C++.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.ops.cuda.cuda_emulator import NEEDED
from tests.ops.cuda.cuda_tensor_cores import TensorCores
from tests.ops.cuda.flash_cases import gradient_of, relative_error
from tests.ops.cuda.flash_term_cases import EXACT, OF_FLOAT32, TERM_CASES, TOLERANCES, results_of, term_expected
from tests.shares import is_taken

DAILY = {name: case for place, (name, case) in enumerate(TERM_CASES.items()) if is_taken(place, 4) or case.total}
GROUPED = {
    f"{name}, four warps together": case
    for place, (name, case) in enumerate(TERM_CASES.items())
    if case.case.depth in (64, 128) and is_taken(place, 6)
}
OTHERS = {name: case for place, (name, case) in enumerate(OF_FLOAT32.items()) if is_taken(place, 14)}
CASES = DAILY | GROUPED | OTHERS
Prepared = tuple[list[Any], list[np.ndarray], list[np.ndarray]]


@pytest.fixture(scope="module")
def device(tmp_path_factory: pytest.TempPathFactory) -> TensorCores:
    if NEEDED is None:
        pytest.skip("needs g++")
    made = TensorCores(tmp_path_factory.mktemp("kernels"))
    made.multiprocessors = 32
    return made


@pytest.fixture(scope="module")
def prepared(device: TensorCores) -> dict[str, Prepared]:
    """(launches, what they fill, what NumPy finds) of all cases; their kernels are compiled together."""
    found: dict[str, Prepared] = {}
    for name, case in CASES.items():
        device.warp_groups = name in GROUPED
        known = term_expected(case)
        backward = gradient_of(known.op)
        out, grads = results_of(known.op, known.inputs), results_of(backward, known.operands)
        launches = [known.op.launch(device, out, *known.inputs), backward.launch(device, grads, *known.operands)]  # type: ignore[arg-type]
        if known.shift is not None:
            (total,) = results_of(known.shift, known.operands)
            launches.append(known.shift.launch(device, total, *known.operands))  # type: ignore[arg-type]
            grads.append(total)
        found[name] = launches, [out[0], out[3], *grads], [*known.out, *known.grads]
    return found


@pytest.mark.parametrize("name", CASES)
def test_kernels_equal_numpy(device: TensorCores, prepared: dict[str, Prepared], name: str) -> None:
    launches, found, wanted = prepared[name]
    device.launched.clear()
    for launch in launches:
        launch()
    case = CASES[name]
    of_keys = 2 if case.case.depth > 128 else 1
    shifted = ["flash_backward", "flash_shift"] * bool(case.shift)
    assert device.launched == ["flash_forward", "flash_backward", *["flash_backward"] * of_keys, *shifted]
    errors = [relative_error(a.astype(np.float64), b) for a, b in zip(found, wanted, strict=True)]
    limit = EXACT if case.dtype == "Float32" else TOLERANCES[case.dtype]
    assert all(error < limit for error in errors), errors


def test_long_sums_are_made_in_parts(device: TensorCores, prepared: dict[str, Prepared]) -> None:
    assert prepared
    assert "shift_total" in [name for _, name in device.sources]
