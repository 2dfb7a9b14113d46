"""Fused attention of TF32 on a GPU against NumPy in Float64, and its time.

`pytest tests/gpu/test_flash_gpu.py -s` prints the time of every way to cut the work, and of what is there without it.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from mspc.ops.cuda.flash_backward import flash_backward
from mspc.ops.cuda.flash_forward import flash_forward
from mspc.ops.nn import attention_base
from mspc.ops.nn.attention import FlashAttentionScore
from tests.gpu.arrays import fetched, kernels_named, microseconds, opened, put
from tests.ops.cuda.flash_cases import (
    CASES,
    FORWARD_TILES,
    KEY_TILES,
    QUERY_TILES,
    Case,
    empty,
    expected,
    gradient_of,
    relative_error,
)

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
        launches = [known.op.launch(device, inputs, out), backward.launch(device, operands, grads)]
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
        forward = known.op.launch(device, inputs, out)
        gradient = backward.launch(device, [*inputs, dout, out[0], out[3]], grads)

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


@pytest.mark.parametrize(("length", "causal"), [(512, False), (2048, False), (2048, True)])
def test_time(
    device: Any, length: int, causal: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """B=16, N=16, D=64; 4 B N S^2 D operations forward, 10 backward, half of them where it is causal."""
    batch, heads, depth = 16, 16, 64
    op = FlashAttentionScore(heads, scale_value=depth**-0.5, input_layout="BSND", sparse_mode=2 if causal else 0)
    backward = gradient_of(op)
    random = np.random.default_rng(0)
    q, k, v, dout = (
        put(device, random.standard_normal((batch, length, heads, depth)).astype(np.float32)) for _ in range(4)
    )
    out, grads = (
        [device.zeros(t.shape, t.dtype.numpy) for t in types.elements]
        for types in (op.infer(*[_type(x) for x in (q, k, v)]), backward.infer(*_gradient_types(op, q, k, v)))
    )
    operands = [q, k, v, dout, out[0], out[3]]
    forward = op.attention([q, k, v], out[0], (heads,) * 3)
    gradient = backward.attention(operands, out[0], (heads,) * 4)
    views = op.views(forward.shape, (out[3], *grads), (heads,) * 4)
    work = batch * heads * length * length * depth * (0.5 if causal else 1.0)
    lines = [f"S={length}{' causal' if causal else ''}"]

    def tried(what: str, make: Callable[[], Any], operations: float) -> None:
        with device.stream("compute"):
            launch = make()
        assert launch is not None
        time = microseconds(device, [launch])
        assert 0 < time < 1e6
        lines.append(f"  {what}: {time:.1f} us, {operations * work / time / 1e6:.0f} TFLOP/s")

    for tiles in reversed(FORWARD_TILES):  # the one that is used at the end: the backward pass reads its results
        tried(f"forward {tiles}", functools.partial(flash_forward, device, forward, views[0], tiles), 4)
    pairs = itertools.chain(
        ((QUERY_TILES[0], tiles) for tiles in KEY_TILES), ((tiles, KEY_TILES[0]) for tiles in QUERY_TILES[1:])
    )
    for of_queries, of_keys in pairs:
        make = functools.partial(flash_backward, device, gradient, views[0], views[1:], of_queries, of_keys)
        tried(f"backward of queries {of_queries}, of keys {of_keys}", make, 10)
    if length == 512:
        for name in ("flash_forward", "flash_backward"):
            monkeypatch.setattr(attention_base, name, lambda *_: None)
        tried("forward by products", functools.partial(op.launch, device, [q, k, v], out), 4)
        tried("backward by products", functools.partial(backward.launch, device, operands, grads), 10)
    with capsys.disabled():
        print("", *lines, sep="\n")


def _type(array: Any) -> Any:
    from mspc.ir.types import TensorType, dtype_of

    return TensorType(dtype_of(array.dtype), tuple(array.shape))


def _gradient_types(op: FlashAttentionScore, q: Any, k: Any, v: Any) -> list[Any]:
    types = [_type(x) for x in (q, k, v)]
    inferred: Any = op.infer(*types)
    return [*types, inferred.elements[3], inferred.elements[0], inferred.elements[3]]
