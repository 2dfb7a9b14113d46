"""Fused attention of TF32 on a GPU against NumPy in Float64."""

from typing import Any

import numpy as np
import pytest

from tests.gpu.arrays import fetched, kernels_named, opened, put
from tests.ops.cuda.flash_cases import CASES, Case, empty, expected, gradient_of, relative_error

TOLERANCE = {"one key": 3e-3}
"""Where gradients cancel out; 1e-3 else."""


@pytest.fixture(scope="module")
def device() -> Any:
    return opened(tf32=True)


@pytest.mark.parametrize("name", CASES)
def test_kernels_equal_numpy(device: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    known = expected(CASES[name])
    backward = gradient_of(known.op)
    inputs = [put(device, x) for x in known.inputs]
    operands = [put(device, x) for x in known.operands]
    out = [put(device, x) for x in empty(known.op, known.inputs)]
    grads = [put(device, x) for x in empty(backward, known.operands)]
    names = kernels_named(device, monkeypatch)
    with device.stream("compute"):
        launches = [known.op.launch(device, out, *inputs), backward.launch(device, grads, *operands)]
        for launch in launches:
            launch()
    assert names == ["attention_constants", "flash_forward", "flash_backward", "flash_backward"]
    for what, found, wanted in zip(
        ("statistics", "out", "dquery", "dkey", "dvalue"), (out[0], out[3], *grads), (*known.out, *known.grads),
        strict=True,
    ):  # fmt: skip
        error = relative_error(fetched(device, found), wanted)
        assert error < TOLERANCE.get(name, 1e-3), f"{what}: {error:.2e}"


def test_gradients_follow_this_forward_pass_and_repeat(device: Any) -> None:
    """Forward and backward in one CUDA graph, ten times: the same bits."""
    case = Case(64, 300, 260, batch=2, heads=4, key_heads=2, sparse_mode=3)
    known = expected(case)
    backward = gradient_of(known.op)
    inputs = [put(device, x) for x in known.inputs]
    dout = put(device, known.operands[3])
    out = [put(device, x) for x in empty(known.op, known.inputs)]
    grads = [put(device, x) for x in empty(backward, known.operands)]
    seen: list[list[bytes]] = []
    with device.stream("compute"):
        forward = known.op.launch(device, out, *inputs)
        gradient = backward.launch(device, grads, *inputs, dout, out[0], out[3])

        def both() -> None:
            forward()
            gradient()

        both()
        replay = device.capture(both)
        for _ in range(10):
            for array in (out[0], out[3], *grads):
                device.send(np.full(array.shape, np.nan, array.dtype), array)
            replay()
            seen.append([fetched(device, array).tobytes() for array in (out[0], out[3], *grads)])
    assert all(one == seen[0] for one in seen)
    for found, wanted in zip(grads, known.grads, strict=True):
        assert relative_error(fetched(device, found), wanted) < 1e-3
