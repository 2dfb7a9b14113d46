"""Small names that public code imports, against what MindSpore 2.10 gives on a CPU."""

from __future__ import annotations

import importlib
import logging
from typing import Any

import numpy as np
import pytest

import mspc as ms
from mspc import Tensor, nn, ops
from mspc.ir.diagnostics import MspcError

X = Tensor(np.array([[3.0, 4.0], [0.0, 0.0]], np.float32))


def near(found: Tensor, expected: object) -> None:
    np.testing.assert_allclose(found.asnumpy(), np.asarray(expected, np.float32), rtol=1e-5, atol=1e-6)


def test_norms_are_cut() -> None:
    near(ops.clip_by_norm(X, 2.0), [[1.2, 1.6], [0, 0]])
    near(ops.clip_by_norm(X, 10.0), X.asnumpy())
    near(ops.clip_by_norm(X, 2.0, 1.0), [[6 / 7, 8 / 7], [0, 0]])
    near(ops.clip_by_norm([X, X], 2.0, float("inf"))[1], [[1.5, 2.0], [0, 0]])
    with pytest.raises(MspcError, match="error_if_nonfinite=True: contents are not known"):
        ops.clip_by_norm(X, 2.0, error_if_nonfinite=True)
    for axis in (None, 1):
        near(nn.ClipByNorm(axis)(X, Tensor([2.0], ms.float32)), [[1.2, 1.6], [0, 0]])
    gradient = ms.grad(lambda x: nn.ClipByNorm()(x, Tensor([2.0], ms.float32)).sum())
    near(gradient(X * 0), np.ones((2, 2)))


def test_cells_of_arrays() -> None:
    near(nn.OneHot(depth=3)(Tensor([0, 2], ms.int32)), [[1, 0, 0], [0, 0, 1]])
    assert nn.Dense(2, 3, has_bias=False).bias is None


def test_words_of_overflow() -> None:
    near(ops.FloatStatus()(X), [0.0])
    near(ops.FloatStatus()(Tensor([1.0, float("nan")], ms.float32)), [1.0])


def test_operators_of_mint() -> None:
    assert ops.StackExt(dim=1)((X, X)).shape == (2, 2, 2)
    assert ops.MatMulExt()(X[None], X).shape == (1, 2, 2)
    out, mask = ops.DropoutExt()(X, 0.0)
    near(out, X.asnumpy())
    assert mask.shape == X.shape


def test_statements() -> None:
    assert ops.make_range(3) == (0, 1, 2)
    assert ops.make_range(1, 6, 2) == (1, 3, 5)
    assert ops.identity(X) is X
    cell = ops.add_flags(nn.ReLU(), has_effect=True)
    assert cell.get_flags() == {"has_effect": True}
    with pytest.raises(MspcError, match="add_flags takes a Cell or a function, not 1"):
        ops.add_flags(1)


def test_modules_of_training_steps() -> None:
    from mspc.nn.wrap import DistributedGradReducer, TrainOneStepWithLossScaleCell, cell_wrapper, grad_reducer
    from mspc.nn.wrap.loss_scale import _grad_overflow, _grad_scale

    assert grad_reducer.DistributedGradReducer is DistributedGradReducer is nn.DistributedGradReducer
    assert cell_wrapper.TrainOneStepCell is nn.TrainOneStepCell
    assert TrainOneStepWithLossScaleCell is nn.TrainOneStepWithLossScaleCell
    near(ops.HyperMap(ops.partial(_grad_scale, Tensor(2.0, ms.float32)))((X,))[0], X.asnumpy() / 2)
    near(ops.HyperMap(_grad_overflow)((X,))[0], [0.0])


def test_kinds_of_element_types() -> None:
    from mspc.common import dtype as mstype

    assert isinstance(X.dtype, mstype.Float)
    assert not isinstance(X.dtype, mstype.Int)
    assert isinstance(ms.bool_, mstype.Bool)
    assert isinstance(ms.uint8, (mstype.UInt, mstype.Complex))
    assert isinstance(ms.complex64, mstype.number)
    assert [mstype.get_py_obj_dtype(value) for value in (1, X, ms.int8, bool)] == [
        ms.int64, ms.float32, ms.int8, ms.bool_,
    ]  # fmt: skip
    assert ms.is_tensor(X)
    assert ms.mutable(X) is X


def test_rows_of_a_tensor_have_a_kind() -> None:
    scale = ops.MultitypeFuncGraph("scale")
    scale.register("Tensor", "Tensor")(lambda s, grad: "tensor")
    scale.register("Tensor", "RowTensor")(lambda s, grad: "rows")
    assert scale(X, X) == "tensor"
    rows = ms.RowTensor(indices=X, values=X, shape=(4, 2))
    assert scale(X, rows) == "rows"
    assert (rows.dense_shape, rows.dtype) == ((4, 2), X.dtype)


def said(call: object, capsys: pytest.CaptureFixture[str]) -> str:
    from mspc.mindspore_api import state

    before = state.swap(state.Session())
    try:
        call()  # type: ignore[operator]
    finally:
        state.swap(before)
    return capsys.readouterr().err


class Placed(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.active = ops.ReLU().add_pipeline_stage(1)

    def construct(self, x: Any) -> Any:
        return self.active(x)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: ops.Reshape().add_prim_attr("skip_redistribution", True),
            "skip_redistribution=True changes nothing here: tensors are redistributed if layouts differ",
        ),
        (
            lambda: Placed()(X),
            "ReLU.set_stage(1) changes nothing here: there is one pipeline stage",
        ),
        (
            lambda: setattr(net := nn.ReLU(), "pipeline_stage", 2) or net(X),
            "Cell.pipeline_stage = 2 changes nothing here: there is one pipeline stage",
        ),
        (lambda: ops.ScalarSummary()("loss", X), "ScalarSummary changes nothing here: no summary is written"),
        (lambda: ms.mutable((1, 2)), "mutable() changes nothing here: another number, or another length"),
        (lambda: ops.add_flags(lambda x: x, core=True), "add_flags() changes nothing here: flags of functions"),
    ],
)
def test_what_changes_nothing_says_so(call: object, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert message in said(call, capsys)


def test_places_in_a_permutation() -> None:
    assert ops.InvertPermutation()((2, 0, 1)) == (1, 2, 0)
    with pytest.raises(MspcError, match=r"InvertPermutation: \(0, 2\) is no permutation of 0 to 1"):
        ops.InvertPermutation()((0, 2))


def test_methods_give_values_before_their_places() -> None:
    values, places = Tensor([[2, 5, 1, 6], [3, -7, -2, 4]]).argmin_with_value()
    assert (values.asnumpy().tolist(), places.asnumpy().tolist()) == ([2, -7, -2, 4], [0, 1, 1, 1])
    whole, place = Tensor([[1.0, 5.0], [7.0, 2.0]]).argmax_with_value(None, True)
    assert (whole.item(), place.item(), place.dtype, place.shape) == (7.0, 2, ms.int64, ())


def test_element_types_of_what_is_made() -> None:
    assert (Tensor(1 + 2j).dtype, ms.tensor([1 + 1j, 2], ms.complex64).dtype) == (ms.complex128, ms.complex64)
    assert ms.bool == ms.bool_
    assert "bool" not in dir(ms)


def test_images_without_a_batch_are_averaged() -> None:
    image = np.arange(27, dtype=np.float32).reshape(3, 3, 3)
    found = ops.adaptive_avg_pool2d(Tensor(image), (None, 2))
    np.testing.assert_allclose(found.asnumpy(), np.stack([image[..., :2].mean(-1), image[..., 1:].mean(-1)], -1))


def test_an_infinite_gradient_does_not_pass_where_relu_gives_nothing() -> None:
    x = Tensor([-1.0, 1.0, 0.0], ms.float32)
    for activation in (ops.relu, ops.relu6):
        near(ms.grad(lambda x, function=activation: ops.sqrt(function(x)).sum())(x), [0.0, 0.5, 0.0])
    halves = ms.grad(lambda x: ops.log(ops.relu(x)).sum())(x.astype(ms.float16))
    assert halves.asnumpy().tolist() == [0.0, 1.0, 0.0]


def test_floating_point_tensors_alone_are_cast() -> None:
    @ms.jit
    def cast(x: Tensor, places: Tensor) -> Any:
        return ops.functional.mixed_precision_cast(ms.float16, (x, [places, 3, {"x": x}]))

    first, (places, number, rest) = cast(Tensor([1.5]), Tensor([1], ms.int32))
    assert (first.dtype, places.dtype, number, rest["x"].dtype) == (ms.float16, ms.int32, 3, ms.float16)


def test_names_of_modules() -> None:
    assert (
        importlib.import_module("mspc.version").__version__
        == importlib.import_module("mspc.mindspore_api.alias").API_LEVEL
    )
    assert ms.log.logging is logging
    assert ms.nn.Linear is ms.mint.nn.Linear
