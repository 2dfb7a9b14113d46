"""Attention of one packed operand on a GPU: against NumPy, in place for cuDNN and the kernels of TF32, and its time.

`pytest tests/gpu/test_packed_gpu.py -s` prints times of an attention and of its projections, packed and apart.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mspc.ops.fused.matmul import FusedMatMul
from mspc.ops.math.matmul import MatMul
from mspc.ops.nn.attention import FlashAttentionScore, FlashAttentionScoreGrad
from mspc.ops.tensor.moving import Split
from tests.gpu.arrays import NumPy, drawn, fetched, kernels_named, launched, microseconds, opened, put

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


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("heads", [16, 8])
def test_time(device: Any, dtype: str, heads: int, capsys: pytest.CaptureFixture[str]) -> None:
    """Rows 8192 of width 1024, sequence 512, depth 64; 8 heads are half of them on one of two ranks."""
    rows, width, batch, length = 8192, 1024, 16, 512
    columns = heads * 64
    x = put(device, drawn((rows, width), dtype, 0))
    apart_w = [put(device, drawn((width, columns), dtype, i) / 32) for i in range(3)]
    packed_w = put(device, np.concatenate([fetched(device, w) for w in apart_w], 1))
    settings = {"head_num": heads, "scale_value": 0.125, "input_layout": "BSND"}
    times: dict[str, dict[str, float]] = {}
    for packed in (False, True):
        weights = [packed_w] if packed else apart_w
        forward = FlashAttentionScore(**settings, packed=heads if packed else 0)
        backward = FlashAttentionScoreGrad(**settings, packed=heads if packed else 0)
        products = [launched(device, MatMul(), [x, w]) for w in weights]
        y = [out[0].reshape(batch, length, -1, 64) for _, out in products]
        score, out = launched(device, forward, y)
        gradient, grads = launched(device, backward, [*y, out[3], out[0], out[3]])
        dy = [one.reshape(rows, -1) for one in grads]
        dx = [launched(device, MatMul(False, True), [dy[0], weights[0]])]
        for d, w in zip(dy[1:], weights[1:], strict=True):
            sums = FusedMatMul(False, True, addend=True)
            dx.append(launched(device, sums, [d, w, dx[-1][1][0]]))
        dw = [launched(device, MatMul(True, False), [x, d]) for d in dy]
        taken = [launched(device, Split(1, 3), dw[0][1])[0]] if packed else []
        times["packed" if packed else "apart"] = {
            "products": microseconds(device, [launch for launch, _ in products]),
            "attention": microseconds(device, [score]),
            "its gradient": microseconds(device, [gradient]),
            "of x": microseconds(device, [launch for launch, _ in dx]),
            "of the weights": microseconds(device, [launch for launch, _ in dw] + taken),
        }
    with capsys.disabled():
        for what, found in times.items():
            listed = ", ".join(f"{name} {time:.1f}" for name, time in found.items())
            print(f"\n{dtype}, {heads} heads, {what}: {listed}; {sum(found.values()):.1f} us", end="")
    assert all(0 < time < 1e6 for found in times.values() for time in found.values())
