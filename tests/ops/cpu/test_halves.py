"""Operators on Float16 and BFloat16, generated from every sample: results have the inferred types and are the Float32
results, rounded once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mspc.ir.graph import element_types
from mspc.ir.types import BFLOAT16, FLOAT16, DType
from mspc.ops.cpu.blocks import is_half
from mspc.ops.op import REGISTRY, load_operators
from tests.grouped import MANY, grouped
from tests.ops.simulate import BACKEND, arrays_of, operator_of, samples_of, types_of

load_operators()
ELSEWHERE = (
    "control.structural", "collective.collectives", "collective.exchange", "collective.point_to_point",
)  # fmt: skip
WIDE = ("Complex", "Polar")
"""Take no halves, as in MindSpore: those that make a complex number, whose parts are at least Float32, of parts of the
same type."""
BY_LINES = ("FusedUpdate",)
"""Round the result of every line, as the operators do of which they are made."""
CASES = [
    (name, index)
    for name, index in samples_of(ELSEWHERE)
    if name not in (*WIDE, *BY_LINES)
    and any(kind == "Float64" for kind in REGISTRY[name].samples[index].dtypes or ("Float64",))
]
ROUNDING = {"BFloat16": 2.0**-8, "Float16": 2.0**-11}
LEAST = {"BFloat16": 2.0**-126, "Float16": 2.0**-24}
"""Below it numbers round to few digits or to zero."""


def computed(op: Any, arrays: list[np.ndarray]) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """(results, operands after the run)."""
    operands = [np.array(array) for array in arrays]
    with np.errstate(all="ignore"):
        out = op.kernel(BACKEND)(*operands)
    return list(out) if isinstance(out, tuple) else [out], operands


@grouped([(*case, half) for case in CASES for half in (FLOAT16, BFLOAT16)], MANY)
def test_halves_give_the_rounded_float32_result(name: str, index: int, half: DType) -> None:
    op, spec = operator_of(name, index)
    types = types_of(spec, half.name)
    narrow = arrays_of(name, spec, types)
    wide = [a.astype(np.float32) if is_half(a) else a for a in narrow]
    inferred = element_types(op.infer(*types))
    found, changed = computed(op, narrow)
    expected, wide_changed = computed(op, wide)
    assert [(r.shape, r.dtype) for r in found] == [(t.shape, t.dtype.numpy) for t in inferred]
    pairs = list(zip(found, expected, strict=True))
    pairs += [(changed[i], wide_changed[i]) for i in op.mutates]
    for one, other in pairs:
        if other.dtype.kind != "f":
            np.testing.assert_array_equal(one, other)
        else:
            rounding, least = ROUNDING[half.name], LEAST[half.name]
            with np.errstate(over="ignore"):
                rounded = other.astype(half.numpy).astype(np.float32) if is_half(one) else other
            np.testing.assert_allclose(one.astype(np.float32), rounded, rounding, least)


@pytest.mark.parametrize("half", [FLOAT16, BFLOAT16], ids=str)
@pytest.mark.parametrize("name", WIDE)
def test_some_take_no_halves(name: str, half: DType) -> None:
    op, spec = operator_of(name, 0)
    with pytest.raises(TypeError) as refused:
        op.infer(*types_of(spec, half.name))
    assert f"{name}: inputs are {half} and {half}, not both Float32 or Float64" in str(refused.value)


def test_results_of_a_mutated_operand_are_the_operand() -> None:
    variable = np.ones(4, np.float16)
    gradient = np.full(4, 0.25, np.float16)
    made = REGISTRY["AssignAdd"]().kernel(BACKEND)(variable, gradient)
    assert made is variable
    assert variable.tolist() == [1.25] * 4


def test_sums_are_not_taken_in_half_precision() -> None:
    ones = np.ones((4096,), BFLOAT16.numpy)
    total = REGISTRY["ReduceSum"](axis=(0,)).kernel(BACKEND)(ones)
    assert (total.dtype, float(total)) == (BFLOAT16.numpy, 4096.0)


def test_a_backend_without_halves_gets_bare_functions() -> None:
    class Plain:
        xp, comm, step, halves = np, None, 0, False

    assert REGISTRY["Add"]().kernel(Plain()) is np.add
    assert REGISTRY["Add"]().kernel(BACKEND) is not np.add


def test_constants_fold_in_their_own_type() -> None:
    from mspc import Tensor, bfloat16, ops

    found = ops.ReduceSum()(Tensor([1.0, 2.0], bfloat16))
    assert (found.dtype, float(found.asnumpy())) == (bfloat16, 3.0)
