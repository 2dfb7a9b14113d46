"""Elementwise operators, fused chains and updates against NumPy, on a GPU.

`python -m tests.gpu.test_elementwise_gpu` prints how fast the kernels move memory, beside a copy.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from mspc.ops.fused.updates import GroupedUpdate
from mspc.ops.optim.optimizer import ApplyMomentum
from tests.gpu.arrays import fetched, opened, put
from tests.ops.cuda.cuda_chains import (
    Case,
    chain,
    chain_cases,
    edge_cases,
    sample_cases,
    tensor,
    update_cases,
    update_types,
)


@pytest.fixture(scope="module")
def device() -> Any:
    device = opened()
    device.send(np.array([3], np.int64), device.step)  # as the expected numbers are drawn
    return device


def prepared(device: Any, case: Case) -> tuple[list[Any], list[Any], Any]:
    """(operands, results, launch) of a case."""
    inputs = [put(device, x, case.shift) for x in case.inputs()]
    made = [put(device, np.zeros(t.shape, t.dtype.numpy), case.shift) for t in case.results()]
    if case.op.mutates:
        members = getattr(case.op, "members", lambda operands: [operands])(inputs)
        outputs = getattr(case.op, "member", case.op).outputs
        made = [operands[i] for operands in members for i in range(outputs)]
    if case.alias >= 0:
        made[0] = inputs[case.alias]
    launch = case.op.launch(device, inputs, made[0] if len(made) == 1 else tuple(made))
    assert launch is not None, str(case)
    return inputs, made, launch


def check(device: Any, cases: Sequence[Case]) -> None:
    failed: list[str] = []
    for case in cases:
        inputs, made, launch = prepared(device, case)
        before = [fetched(device, x) for x in inputs]
        launch()
        results = [fetched(device, x) for x in [*made, *(inputs[i] for i in case.op.mutates)]]
        try:
            case.check(results, before)
        except AssertionError as error:
            failed.append(str(error)[:600])
    assert not failed, f"{len(failed)} of {len(cases)}:\n" + "\n".join(failed[:20])


def test_samples_equal_numpy(device: Any) -> None:
    check(device, list(sample_cases(("Float32", "Float16", "BFloat16"))))


def test_edges_equal_numpy(device: Any) -> None:
    # Operators that scale integers by a fraction convert infinities and negative fractions back: C++ leaves that open.
    check(device, [c for c in edge_cases() if c.types[0].dtype.is_float or not c.op.name.endswith("Ext")])


@pytest.mark.parametrize("scale", [1, 100])
def test_chains_equal_numpy(device: Any, scale: int) -> None:
    check(device, list(chain_cases(scale)))


@pytest.mark.parametrize("scale", [1, 40])
def test_updates_equal_numpy(device: Any, scale: int) -> None:
    check(device, list(update_cases(scale)))


def test_reductions_repeat_their_bits(device: Any) -> None:
    body = ("Mul(x0, x1)", "ReduceSum(t0, keep_dims=false, axis=())", "ReduceMean(t0, keep_dims=false, axis=())")
    _, made, launch = prepared(device, chain(("Float32 3000 1000", "Float32 1000"), body, (1, 2)))
    seen: set[bytes] = set()
    for _ in range(5):
        launch()
        seen.add(b"".join(fetched(device, array).tobytes() for array in made))
    assert len(seen) == 1


def test_launches_are_captured(device: Any) -> None:
    body = ("Mul(x0, x1)", "ReduceSum(t0, keep_dims=false, axis=(0))")
    case = chain(("Float32 3000 1000", "Float32 1000"), body, (1,))
    inputs, made, launch = prepared(device, case)
    with device.stream("compute"):
        launch()
        replay = device.capture(launch)
        made[0][...] = 0
        replay()
        device.synchronize()
    case.check([fetched(device, made[0])], [fetched(device, x) for x in inputs])


def figures() -> None:
    """Print microseconds and bytes moved per second of kernels as a step of a network has them."""
    device = opened()
    rows = "8192 4096"
    momentum = ApplyMomentum()
    cases = [
        ("add", chain((f"Float32 {rows}", f"Float32 {rows}"), ("Add(x0, x1)",), (0,))),
        ("add in place", chain((f"BFloat16 {rows}", f"BFloat16 {rows}"), ("Add(x0, x1)",), (0,), alias=0)),
        ("bias, GeLU", chain((f"BFloat16 {rows}", "BFloat16 4096"), ("Add(x0, x1)", "GeLU(t0)"), (0, 1))),
        ("GeLU gradient, bias gradient", chain((f"BFloat16 {rows}",) * 3, (
            "GeLUGrad(x0, x1, x2)", "ReduceSum(t0, keep_dims=false, axis=(0))"), (0, 1))),
        ("bias gradient of width 1024", chain(("BFloat16 8192 1024", "BFloat16"), (
            "Mul(x0, x1)", "ReduceSum(t0, keep_dims=false, axis=(0))"), (0, 1))),
        ("mean squared error", chain((f"Float32 {rows}",) * 2, (
            "Sub(x0, x1)", "Square(t0)", "ReduceMean(t1, keep_dims=false, axis=())"), (2,))),
        ("row sums", chain((f"Float32 {rows}", "Float32"), ("Mul(x0, x1)", "ReduceSum(t0, keep_dims=false, axis=(1))"),
                           (1,))),
        ("small", chain(("Float32 64 512", "Float32 512"), ("Add(x0, x1)", "ReLU(t0)"), (1,))),
        ("momentum", Case(GroupedUpdate.of(momentum, 1), tuple(map(
            tensor, update_types(momentum, rows, "Float32", "BFloat16"))))),
    ]  # fmt: skip
    for name, case in cases:
        inputs, made, launch = prepared(device, case)
        arrays = {array.data.ptr: array.nbytes for array in [*inputs, *made]}
        moved = sum(arrays.values()) + sum(inputs[i].nbytes for i in case.op.mutates)
        if case.alias >= 0:
            moved += made[0].nbytes
        with device.stream("compute"):
            launch()
            replay = device.capture(lambda launch=launch: [launch() for _ in range(20)] and None)
            replay()
            device.synchronize()
            times: list[float] = []
            for _ in range(10):
                begin = time.perf_counter()
                replay()
                device.synchronize()
                times.append((time.perf_counter() - begin) / 20)
        median = sorted(times)[len(times) // 2]
        print(f"{name:32} {median * 1e6:8.1f} us  {moved / median / 1e9:8.0f} GB/s")


if __name__ == "__main__":
    figures()
