"""Fused attention with masks, addends, windows and dropped weights on a GPU against NumPy in Float64."""

from typing import Any

import numpy as np
import pytest

from mspc.ops.random.words import GROUP
from tests.gpu.arrays import fetched, kernels_named, opened, put
from tests.ops.cuda.flash_cases import gradient_of, relative_error
from tests.ops.cuda.flash_term_cases import EXACT, OF_FLOAT32, TERM_CASES, TOLERANCES, results_of, term_expected

CASES = TERM_CASES | OF_FLOAT32
CANCELS = 3
"""How much larger errors may be where the gradients of scores are what rounding leaves of 0."""


@pytest.fixture(scope="module")
def device() -> Any:
    device = opened(tf32=True)
    device.send(np.array([3], np.int64), device.step)
    return device


@pytest.mark.parametrize("name", CASES)
def test_kernels_equal_numpy(device: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = CASES[name]
    known = term_expected(case)
    backward = gradient_of(known.op)
    monkeypatch.setattr(type(device), "attention", lambda *_, **__: None)
    inputs, operands = ([put(device, x) for x in arrays] for arrays in (known.inputs, known.operands))
    out, grads = results_of(known.op, known.inputs), results_of(backward, known.operands)
    out, grads = ([put(device, x) for x in arrays] for arrays in (out, grads))
    names = kernels_named(device, monkeypatch)
    with device.stream("compute"):
        launches = [known.op.launch(device, out, *inputs), backward.launch(device, grads, *operands)]
        if known.shift is not None:
            grads.append(put(device, results_of(known.shift, known.operands)[0]))
            launches.append(known.shift.launch(device, grads[-1], *operands))
        for launch in launches:
            launch()
    shifted = ["flash_backward", "flash_shift"] * bool(case.shift)
    of_keys = 2 if case.case.depth > 128 else 1
    wanted_names = ["flash_forward", "flash_backward", *["flash_backward"] * of_keys, *shifted]
    drawn = "keep_prob" in case.settings and case.case.keys % GROUP > 0
    assert ("flash_draws" in names) == drawn
    assert [name for name in names if name.startswith("flash") and name != "flash_draws"] == wanted_names
    for what, found, wanted in zip(
        ("statistics", "out", "dquery", "dkey", "dvalue", "dshift"), (out[0], out[3], *grads),
        (*known.out, *known.grads), strict=False,
    ):  # fmt: skip
        error = relative_error(fetched(device, found).astype(np.float64), wanted)
        limit = TOLERANCES[case.dtype] * (CANCELS if name.startswith("one key") else 1)
        assert error < limit, f"{what}: {error:.2e}"


@pytest.mark.parametrize("name", OF_FLOAT32)
def test_float32_as_it_is(device: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Products are not rounded to TF32: forward, and the gradients of query, key and value."""
    monkeypatch.setattr(device, "tf32", False)
    known = term_expected(OF_FLOAT32[name])
    backward = gradient_of(known.op)
    inputs, operands = ([put(device, x) for x in arrays] for arrays in (known.inputs, known.operands))
    out, grads = results_of(known.op, known.inputs), results_of(backward, known.operands)
    out, grads = ([put(device, x) for x in arrays] for arrays in (out, grads))
    with device.stream("compute"):
        for launch in (known.op.launch(device, out, *inputs), backward.launch(device, grads, *operands)):
            assert launch is not None
            launch()
    for found, wanted in zip((out[0], out[3], *grads), (*known.out, *known.grads), strict=False):
        assert relative_error(fetched(device, found).astype(np.float64), wanted) < EXACT * CANCELS
