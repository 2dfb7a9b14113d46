"""Fused attention with masks, addends, windows and dropped weights on a GPU against NumPy in Float64, and its time.

`pytest tests/gpu/test_flash_terms_gpu.py -s` prints the time of every way to divide the work, and of what is there
without it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from mspc.ir.types import TensorType, dtype_of
from mspc.ops.cuda.flash_backward import BackwardTiles, flash_backward
from mspc.ops.cuda.flash_forward import ALL, ForwardTiles, flash_forward
from mspc.ops.nn.attention import FlashAttentionScore
from mspc.ops.random.words import GROUP
from tests.gpu.arrays import fetched, kernels_named, microseconds, opened, put
from tests.ops.cuda.flash_cases import gradient_of, relative_error
from tests.ops.cuda.flash_term_cases import EXACT, OF_FLOAT32, TERM_CASES, TOLERANCES, results_of, term_expected

FORWARD_TILES = [ForwardTiles(4, 1, 64, ALL, 2), ForwardTiles(4, 2, 64, ALL, 2), ForwardTiles(4, 1, 64, ALL, 3),
                 ForwardTiles(4, 1, 128, ALL, 2), ForwardTiles(4, 2, 32, ALL, 2), ForwardTiles(8, 1, 64, ALL, 1),
                 ForwardTiles(4, 1, 32, ALL, 3), ForwardTiles(4, 1, 32, ALL, 4)]  # fmt: skip
QUERY_TILES = [BackwardTiles(4, 1, 64, 2, 2), BackwardTiles(4, 1, 32, 2, 3), BackwardTiles(4, 2, 32, 0, 2),
               BackwardTiles(8, 1, 64, 0, 1), BackwardTiles(4, 1, 32, 1, 2),
               BackwardTiles(4, 1, 32, 0, 4)]  # fmt: skip
KEY_TILES = [BackwardTiles(4, 1, 64, 1, 2), BackwardTiles(4, 1, 32, 2, 2), BackwardTiles(4, 1, 32, 0, 3),
             BackwardTiles(4, 2, 32, 0, 2), BackwardTiles(8, 1, 64, 0, 1),
             BackwardTiles(4, 1, 64, 0, 2), BackwardTiles(4, 1, 32, 1, 3)]  # fmt: skip
"""The tolerance of halves, for heads of depth 64."""
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
        launches = [known.op.launch(device, inputs, out), backward.launch(device, operands, grads)]
        if known.shift is not None:
            grads.append(put(device, results_of(known.shift, known.operands)[0]))
            launches.append(known.shift.launch(device, operands, grads[-1]))
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
        for launch in (known.op.launch(device, inputs, out), backward.launch(device, operands, grads)):
            assert launch is not None
            launch()
    for found, wanted in zip((out[0], out[3], *grads), (*known.out, *known.grads), strict=False):
        assert relative_error(fetched(device, found).astype(np.float64), wanted) < EXACT * CANCELS


@pytest.mark.parametrize("kind", ["dropped, causal", "dropped", "causal"])
def test_time(device: Any, kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    """B=8, N=12, S=1024, D=64 in BFloat16; 4 B N S^2 D operations forward, 10 backward, half of them where it is
    causal. Where nothing is dropped, beside what there is in libraries."""
    batch, heads, length, depth = 8, 12, 1024, 64
    op = FlashAttentionScore(
        heads, scale_value=depth**-0.5, input_layout="BSND", sparse_mode=2 * ("causal" in kind), Seed0=1, Seed1=2,
        keep_prob=0.9 if "dropped" in kind else 1.0,
    )  # fmt: skip
    backward = gradient_of(op)
    random = np.random.default_rng(0)
    q, k, v, dout = (
        put(device, random.standard_normal((batch, length, heads, depth)).astype(ml_dtypes.bfloat16)) for _ in range(4)
    )
    types = [TensorType(dtype_of(x.dtype), x.shape) for x in (q, k, v, dout)]
    inferred: Any = op.infer(*types[:3])
    out = [device.zeros(t.shape, t.dtype.numpy) for t in inferred.elements]
    gradients: Any = backward.infer(*types, inferred.elements[0], inferred.elements[3])
    grads = [device.zeros(t.shape, t.dtype.numpy) for t in gradients.elements]
    operands = [q, k, v, dout, out[0], out[3]]
    forward = op.attention([q, k, v], out[0], (heads,) * 3)
    gradient = backward.attention(operands, out[0], (heads,) * 4)
    views = op.views(forward.shape, (out[3], *grads), (heads,) * 4)
    work = batch * heads * length * length * depth * (0.5 if "causal" in kind else 1.0)
    lines = [kind]

    def tried(what: str, make: Callable[[], Any], operations: float) -> None:
        with device.stream("compute"):
            launch = make()
        assert launch is not None
        time = microseconds(device, [launch])
        lines.append(f"  {what}: {time:.1f} us, {operations * work / time / 1e6:.0f} TFLOP/s")

    for tiles in reversed(FORWARD_TILES):
        tried(f"forward {tiles}", functools.partial(flash_forward, device, forward, views[0], tiles), 4)
    for tiles in QUERY_TILES:
        make = functools.partial(flash_backward, device, gradient, views[0], views[1:], tiles, KEY_TILES[0])
        tried(f"backward of queries {tiles}", make, 10)
    for tiles in KEY_TILES:
        make = functools.partial(flash_backward, device, gradient, views[0], views[1:], QUERY_TILES[0], tiles)
        tried(f"backward of keys {tiles}", make, 10)
    if op.keep_prob == 1:
        tried("forward by a library", functools.partial(op.launch, device, [q, k, v], out), 4)
        tried("backward by a library", functools.partial(backward.launch, device, operands, grads), 10)
    with capsys.disabled():
        print("", *lines, sep="\n")
