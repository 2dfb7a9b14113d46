"""How far values may be apart that ranks, one device and judges compute."""

from __future__ import annotations

import numpy as np
import pytest

from mspc.ir.text.parser import parse
from mspc.ops.op import REGISTRY, load_operators
from mspc.verify.difference import TOLERANCES, coarsest, compare, floats_of

load_operators()
LOOP = """
#IR entry      : @net
%para1_x: <Tensor[Float32], (2)>

subgraph @net() {
  %0 = While(%para1_x) {regions: @condition, @body} primitive_attrs: {carried: 1}
      : (<Tensor[Float32], (2)>) -> (<Tuple[Tensor[Float32]], TupleShape((2))>)
  %1 = TupleGetItem(%0) primitive_attrs: {index: 0}
      : (<Tuple[Tensor[Float32]], TupleShape((2))>) -> (<Tensor[Float32], (2)>)
  Return(%1)
      : (<Tensor[Float32], (2)>)
}

%para2_x: <Tensor[Float32], (2)>
subgraph @condition(%para2_x) {
  %0 = ReduceSum(%para2_x) primitive_attrs: {keep_dims: false, axis: (0)}
      : (<Tensor[Float32], (2)>) -> (<Tensor[Float32], ()>)
  %1 = Less(%0, Tensor(shape=[], dtype=Float32, value=100.0))
      : (<Tensor[Float32], ()>, <Tensor[Float32], ()>) -> (<Tensor[Bool], ()>)
  Return((%1))
      : (<Tensor[Bool], ()>)
}

%para3_x: <Tensor[Float32], (2)>
subgraph @body(%para3_x) {
  %0 = Cast(%para3_x) primitive_attrs: {dst_type: BFloat16}
      : (<Tensor[Float32], (2)>) -> (<Tensor[BFloat16], (2)>)
  %1 = Add(%0, %0)
      : (<Tensor[BFloat16], (2)>, <Tensor[BFloat16], (2)>) -> (<Tensor[BFloat16], (2)>)
  %2 = Cast(%1) primitive_attrs: {dst_type: Float32}
      : (<Tensor[BFloat16], (2)>) -> (<Tensor[Float32], (2)>)
  Return((%2))
      : (<Tensor[Float32], (2)>)
}
"""

DTYPES = ("float32", "float64", "complex64", "complex128")


@pytest.mark.parametrize("dtype", DTYPES)
def test_rounding_errors_are_no_difference_and_more_is(dtype: str) -> None:
    """Also of complex numbers, whose real and imaginary parts are rounded alike."""
    values = np.arange(1, 9).astype(dtype) * (1 + 1j if dtype.startswith("complex") else 1)
    step = np.finfo(dtype).eps
    assert compare("operator", "it", values, (values * (1 + step)).astype(dtype), 0.0).same
    assert not compare("operator", "it", values, (values * (1 + 1e3 * step ** 0.75)).astype(dtype), 0.0).same


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_parameter_is_held_to_its_change(dtype: str) -> None:
    before = np.full(4, 1000, dtype)
    after, other = (before + np.full(4, change, dtype) for change in (0.25, 0.5))
    assert compare("parameter", "w", after, after, 0.0, before=before).same
    assert not compare("parameter", "w", after, other, 1e-3, before=before).same


def test_halves_inside_of_a_loop_count() -> None:
    """What a loop carries in Float32 is as exact as what it computes in halves."""
    graph = parse(LOOP, REGISTRY).main
    assert floats_of(graph) == {"Float32", "BFloat16"}
    assert coarsest(graph) == TOLERANCES["BFloat16"]
