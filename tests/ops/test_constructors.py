"""Operators whose constructors MindSpore spells otherwise than their fields stand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mspc import MspcError, Tensor
from mspc.mindspore_api.ops import AvgPool3D, MaxPool3D, NeighborExchange, NeighborExchangeV2

X = Tensor(np.random.default_rng(0).normal(size=(1, 1, 4, 4, 4)).astype(np.float32))


def test_positions_are_those_of_mindspore() -> None:
    for given, named in (
        (MaxPool3D(2, 2, "pad", 1, True, "NCDHW"), MaxPool3D(2, 2, "pad", pad_list=1, ceil_mode=True)),
        (MaxPool3D(2, 2, "valid", 0, None), MaxPool3D(2, 2)),
        (AvgPool3D(2, 2, "pad", 1, False, True, 3), AvgPool3D(2, 2, "pad", pad=1, divisor_override=3)),
        (AvgPool3D(2, 2, "pad", 1), AvgPool3D(2, 2, "pad", 1, count_include_pad=True, divisor_override=0)),
    ):
        np.testing.assert_array_equal(given(X).asnumpy(), named(X).asnumpy())
    assert AvgPool3D(2, 2, "pad", 1, False, False)(X).asnumpy()[0, 0, 0, 0, 0] == X.asnumpy()[0, 0, 0, 0, 0]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: MaxPool3D(2, 2, "pad", 1, pad_list=1), "MaxPool3D got multiple values for argument 'pad_list'"),
        (lambda: MaxPool3D(2, 2, "pad", 1, pad=1), "MaxPool3D got multiple values for argument 'pad'"),
        (lambda: MaxPool3D(1, 1, "pad", 1, True, "NCDHW", 1), "MaxPool3D takes 6 positional arguments, not 7"),
        (lambda: AvgPool3D(window=2), "AvgPool3D got an unexpected keyword argument 'window'"),
        (lambda: NeighborExchange((0,), [1], ([2],))(X),
         "NeighborExchange: send_rank_ids must be a list, not the tuple (0,)"),
        (lambda: NeighborExchange([0], recv_shapes=[[2]])(X),
         "NeighborExchange: recv_shapes must be a tuple, not the list [[2]]"),
        (lambda: NeighborExchangeV2([-1] * 8, (0,) * 4)(X),
         "NeighborExchangeV2: send_lens must be a list, not the tuple (0, 0, 0, 0)"),
        (lambda: AvgPool3D(2, divisor_override=-1)(X),
         "AvgPool3D: divisor_override must be a positive integer, 0 or None, not -1"),
    ],
)  # fmt: skip
def test_wrong_arguments_are_named(make: Any, message: str) -> None:
    with pytest.raises(MspcError) as caught:
        make()
    assert caught.value.message == message
