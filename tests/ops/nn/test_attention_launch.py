"""Attention's kernels for a GPU: run by g++ around NumPy's products, compiled by nvcc."""

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from mspc.ir.types import TensorType, dtype_of
from mspc.ops.nn.attention import FlashAttentionScore
from mspc.ops.op import REGISTRY, Op, Sample
from tests.ops.cuda.cuda_emulator import NEEDED, NVCC, Emulator, compiled_by_nvcc

NAMES = ("FlashAttentionScore", "FlashAttentionScoreGrad", "FlashAttentionScoreShiftGrad")
TOLERANCE = {"Float64": 1e-12, "Float32": 2e-6, "Float16": 3e-3, "BFloat16": 2e-2}
CASES = [
    (name, index, dtype)
    for name in NAMES
    for index, sample in enumerate(REGISTRY[name].samples)
    if not {"drop_mask", "actual_seq_qlen"} & set(sample.fields.get("optional", ()))
    for dtype in TOLERANCE
    if index < 2 or dtype in ("Float32", "BFloat16")
]
LONG = Sample(((1, 2, 3, 8), (1, 1, 200, 8), (1, 1, 200, 8)), {"head_num": 2, "input_layout": "BNSD"})
"""More keys than a block has threads."""


class NumPy:
    xp = np
    comm = None
    step = 3  # the emulator's


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


def arrays_for(name: str, sample: Sample, dtype: str) -> list[np.ndarray]:
    """Inputs; the statistics (the last but one, or the last) stay Float32 beside halves."""
    random = np.random.default_rng(len(sample.shapes))
    place = {"FlashAttentionScoreGrad": len(sample.shapes) - 2, "FlashAttentionScoreShiftGrad": len(sample.shapes) - 2}
    found: list[np.ndarray] = []
    for i, shape in enumerate(sample.shapes):
        given = sample.dtypes[i] if sample.dtypes else "Float64"
        wanted = dtype if given == "Float64" else given
        if place.get(name) == i and dtype != "Float64":
            wanted = "Float32"
        values: Any = random.random(shape) < 0.4 if wanted == "Bool" else random.uniform(-1, 1, shape)
        found.append(values.astype(dtype_of(wanted).numpy))
    return found


def empty(op: Op, inputs: list[np.ndarray]) -> tuple[np.ndarray, ...]:
    inferred = op.infer(*[TensorType(dtype_of(x.dtype), x.shape) for x in inputs])
    types = (inferred,) if isinstance(inferred, TensorType) else inferred.elements  # type: ignore[union-attr]
    return tuple(np.full(t.shape, 9).astype(t.dtype.numpy) for t in types)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> dict[Any, Any]:
    """(results of NumPy, results of the launch, launch) of every case; all kernels are compiled together."""
    if NEEDED is None:
        pytest.skip("needs g++")
    device = Fusing(tmp_path_factory.mktemp("kernels"))
    cases = {case: REGISTRY[case[0]].samples[case[1]] for case in CASES}
    cases["FlashAttentionScore", -1, "Float32"] = LONG
    found: dict[Any, Any] = {}
    for case, sample in cases.items():
        op = REGISTRY[case[0]](**sample.fields)
        inputs = arrays_for(case[0], sample, case[2])
        out = empty(op, inputs)
        expected = op.run(NumPy(), *inputs)  # type: ignore[arg-type]  # the tests' backend
        single = len(out) == 1
        launch = op.launch(device, out[0] if single else out, *inputs)  # type: ignore[arg-type]  # the emulator
        found[case] = (expected,) if single else expected, out, launch
    return found


@pytest.mark.parametrize(("name", "index", "dtype"), [*CASES, ("FlashAttentionScore", -1, "Float32")])
def test_kernels_equal_numpy(prepared: dict[Any, Any], name: str, index: int, dtype: str) -> None:
    expected, out, launch = prepared[name, index, dtype]
    launch()
    for got, wanted in zip(out, expected, strict=True):
        got, wanted = np.asarray(got, np.float64), np.asarray(wanted, np.float64)
        size = max(1.0, float(np.max(np.abs(wanted), where=np.isfinite(wanted), initial=0.0)))
        np.testing.assert_allclose(got, wanted, rtol=0, atol=TOLERANCE[dtype] * size)


def launched(tmp_path: Path, op: FlashAttentionScore, *inputs: np.ndarray) -> tuple[Fusing, tuple[np.ndarray, ...]]:
    if NEEDED is None:
        pytest.skip("needs g++")
    device = Fusing(tmp_path, fuses=True)
    out = empty(op, list(inputs))
    launch = op.launch(device, out, *inputs)  # type: ignore[arg-type]  # the emulator
    assert launch is not None
    launch()
    return device, out


def test_no_kernel_drops_weights(tmp_path: Path) -> None:
    x, kept = np.zeros((2, 6, 4, 8), np.float32), np.ones((6, 6), np.bool_)
    op = FlashAttentionScore(4, keep_prob=0.5, input_layout="BSND", optional=("drop_mask",))
    assert op.launch(Fusing(tmp_path), empty(op, [x, x, x, kept]), x, x, x, kept) is None  # type: ignore[arg-type]


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
    assert band.launch(device, empty(band, [x, x, x]), x, x, x) is not None  # type: ignore[arg-type]  # the emulator
    assert device.fused == []
    assert "flash_forward" in [name for _, name in device.sources]
    device, _ = launched(tmp_path, FlashAttentionScore(4, input_layout="BNSD"), *[x.astype(np.float32)] * 3)
    assert device.fused == []


@pytest.mark.skipif(NVCC is None, reason="needs nvcc")
def test_kernels_compile_for_h200(tmp_path: Path) -> None:
    device = Fusing(tmp_path)
    for name in NAMES:
        sample = REGISTRY[name].samples[1]
        for dtype in TOLERANCE:
            op, inputs = REGISTRY[name](**sample.fields), arrays_for(name, sample, dtype)
            out = empty(op, inputs)
            op.launch(device, out[0] if len(out) == 1 else out, *inputs)  # type: ignore[arg-type]  # the emulator
    texts = sorted({source for source, _ in device.sources})
    assert len(texts) >= len(TOLERANCE)
    compiled_by_nvcc(tmp_path, texts[::2])
