"""Attention on a GPU against NumPy: cuDNN's fused kernels, and the products that stand in for them."""

from typing import Any

import numpy as np
import pytest

from mspc.ops.nn.attention import FlashAttentionScore, FlashAttentionScoreGrad, FlashAttentionScoreShiftGrad
from tests.gpu.arrays import NumPy, drawn, fetched, launched, opened, put

TOLERANCE = {"float16": 4e-3, "bfloat16": 3e-2, "float32": 1e-5, "float64": 1e-12}
"""The largest ratio of the error's norm to the result's norm."""
B, N, S, T, D = 2, 4, 96, 160, 64
FORMS: dict[str, tuple[dict[str, Any], tuple[int, ...], int, int]] = {
    # attributes, shape of the mask or shift, heads of key and value, length of the query
    "plain": ({"input_layout": "BNSD"}, (), N, T),
    "rows and heads in one": ({"input_layout": "BSH"}, (), N, T),
    "heads behind the sequence": ({"input_layout": "BSND"}, (), N, S),
    "sequence first": ({"input_layout": "SBH"}, (), N, T),
    "causal": ({"input_layout": "BSND", "sparse_mode": 2}, (), N, T),
    "causal from the ends": ({"input_layout": "BNSD", "sparse_mode": 3}, (), N, S),
    "fewer heads of key and value": ({"input_layout": "BSND"}, (), 2, S),
    "shift": ({"input_layout": "BNSD", "optional": ("real_shift",)}, (T, T), N, T),
    "shift by head": ({"input_layout": "BSND", "optional": ("real_shift",)}, (N, S, T), N, S),
    "shift of keys": ({"input_layout": "BNSD", "optional": ("real_shift",)}, (B, 1, 1, T), N, S),
    "mask": ({"input_layout": "BSND", "optional": ("attn_mask",)}, (S, T), N, S),
    "band": ({"input_layout": "BNSD", "sparse_mode": 4, "pre_tokens": 40, "next_tokens": 0}, (), N, S),
}
PLAIN = ("band",)
"""Forms that cuDNN is not asked for."""


@pytest.fixture(scope="module")
def device() -> Any:
    return opened()


def in_layout(layout: str, heads: int, length: int) -> tuple[int, ...]:
    return {"BNSD": (B, heads, length, D), "BSND": (B, length, heads, D), "BSH": (B, length, heads * D),
            "SBH": (length, B, heads * D)}[layout]  # fmt: skip


def made(form: str, dtype: str) -> tuple[FlashAttentionScore, list[Any]]:
    attributes, extra, heads, length = FORMS[form]
    op = FlashAttentionScore(N, scale_value=D**-0.5, **attributes)
    shapes = [in_layout(op.input_layout, n, s) for n, s in ((N, length), (heads, T), (heads, T))]
    inputs = [drawn(shape, dtype, i) for i, shape in enumerate(shapes)]
    if "real_shift" in op.optional:
        inputs.append(drawn(extra, dtype, 5))
    if "attn_mask" in op.optional:
        mask = np.random.default_rng(6).random(extra) < 0.5
        mask[..., 0] = False
        inputs.append(mask)
    return op, inputs


def close(device: Any, got: Any, wanted: Any, dtype: str, what: str) -> None:
    got, wanted = fetched(device, got).astype(np.float64), np.asarray(wanted, np.float64)
    error = np.linalg.norm(got - wanted) / max(float(np.linalg.norm(wanted)), 1e-30)
    assert error < TOLERANCE[dtype], f"{what}: relative error {error:.2e}"


def gradient_operands(op: FlashAttentionScore, inputs: list[Any], expected: Any, dtype: str) -> list[Any]:
    dy = drawn(expected[3].shape, dtype, 9)
    return [*inputs[:3], dy, *inputs[3:], expected[0], expected[3]]


def attributes_of(op: FlashAttentionScore) -> dict[str, Any]:
    return {name: getattr(op, name) for name in ("head_num", *op.omitted)}


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("form", FORMS)
def test_forward_and_backward_equal_numpy(device: Any, form: str, dtype: str) -> None:
    op, inputs = made(form, dtype)
    expected: Any = op.run(NumPy(), *inputs)  # type: ignore[arg-type]  # the tests' backend
    arrays = [put(device, x) for x in inputs]
    launch, out = launched(device, op, arrays)
    with device.stream("compute"):
        launch()
    for i, name in enumerate(("softmax_max", "softmax_sum", "softmax_out", "attention_out")):
        close(device, out[i], expected[i], dtype, name)
    backward = FlashAttentionScoreGrad(**attributes_of(op))
    operands = gradient_operands(op, inputs, expected, dtype)
    wanted: Any = backward.run(NumPy(), *operands)  # type: ignore[arg-type]  # the tests' backend
    launch, grads = launched(device, backward, [put(device, x) for x in operands])
    with device.stream("compute"):
        launch()
    for got, value, name in zip(grads, wanted, ("dquery", "dkey", "dvalue"), strict=True):
        close(device, got, value, dtype, name)
    if "real_shift" in op.optional:
        shift = FlashAttentionScoreShiftGrad(**attributes_of(op))
        total: Any = shift.run(NumPy(), *operands)  # type: ignore[arg-type]  # the tests' backend
        launch, (got,) = launched(device, shift, [put(device, x) for x in operands])
        with device.stream("compute"):
            launch()
        close(device, got, total, dtype, "real_shift's gradient")


def test_cudnn_takes_what_it_is_asked_for() -> None:
    """A form that it refuses runs through products of matrices, right but slow: it must be known."""
    device = opened()
    for form in FORMS:
        if form in PLAIN:
            continue
        op, inputs = made(form, "bfloat16")
        expected: Any = op.run(NumPy(), *inputs)  # type: ignore[arg-type]  # the tests' backend
        launched(device, op, [put(device, x) for x in inputs])
        backward = FlashAttentionScoreGrad(**attributes_of(op))
        operands = gradient_operands(op, inputs, expected, "bfloat16")
        launched(device, backward, [put(device, x) for x in operands])
    refused = [f"{key[0]}, {key[3]}: {text[:300]}" for key, text in device.fused_attention.refused.items()]
    assert refused == []


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_attention_is_captured(device: Any, dtype: str) -> None:
    op, inputs = made("mask", dtype)
    expected: Any = op.run(NumPy(), *inputs)  # type: ignore[arg-type]  # the tests' backend
    launch, out = launched(device, op, [put(device, x) for x in inputs])
    operands = gradient_operands(op, inputs, expected, dtype)
    backward = FlashAttentionScoreGrad(**attributes_of(op))
    wanted: Any = backward.run(NumPy(), *operands)  # type: ignore[arg-type]  # the tests' backend
    launch_back, grads = launched(device, backward, [put(device, x) for x in operands])

    def both() -> None:
        launch()
        launch_back()

    with device.stream("compute"):
        both()  # cuDNN loads its kernels
        replay = device.capture(both)
        device.synchronize()
        for array in (out[3], *grads):
            device.send(np.full(array.shape, np.nan, array.dtype), array)
        device.synchronize()
        replay()
    close(device, out[3], expected[3], dtype, "attention_out")
    for got, value, name in zip(grads, wanted, ("dquery", "dkey", "dvalue"), strict=True):
        close(device, got, value, dtype, name)


def test_deterministic_gradients_have_the_same_bits() -> None:
    device = opened(deterministic=True)
    op, inputs = made("causal", "bfloat16")
    expected: Any = op.run(NumPy(), *inputs)  # type: ignore[arg-type]  # the tests' backend
    operands = gradient_operands(op, inputs, expected, "bfloat16")
    launch, grads = launched(device, FlashAttentionScoreGrad(**attributes_of(op)), [put(device, x) for x in operands])
    seen: list[list[bytes]] = []
    for _ in range(5):
        with device.stream("compute"):
            launch()
        seen.append([fetched(device, g).tobytes() for g in grads])
    assert all(one == seen[0] for one in seen)
