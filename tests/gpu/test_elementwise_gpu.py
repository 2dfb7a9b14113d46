"""Elementwise operators, fused chains and updates against NumPy, on a GPU."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from mspc.ir.types import FLOAT8_E4M3, FLOAT8_E5M2, DType
from mspc.ops.cpu.blocks import saturated
from mspc.ops.math.float8 import Quantize
from tests.gpu.arrays import fetched, launched, opened, put
from tests.ops.cuda.cuda_chains import Case, chain, chain_cases, edge_cases, sample_cases, update_cases


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
    launch = case.op.launch(device, made[0] if len(made) == 1 else tuple(made), *inputs)
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


@pytest.mark.parametrize("dtype", [FLOAT8_E4M3, FLOAT8_E5M2], ids=str)
def test_numbers_of_float8_that_have_few_bits(device: Any, dtype: DType) -> None:
    x = (np.random.default_rng(3).standard_normal(4096) * 2.0 ** -(np.arange(4096) % 24)).astype(np.float32)
    launch, (out,) = launched(device, Quantize(dtype), [put(device, x), put(device, np.float32(0.37))])
    launch()
    wanted = saturated(x / np.float32(0.37), dtype)
    np.testing.assert_array_equal(fetched(device, out).view(np.uint8), wanted.view(np.uint8))
