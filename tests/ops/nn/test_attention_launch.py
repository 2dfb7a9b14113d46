"""Which kernels of a GPU an attention takes; the small ones are run by g++ and compiled by nvcc."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from mspc.ir.types import TensorType, dtype_of
from mspc.ops.nn.attention import FlashAttentionScore
from mspc.ops.op import REGISTRY, Op
from tests.ops.cuda.cuda_emulator import NEEDED, NVCC, Emulator, compiled_by_nvcc


class Fusing(Emulator):
    """An emulated device that may have attention. fused: what it was asked for; its result is filled with 7."""

    def __init__(self, folder: Path, fuses: bool = False) -> None:
        super().__init__(folder)
        self.fuses = fuses
        self.fused: list[dict[str, Any]] = []

    def attention(self, *operands: Any, **settings: Any) -> Any:
        if not self.fuses:
            return None
        self.fused.append({"operands": operands, **settings})

        def launch() -> None:
            if settings["addend"] is not None:
                self.fused[-1]["seen"] = np.array(settings["addend"])
            operands[3][...] = 7

        return launch


def empty(op: Op, inputs: list[np.ndarray]) -> tuple[np.ndarray, ...]:
    inferred = op.infer(*[TensorType(dtype_of(x.dtype), x.shape) for x in inputs])
    types = (inferred,) if isinstance(inferred, TensorType) else inferred.elements  # type: ignore[union-attr]
    return tuple(np.full(t.shape, 9).astype(t.dtype.numpy) for t in types)


def launched(tmp_path: Path, op: FlashAttentionScore, *inputs: np.ndarray) -> tuple[Fusing, tuple[np.ndarray, ...]]:
    if NEEDED is None:
        pytest.skip("needs g++")
    device = Fusing(tmp_path, fuses=True)
    out = empty(op, list(inputs))
    launch = op.launch(device, inputs, out)  # type: ignore[arg-type]  # the emulator
    assert launch is not None
    launch()
    return device, out


@pytest.mark.parametrize(
    ("dtype", "depths", "settings"),
    [("float32", (8, 8), {"keep_prob": 0.5, "optional": ("drop_mask",)}), ("float64", (8, 8), {}),
     ("float32", (6, 6), {}), ("float32", (8, 4), {}), ("float16", (4, 4), {"sparse_mode": 4, "pre_tokens": 2})],
)  # fmt: skip
def test_attention_without_a_kernel_is_left_to_cupy(
    tmp_path: Path, dtype: str, depths: tuple[int, int], settings: dict[str, Any]
) -> None:
    """So are its gradients."""
    fields = {"head_num": 4, "input_layout": "BSND", **settings}
    x, v = np.zeros((2, 6, 4, depths[0]), dtype), np.zeros((2, 6, 4, depths[1]), dtype)
    masks = [np.ones((6, 6), np.bool_)] * len(settings.get("optional", ()))
    for name, others in (("FlashAttentionScore", []), ("FlashAttentionScoreGrad", [v])):
        op = REGISTRY[name](**fields)
        inputs = [x, x, v, *others, *masks]
        if others:
            inputs += [np.zeros((2, 4, 6, 1), np.float64 if dtype == "float64" else np.float32), v]
        assert op.launch(Fusing(tmp_path), inputs, empty(op, inputs)) is None  # type: ignore[arg-type]  # the emulator


def test_halves_go_to_the_fused_kernel_in_their_own_layout(tmp_path: Path) -> None:
    x = np.zeros((2, 6, 4, 8), np.float16)
    device, out = launched(tmp_path, FlashAttentionScore(4, input_layout="BSND", sparse_mode=3), x, x, x)
    (asked,) = device.fused
    assert [a.shape for a in asked["operands"]] == [(2, 4, 6, 8)] * 4 + [(2, 4, 6, 1)]
    assert asked["operands"][0].base is x
    assert (asked["causal"], asked["addend"], asked["gradients"]) == ("top", None, None)
    assert (out[3] == 7).all()
    assert (out[1] == 1).all()
    assert out[2] == 0
    assert [name for _, name in device.sources] == ["attention_constants"]


def test_fused_kernels_get_masks_as_addends(tmp_path: Path) -> None:
    x = np.zeros((2, 4, 6, 8), ml_dtypes.bfloat16)
    shift, mask = np.random.default_rng(0).random((4, 1, 6)).astype(np.float32), np.eye(6, dtype=np.bool_)
    op = FlashAttentionScore(4, input_layout="BNSD", optional=("real_shift", "attn_mask"))
    device, _ = launched(tmp_path, op, x, x, x, shift, mask)
    seen = device.fused[0]["seen"]
    assert (seen.shape, seen.dtype) == ((1, 4, 6, 6), x.dtype)
    expected = np.where(mask, -1.7e38, np.broadcast_to(shift, (4, 6, 6))).astype(x.dtype)
    np.testing.assert_array_equal(seen[0], expected)


def test_a_shift_that_fits_is_handed_on(tmp_path: Path) -> None:
    x, shift = np.zeros((2, 4, 6, 8), np.float16), np.zeros((6, 6), np.float16)
    op = FlashAttentionScore(4, input_layout="BNSD", optional=("real_shift",))
    device, _ = launched(tmp_path, op, x, x, x, shift)
    assert device.fused[0]["addend"].base is shift


def test_bands_and_float32_do_without_the_fused_kernel(tmp_path: Path) -> None:
    x = np.zeros((2, 4, 6, 8), np.float16)
    device = Fusing(tmp_path, fuses=True)
    band = FlashAttentionScore(4, input_layout="BNSD", sparse_mode=4, pre_tokens=2)
    assert band.launch(device, (x, x, x), empty(band, [x, x, x])) is not None  # type: ignore[arg-type]  # the emulator
    assert device.fused == []
    assert "flash_forward" in [name for _, name in device.sources]
    device, _ = launched(tmp_path, FlashAttentionScore(4, input_layout="BNSD"), *[x.astype(np.float32)] * 3)
    assert device.fused == []


@pytest.mark.skipif(NVCC is None, reason="needs nvcc")
def test_kernels_compile_for_h200(tmp_path: Path) -> None:
    device = Fusing(tmp_path, fuses=True)
    op = FlashAttentionScore(4, input_layout="BNSD", optional=("real_shift", "attn_mask"))
    for dtype in (np.float16, ml_dtypes.bfloat16):
        x = np.zeros((2, 4, 6, 8), dtype)
        inputs = [x, x, x, np.zeros((4, 1, 6), np.float32), np.eye(6, dtype=np.bool_)]
        op.launch(device, inputs, empty(op, inputs))  # type: ignore[arg-type]  # the emulator
    assert {name for _, name in device.sources} == {"attention_constants", "attention_addend"}
    compiled_by_nvcc(tmp_path, [source for source, _ in device.sources])
