"""Attention of one packed operand on a GPU: against NumPy, in place for cuDNN and the kernels of TF32."""

from typing import Any

import numpy as np
import pytest

from mspc.ops.nn.attention import FlashAttentionScore, FlashAttentionScoreGrad
from tests.gpu.arrays import NumPy, drawn, fetched, kernels_named, launched, opened, put

TOLERANCE = {"float16": 4e-3, "bfloat16": 3e-2, "float32": 1e-3}
"""The largest ratio of the error's norm to the result's norm; Float32 is TF32."""
B, S, N, D = 2, 160, 4, 64
FORMS: dict[str, tuple[dict[str, Any], int]] = {
    # attributes, heads of key and value
    "heads behind the sequence": ({"input_layout": "BSND"}, N),
    "causal": ({"input_layout": "BSND", "sparse_mode": 2}, N),
    "rows and heads in one": ({"input_layout": "BSH"}, N),
    "sequence first": ({"input_layout": "SBH", "sparse_mode": 2}, N),
    "fewer heads of key and value": ({"input_layout": "BSND"}, 2),
    "one head of key and value": ({"input_layout": "BSH", "sparse_mode": 3}, 1),
}


@pytest.fixture(scope="module")
def device() -> Any:
    return opened(tf32=True)


def shape_of(layout: str, heads: int) -> tuple[int, ...]:
    return {"BSND": (B, S, heads, D), "BSH": (B, S, heads * D), "SBH": (S, B, heads * D)}[layout]


def check(device: Any, got: Any, wanted: Any, dtype: str, what: str) -> None:
    got, wanted = fetched(device, got).astype(np.float64), np.asarray(wanted, np.float64)
    error = np.linalg.norm(got - wanted) / np.linalg.norm(wanted)
    assert error < TOLERANCE[dtype], f"{what}: relative error {error:.2e}"


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("form", FORMS)
def test_forward_and_backward_equal_numpy(device: Any, form: str, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    attributes, m = FORMS[form]
    settings = {"head_num": N, "scale_value": D**-0.5, "packed": m, **attributes}
    forward, backward = FlashAttentionScore(**settings), FlashAttentionScoreGrad(**settings)
    x = drawn(shape_of(forward.input_layout, N + 2 * m), dtype, 1)
    dy = drawn(shape_of(forward.input_layout, N), dtype, 2)
    expected: Any = forward.run(NumPy(), x)  # type: ignore[arg-type]  # the tests' backend
    wanted: Any = backward.run(NumPy(), x, dy, expected[0], expected[3])  # type: ignore[arg-type]
    names = kernels_named(device, monkeypatch)
    launch, out = launched(device, forward, [put(device, x)])
    back, (gradient,) = launched(device, backward, [put(device, v) for v in (x, dy, expected[0], expected[3])])
    with device.stream("compute"):
        launch()
        back()
    check(device, out[0], expected[0], dtype, "statistics")
    check(device, out[3], expected[3], dtype, "result")
    for part, value, what in zip(
        backward.parts(fetched(device, gradient)), backward.parts(wanted), ("query", "key", "value"), strict=True
    ):
        error = np.linalg.norm(part.astype(np.float64) - value.astype(np.float64))
        assert error / np.linalg.norm(value.astype(np.float64)) < TOLERANCE[dtype], what
    # Nothing is copied apart, neither for cuDNN nor for the kernels here.
    flash = ["flash_forward", "flash_backward", "flash_backward"] if dtype == "float32" else []
    assert names == ["attention_constants", *flash]


def test_cudnn_refuses_none() -> None:
    device = opened()
    for attributes, m in FORMS.values():
        settings = {"head_num": N, "scale_value": D**-0.5, "packed": m, **attributes}
        forward, backward = FlashAttentionScore(**settings), FlashAttentionScoreGrad(**settings)
        x = put(device, drawn(shape_of(forward.input_layout, N + 2 * m), "bfloat16", 1))
        _, out = launched(device, forward, [x])
        launched(device, backward, [x, out[3], out[0], out[3]])
    assert device.fused_attention.refused == {}
