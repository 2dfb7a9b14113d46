"""Numbers of few bits and products with them: against NumPy, PyTorch's fake quantisation, and one device."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mspc as ms
from mspc import Tensor, ops
from mspc.commands.compile import CompileOptions
from mspc.commands.verify import verify_target
from mspc.ir.diagnostics import MspcError
from tests.compiler.test_operator_strategies import HEAD, compiled

RANDOM = np.random.default_rng(5)
SCALE, OFFSET = np.array([0.5, 2, 0.25, 3], np.float32), np.array([1, -2, 0.5, 7], np.float32)
X = RANDOM.normal(0, 30, (6, 4)).astype(np.float32)
WHOLE = RANDOM.integers(-128, 128, (6, 4), np.int8)


def tensors(*arrays: Any) -> list[Any]:
    return [None if array is None else Tensor(array) for array in arrays]


@pytest.mark.parametrize(("mode", "rounded"), [("Round", np.rint), ("Floor", np.floor), ("Ceil", np.ceil),
                                               ("Trunc", np.trunc)])  # fmt: skip
def test_numbers_are_rounded_to_eight_bits(mode: str, rounded: Any) -> None:
    found = ops.Quant(2.5, -1.0, True, mode)(Tensor(X)).asnumpy()
    assert found.dtype == np.int8
    assert (found == np.clip(rounded(X * np.float32(2.5) * np.float32(2.5) - 1), -128, 127)).all()
    by_tensors = ops.QuantV2()(*tensors(X, SCALE, OFFSET), False, mode).asnumpy()
    assert (by_tensors == np.clip(rounded(X * SCALE + OFFSET), -128, 127)).all()


def test_numbers_of_eight_bits_are_read() -> None:
    assert (ops.AntiQuant()(*tensors(WHOLE, SCALE, OFFSET)).asnumpy() == (SCALE * (WHOLE + OFFSET))).all()
    wide = WHOLE.astype(np.int32)
    assert (ops.Dequant(relu_flag=True)(*tensors(wide, SCALE)).asnumpy() == np.maximum(wide * SCALE, 0)).all()
    packed = SCALE.view(np.uint32).astype(np.uint64)
    assert (ops.Dequant()(*tensors(wide, packed)).asnumpy() == wide * SCALE).all()


@pytest.mark.parametrize("channel_axis", [None, 0, 1])
def test_fake_quantisation_equals_pytorch(channel_axis: int | None) -> None:
    torch = pytest.importorskip("torch")
    count = 1 if channel_axis is None else X.shape[channel_axis]
    low, high = -RANDOM.uniform(20, 30, count).astype(np.float32), RANDOM.uniform(20, 30, count).astype(np.float32)
    step = (high - low) / 255
    zero = np.rint(-low / step)
    x = torch.tensor(X, requires_grad=True)
    if channel_axis is None:
        theirs = torch.fake_quantize_per_tensor_affine(x, float(step[0]), int(zero[0]), 0, 255)
    else:
        theirs = torch.fake_quantize_per_channel_affine(x, torch.tensor(step), torch.tensor(zero), channel_axis, 0, 255)
    op = ops.FakeQuantPerLayer() if channel_axis is None else ops.FakeQuantPerChannel(channel_axis=channel_axis)
    np.testing.assert_allclose(op(*tensors(X, low, high)).asnumpy(), theirs.detach().numpy(), atol=1e-5)
    gradient = ops.grad(lambda a: op(a, *tensors(low, high)).sum())(Tensor(X))
    theirs.sum().backward()
    assert (gradient.asnumpy() == x.grad.numpy()).all()


def test_products_of_integers_are_summed_as_integers() -> None:
    left, right = RANDOM.integers(-128, 128, (3, 400), np.int8), RANDOM.integers(-128, 128, (400, 4), np.int8)
    bias = np.array([1, -5, 100, 7], np.int32)
    sums = left.astype(np.int64) @ right.astype(np.int64) + bias
    turned = ops.QuantBatchMatmul(transpose_x2=True, dtype=ms.float32)
    found = turned(*tensors(left, right.T.copy(), SCALE, OFFSET, bias))
    assert (found.asnumpy() == sums.astype(np.float32) * SCALE + OFFSET).all()
    small = np.full(1, 1e-4, np.float32)
    eight = ops.QuantBatchMatmul(dtype=ms.int8)(*tensors(left, right, small)).asnumpy()
    assert (eight == np.clip(np.rint((sums - bias) * small), -128, 127)).all()


@pytest.mark.parametrize(("shape", "transposed"), [((4,), False), ((1,), True), ((3, 4), False), ((4, 3), True)])
def test_a_weight_is_read_before_the_product(shape: tuple[int, ...], transposed: bool) -> None:
    x = RANDOM.normal(size=(5, 6)).astype(np.float32)
    scale, offset = RANDOM.normal(size=(2, *shape)).astype(np.float32)

    def spread(values: Any) -> Any:
        if values.ndim < 2:
            return values
        return np.repeat(values, 2, axis=1).T if transposed else np.repeat(values, 2, axis=0)

    expected = x @ (spread(scale) * (WHOLE + spread(offset))) + OFFSET
    op = ops.WeightQuantBatchMatmul(transpose_weight=transposed)
    weight = WHOLE.T.copy() if transposed else WHOLE
    found = op(*tensors(x, weight, scale, offset, None, None, OFFSET)).asnumpy()
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-4)


def test_every_expert_has_layers_of_its_own() -> None:
    x, first, second = (RANDOM.normal(size=s).astype(np.float32) for s in ((5, 3), (2, 3, 4), (2, 4, 6)))
    bias, last = RANDOM.normal(size=(2, 4)).astype(np.float32), RANDOM.normal(size=(2, 6)).astype(np.float32)
    found = ops.FFN("relu", 1)(*tensors(x, first, second, np.array([2, 3]), bias, last)).asnumpy()
    rows = [0, 0, 1, 1, 1]
    expected = [np.maximum(x[i] @ first[e] + bias[e], 0) @ second[e] + last[e] for i, e in enumerate(rows)]
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    alone = ops.FFN()(*tensors(x, first[0], second[0])).asnumpy()
    middle = x @ first[0]
    np.testing.assert_allclose(alone, middle / (1 + np.exp(-1.702 * middle)) @ second[0], rtol=1e-5, atol=1e-5)


def test_rows_of_integers_go_through_experts_layers() -> None:
    x, first, second = (RANDOM.integers(-9, 9, size, np.int8) for size in ((5, 8), (3, 8, 6), (3, 6, 4)))
    bias, last = (RANDOM.integers(-99, 99, size).astype(np.int32) for size in ((3, 6), (3, 4)))
    scale, offset = np.array([0.5, 2, 1.5], np.float16), np.array([-1, 0, 2], np.float16)
    reads = [RANDOM.uniform(0.01, 0.1, size).astype(np.float32) for size in ((3, 6), (3, 4))]
    expected = np.zeros((5, 4))
    for i, e in enumerate([0, 0, 2, 2]):  # nobody computes the last row
        middle = np.maximum((x[i].astype(int) @ first[e].astype(int) + bias[e]) * reads[0][e], 0)
        rounded = np.clip(np.rint(middle * np.float32(scale[e]) + np.float32(offset[e])), -128, 127)
        expected[i] = (rounded @ second[e].astype(int) + last[e]) * reads[1][e]
    packed = [read.view(np.uint32).astype(np.uint64) for read in reads]
    rest = (np.array([2, 0, 2]), bias, last, scale, offset)
    for read in (reads, packed):
        found = ops.FFN("relu", 1)(*tensors(x, first, second, *rest, *read)).asnumpy()
        assert found.dtype == np.float16
        np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-3)


NETWORK = """
def whole(*shape):
    return Tensor(random.integers(-9, 9, shape), ms.int8)
class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.op, self.rest = {made}, [{operands}]
    def construct(self, x):
        return self.op(x, *self.rest)
{call}({x})
"""
GRADIENT = "C.GradOperation(get_all=True)(Net())"
EXPERTS = "tensor(2, 16, 8), tensor(2, 8, 4), Tensor([3, 5], ms.int64), tensor(2, 8), tensor(2, 4)"
NETWORKS = {
    "integers whose sums are sharded": (
        "P.QuantBatchMatmul(dtype=ms.float32).shard(((2, 4), (4, 1), (1,), (1,), (1,)))",
        "whole(16, 8), tensor(8), tensor(8), Tensor(np.arange(8), ms.int32)", "Net()", "whole(4, 16)",
    ),
    "a weight whose columns are sharded": (
        "P.WeightQuantBatchMatmul(True).shard(((1, 2), (1, 4), (1, 4), (1, 4), (4,)))",
        "whole(2, 8), tensor(1, 8), tensor(1, 8), None, None, tensor(8)", GRADIENT, "tensor(2, 4)",
    ),
    "experts": (
        "P.FFN('gelu', 1).shard(((2, 1), (1, 1, 4), (1, 4, 1), (1,), (1, 4), (1, 1)))", EXPERTS, GRADIENT,
        "tensor(8, 16)",
    ),
    "experts of integers": (
        "P.FFN('relu', 1).shard(((2, 1), (1, 1, 4), (1, 4, 1), (1,), (1, 4), (1, 1), (1,), (1,), (1, 4), (1, 1)))",
        "whole(2, 16, 8), whole(2, 8, 4), Tensor([3, 5], ms.int64), Tensor(np.ones((2, 8)), ms.int32), "
        "Tensor(np.ones((2, 4)), ms.int32), tensor(2), tensor(2), tensor(2, 8), tensor(2, 4)", "Net()", "whole(8, 16)",
    ),
    "rows of more dimensions": (
        "P.FFN().shard(((2, 1, 1), (1, 4), (4, 1)))", "tensor(16, 8), tensor(8, 4)", GRADIENT, "tensor(4, 3, 16)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", NETWORKS)
def test_ranks_equal_one_device(name: str, tmp_path: Path) -> None:
    made, operands, call, x = NETWORKS[name]
    script = tmp_path / "net.py"
    script.write_text(HEAD + NETWORK.format(made=made, operands=operands, call=call, x=x))
    verify_target(str(script), CompileOptions(), seed=1)


REFUSED = {
    "P.FFN('swish').shard(None)|tensor(16, 8), tensor(8, 4)|tensor(8, 16)":
        "FFN 'op': activation is 'swish', not one of fastgelu, gelu, relu, silu",
    "P.FFN()|tensor(16, 8), tensor(8, 4), None, None, None, tensor(8)|tensor(8, 16)":
        "FFN 'op': scale must be None where x is Float32, not Int8",
    "P.FFN()|whole(16, 8), whole(8, 4), None, None, None, tensor(1)|whole(8, 16)":
        "FFN 'op': x is Int8, which needs deq_scale1, and that is None",
    "P.FFN().shard(((2, 1), (1, 4)))|tensor(16, 8), tensor(8, 4)|tensor(8, 16)":
        "FFN: the strategy ((2, 1), (1, 4)) does not fit operands of shapes (8, 16), (16, 8), (8, 4)",
    "P.QuantBatchMatmul()|tensor(16, 8), tensor(8)|whole(8, 16)":
        "QuantBatchMatmul 'op': x2 is Float32, not Int8",
    "P.Quant(1.0, 0.0, False, 'Up')||tensor(8, 16)":
        "Quant 'op': the rounding mode is 'Up', not one of Round, Floor, Ceil, Trunc",
    "P.FakeQuantPerLayer(quant_delay=3)|tensor(1), tensor(1)|tensor(8, 16)":
        "FakeQuantPerLayer 'op': quant_delay is 3, not 0; steps are not counted here",
}  # fmt: skip


@pytest.mark.parametrize(("case", "message"), REFUSED.items())
def test_what_does_not_fit_is_refused(case: str, message: str, tmp_path: Path) -> None:
    made, operands, x = case.split("|")
    with pytest.raises(MspcError) as caught:
        compiled(tmp_path, NETWORK.format(made=made, operands=operands, call="Net()", x=x))
    assert message in str(caught.value)
