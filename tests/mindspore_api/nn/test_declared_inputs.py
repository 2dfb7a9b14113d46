"""`set_inputs`: tensors of unknown sizes, and calls that are not as declared."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mspc as ms
from mspc import Symbol, Tensor, nn


class Net(nn.Cell):
    def construct(self, x: Any, y: Any = None) -> Any:
        return x.sum() if y is None else (x * y).sum()


class Several(nn.Cell):
    def construct(self, *inputs: Any) -> Any:
        return inputs[0].sum() + inputs[1].sum()


def ones(*shape: int, dtype: Any = np.float32) -> Tensor:
    return Tensor(np.ones(shape, dtype))


def unknown(*shape: Any) -> Tensor:
    return Tensor(shape=shape, dtype=ms.float32)


def test_a_tensor_of_unknown_sizes_has_no_values() -> None:
    tensor = Tensor(shape=[None, -1, Symbol(divisor=2), 16], dtype=ms.float16)
    assert tensor.shape == (-1, -1, -1, 16)
    assert tensor.ndim == 4
    assert tensor.dtype == ms.float16
    assert repr(tensor) == "Tensor(shape=[-1, -1, -1, 16], dtype=Float16, value=)"
    with pytest.raises(ValueError, match=r"shape \(-1, 2\) has no values: it declares inputs in set_inputs"):
        unknown(None, 2).asnumpy()


def test_every_shape_that_fits_is_computed() -> None:
    net = Net()
    net.set_inputs(unknown(None, 16), unknown(None, None))
    assert [float(net(ones(n, 16)).asnumpy()) for n in (2, 3, 2, 1)] == [32, 48, 32, 16]
    assert float(net(ones(4, 16), ones(4, 16)).asnumpy()) == 64
    assert net.get_inputs()[0].shape == (-1, 16)


@pytest.mark.parametrize(
    ("declared", "given", "message"),
    [
        (unknown(None, 16), ones(2, 17), r"shape \(2, 17\), but set_inputs declared \(\?, 16\): dimension "
                                         r"1 must be 16, not 17"),
        (unknown(None), ones(2, 2), r"input 'x' has shape \(2, 2\), but set_inputs declared 1 dimensions: \(\?,\)"),
        (ones(2, 3), ones(4, 3), r"dimension 0 must be 2, not 4"),
        (unknown(Symbol(max=8, min=2)), ones(9), r"dimension 0 must be from 2 to 8, not 9"),
        (unknown(Symbol(min=2)), ones(1), r"dimension 0 must be at least 2, not 1"),
        (unknown(Symbol(divisor=4)), ones(6), r"dimension 0 must be a multiple of 4, not 6"),
        (unknown(Symbol(divisor=4, remainder=1)), ones(8), r"dimension 0 must be a multiple of 4 and 1 more, not 8"),
        (unknown(*2 * [Symbol(unique=True)]), ones(3, 4), r"dimension 1 must be 3, as at the other uses of the symbol"),
    ],
)  # fmt: skip
def test_a_call_that_is_not_as_declared(declared: Tensor, given: Tensor, message: str) -> None:
    net = Net()
    net.set_inputs(declared)
    with pytest.raises(ValueError, match=f"Net: .*{message}"):
        net(given)


def test_symbols_allow_what_fits() -> None:
    net = Net()
    size = Symbol(divisor=4, remainder=1, unique=True)
    net.set_inputs(unknown(size, size), y=unknown(1, size))
    assert float(net(ones(5, 5), ones(1, 5)).asnumpy()) == 25
    with pytest.raises(ValueError, match=r"input 'y' has shape \(1, 9\)"):
        net(ones(5, 5), ones(1, 9))


def test_element_types_names_and_several_inputs() -> None:
    net = Net()
    net.set_inputs(x=unknown(None))
    with pytest.raises(TypeError, match="Net: input 'x' has element type Float16, but set_inputs declared Float32"):
        net(ones(2, dtype=np.float16))
    with pytest.raises(TypeError, match=r"Cell.set_inputs: construct\(\): too many positional arguments"):
        net.set_inputs(unknown(None), None, 5)
    with pytest.raises(TypeError, match=r"Cell.set_inputs: construct\(\): got an unexpected keyword argument 'z'"):
        net.set_inputs(z=unknown(None))
    several = Several()
    several.set_inputs(unknown(None), unknown(2))
    assert float(several(ones(3), ones(2)).asnumpy()) == 5
    with pytest.raises(ValueError, match=r"Several: input 'inputs\[1\]' has shape \(3,\)"):
        several(ones(3), ones(3))
