"""Names that a function reads before it binds them are those outside, as in MindSpore, with a warning."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mspc as ms
from mspc import Tensor
from mspc.compiler.frontend.trace import trace
from mspc.ir.diagnostics import MspcError
from mspc.ir.types import FLOAT32, INT64, TensorType

VECTOR, COUNT = TensorType(FLOAT32, (2,)), TensorType(INT64, ())
OUTSIDE = Tensor(np.array([1.0, 2.0], np.float32))


def in_a_loop(x: Any, n: Any) -> Any:
    for i in (1, 2):
        OUTSIDE += i  # type: ignore[misc]  # noqa: F823
    while n < 2:
        OUTSIDE = OUTSIDE * x
        n = n + 1
    return OUTSIDE


def in_an_inner_function(x: Any, n: Any) -> Any:
    y = x + 1

    def inner(x: Any) -> Any:
        y = y * x  # type: ignore[misc]  # noqa: F823
        return y

    return inner(x)


@pytest.mark.parametrize(
    ("function", "name", "result"),
    [(in_a_loop, "OUTSIDE", [4.0, 500.0]), (in_an_inner_function, "y", [2.0, 110.0])],
)
def test_what_is_read_before_it_has_a_value(function: Callable[..., Any], name: str, result: list[float]) -> None:
    (warning,) = trace(function, (VECTOR, COUNT), script_folder=str(Path(__file__).parent)).warnings
    assert warning.endswith(f"variable '{name}' is read here before it has a value; the outer value is used")
    x = Tensor(np.array([1.0, 10.0], np.float32))
    assert ms.jit(function)(x, Tensor(0)).asnumpy().tolist() == result


def only_in_a_branch(x: Any, n: Any) -> Any:
    if x.sum() > 0:
        OUTSIDE = x
    return OUTSIDE


def test_a_name_that_only_a_branch_binds_is_not_the_one_outside() -> None:
    with pytest.raises(MspcError, match="variable 'OUTSIDE' has no value here"):
        trace(only_in_a_branch, (VECTOR, COUNT), script_folder=str(Path(__file__).parent))
