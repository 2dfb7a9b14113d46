"""Names that public code of large models uses, each a small stop before."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest

import mspc as ms
from mspc import Parameter, Tensor, nn, ops
from mspc.ir.diagnostics import MspcError
from mspc.mindspore_api import state
from mspc.mindspore_api.ops.primitive import Primitive

X = Tensor(np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], np.float32))


def test_the_place_of_a_generator_moves_on() -> None:
    generator = ms.Generator()
    generator.manual_seed(7)
    assert [int(part.asnumpy()) for part in generator._step(Tensor(12))] == [7, 0]
    seed, place = generator._step(3)
    assert (int(seed.asnumpy()), int(place.asnumpy()), place.shape, place.dtype) == (7, 12, (), ms.int64)
    assert generator.get_state().asnumpy().tolist() == [7, 15]


def test_a_parameter_is_given_a_stage(capsys: pytest.CaptureFixture[str]) -> None:
    parameter = Parameter(X, name="weight")
    for stage, said in ((0, ""), (1, "add_pipeline_stage(1) changes nothing here: there is one pipeline stage")):
        before = state.swap(state.Session())
        parameter.add_pipeline_stage(stage)
        nn.ReLU()(X)
        state.swap(before)
        assert said in (found := capsys.readouterr().err)
        assert bool(found) == bool(said)
    for wrong in ("1", -1):
        with pytest.raises(MspcError):
            parameter.add_pipeline_stage(wrong)


@pytest.mark.parametrize("make", [lambda: nn.Dense(3, 2).offload, lambda: ops.Add()._offload])
def test_what_offload_is_told(make: Any, capsys: pytest.CaptureFixture[str]) -> None:
    for prefetch in ((), ("Auto",), (20,)):
        make()(*prefetch)
    assert capsys.readouterr().err == ""
    for wrong, message in (("CPU", "'Auto'"), (0, "backward_prefetch=0 must be at least 1"), (1.5, "an integer")):
        with pytest.raises(MspcError, match=message):
            make()(wrong)
    assert isinstance(ops.Add()._offload(), Primitive)


def test_uniform_tensors_take_their_operands_by_name() -> None:
    for operator, value in ((ops.Zeros(), 0), (ops.Ones(), 1)):
        for made in (operator(shape=(2, 3), dtype=ms.float16), operator((2, 3), dtype=ms.float16)):
            assert (made.shape, made.dtype) == ((2, 3), ms.float16)
            assert (made.asnumpy() == value).all()
    with pytest.raises(MspcError, match="no operand of this name"):
        ops.Zeros()(shape=(2, 3), kind=ms.float16)


def test_cells_have_the_operator_cast() -> None:
    class Half(nn.Cell):
        def construct(self, x: Any) -> Any:
            return self.cast(x, ms.float16)

    class Own(Half):
        def __init__(self) -> None:
            super().__init__()
            self.cast = ops.Cast()

    for cell in (Half(), Own()):
        assert cell(X).dtype == ms.float16
    assert Half().cast is not Half().cast  # a strategy that one cell sets is not another's


def test_modules_and_ranks_under_other_names() -> None:
    module = importlib.import_module("mspc.mint.distributed.distributed")
    assert module.all_reduce is importlib.import_module("mspc.mint.distributed").all_reduce
    from mspc.parallel import rank_list_for_convert

    assert rank_list_for_convert(3) == [0]
