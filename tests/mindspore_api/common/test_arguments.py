"""Arguments that a public function does not take: the message names the function, the argument, the value and what it
takes, the same for a call in a compiled function and outside of one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from mspc import Tensor, mint, ops
from mspc.compiler.frontend.trace import trace
from mspc.ir.diagnostics import MspcError

X = Tensor(np.array([[1.0, 2.0, 3.0]], np.float32))
BYTES = Tensor(np.array([1, 2], np.uint8))

WRONG: list[tuple[Callable[[Any], Any], type[Exception], str]] = [
    (lambda x: ops.full((2,), 7, like=1), TypeError, "ops.full(): got an unexpected keyword argument 'like'"),
    (lambda x: ops.split(x), TypeError, "ops.split(): missing a required argument: 'split_size_or_sections'"),
    (lambda x: ops.softmax(x, 1, 2), TypeError, "ops.softmax(): too many positional arguments"),
    (lambda x: ops.sum(3.5), TypeError, "ops.sum(): input must be a tensor, not 3.5"),
    (lambda x: ops.argmax(x, 0, "yes"), TypeError, "ops.argmax(): keepdim must be True or False, not 'yes'"),
    (lambda x: ops.concat((x, x), 1.5), TypeError, "ops.concat(): axis must be an int, not 1.5"),
    (lambda x: ops.std(x, 0, "a"), TypeError, "ops.std(): ddof must be an int or True or False, not 'a'"),
    (lambda x: ops.masked_fill(x, x > 1, "a"), TypeError,
     "ops.masked_fill(): value must be a number or a tensor, not 'a'"),
    (lambda x: ops.topk(x, 2, largest=1), TypeError, "ops.topk(): largest must be True or False, not 1"),
    (lambda x: ops.topk(x, 2, 5), ValueError, "topk: axis 5 is out of range for 2 dimensions"),
    (lambda x: ops.flatten(x, "Z"), ValueError, "flatten(): order 'Z' is neither 'C' nor 'F'"),
    (lambda x: ops.flatten(x, start_dim=1, end_dim=0), ValueError,
     "flatten(): start_dim 1 is after end_dim 0"),
    (lambda x: ops.div(x, x, rounding_mode="up"), ValueError,
     "div(): rounding_mode is 'up', not 'floor', 'trunc' or None"),
    (lambda x: ops.slice(x, (0, 1), (1, 3)), ValueError, "slice(): dimension 1 has 3 elements, not 3 from 1 on"),
    (lambda x: ops.clip_by_global_norm((x,), -1), ValueError,
     "clip_by_global_norm(): clip_norm must be above 0, not -1"),
    (lambda x: ops.sum(x, dtype="whole"), TypeError, "'whole' is not an element type"),
    (lambda x: ops.clamp(x), ValueError, "clamp() needs a minimum or a maximum"),
    (lambda x: ops.Cdist(-1.0)(x, x), ValueError, "Cdist: p is -1.0, not a number from 0 to inf"),
    (lambda x: mint.sum(x, axis=1), TypeError, "mint.sum(): got an unexpected keyword argument 'axis'"),
    (lambda x: mint.narrow(x, 1, 2, 9), ValueError, "narrow(): dimension 1 has 3 elements, not 9 from 2 on"),
    (lambda x: mint.topk(x, 2, largest="no"), TypeError, "mint.topk(): largest must be True or False, not 'no'"),
    (lambda x: x.topk(2, sorted=0), TypeError, "Tensor.topk(): sorted must be True or False, not 0"),
    (lambda x: x.sum(foo=1), TypeError, "sum(): unexpected argument 'foo'"),
    (lambda x: x.split(0), ValueError, "split(): the size of a part must be positive, not 0"),
]  # fmt: skip


def message_of(call: Callable[[], Any], kind: type[Exception]) -> str:
    with pytest.raises(kind) as caught:
        call()
    assert isinstance(caught.value, MspcError)
    return caught.value.message


@pytest.mark.parametrize(("function", "kind", "message"), WRONG, ids=lambda v: v if isinstance(v, str) else "")
def test_an_argument_that_is_not_taken(function: Callable[[Any], Any], kind: type[Exception], message: str) -> None:
    assert message_of(lambda: function(X), kind) == message
    assert message_of(lambda: trace(function, [X]), kind) == message


def test_a_number_that_the_element_type_has_not() -> None:
    def beside(x: Any) -> Any:
        return x + 300

    assert message_of(lambda: beside(BYTES), ValueError) == "300 is no number of UInt8"
    assert message_of(lambda: trace(beside, [BYTES]), ValueError) == "300 is no number of UInt8"


def test_an_index_outside_is_no_traceback() -> None:
    places = Tensor(np.array([7], np.int32))
    message = message_of(lambda: ops.gather(X, places, 1), ValueError)
    assert message == "Gather: index 7 is out of bounds for axis 1 with size 3"
