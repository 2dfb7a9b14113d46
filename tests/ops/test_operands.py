"""Operands and arguments that do not fit, each with its exact message; calls that pass attributes."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from mspc import Tensor, float32, mint, nn, ops
from mspc.ops.math.arithmetic import Add, AddN, Div, LogicalAnd, Mul, Select
from mspc.ops.math.matmul import BatchMatMul, BiasAdd, MatMul
from mspc.ops.tensor.creation import Fill, LinSpaceBetween, Range
from mspc.ops.tensor.embedding import Gather, OneHot
from mspc.ops.tensor.moving import Concat, Split, Tile, Transpose
from mspc.ops.tensor.reshape import BroadcastTo, Cast, Flatten, ReduceSum, Reshape, Squeeze
from mspc.ops.tensor.selection import RepeatInterleaveTensor, TopK
from tests.errors import error_of
from tests.graphs import FLOAT16, FLOAT32, INT32, Builder, Graph, MspcError, Op, Parameter, TensorType
from tests.operators import ApplyMomentum, Dropout, LayerNorm, PReLU, ReduceMean, Softmax, Sqrt, StridedSlice


def tensor(*shape: int, dtype: Any = FLOAT32) -> TensorType:
    return TensorType(dtype, shape)


def message(op: Op, *types: TensorType) -> str:
    return error_of(op.infer, *types).message


# Messages ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("op", "types", "text"),
    [
        (MatMul(), (tensor(8, 16), tensor(8, 16)),
         "MatMul: dimension 0 of input 1 is 8, but dimension 1 of input 0 says 16"),
        (MatMul(), (tensor(8, 16),), "MatMul takes 2 tensors, not 1"),
        (MatMul(), (tensor(2, 8, 16), tensor(16, 8)),
         "MatMul needs 2 dimensions in input 0, whose shape is (2, 8, 16)"),
        (BatchMatMul(), (tensor(16), tensor(16, 8)),
         "BatchMatMul needs at least 2 dimensions in input 0, whose shape is (16,)"),
        (MatMul(), (tensor(8, 16), tensor(16, 8, dtype=FLOAT16)), "MatMul: input 0 is Float32 and input 1 is Float16"),
        (Add(), (tensor(8, 16), tensor(8),), "Add: dimension 0 of input 1 is 8, but dimension 1 of input 0 says 16"),
        (Add(), (tensor(8), tensor(8, dtype=INT32)), "Add: input 0 is Float32 and input 1 is Int32"),
        (Div(), (tensor(8, dtype=INT32), tensor(8, dtype=INT32)), "Div: input 0 is Int32, not a floating-point tensor"),
        (Sqrt(), (tensor(8, dtype=INT32),), "Sqrt: input 0 is Int32, not a floating-point tensor"),
        (LogicalAnd(), (tensor(8), tensor(8)), "LogicalAnd: input 0 is Float32, not Bool"),
        (Select(), (tensor(8), tensor(8), tensor(8)), "Select: input 0 is Float32, not Bool"),
        (ReduceSum(axis=(2,)), (tensor(8, 16),), "ReduceSum: axis 2 is out of range for 2 dimensions"),
        (ReduceSum(axis=(1, -1)), (tensor(8, 16),), "ReduceSum: axis (1, -1) names a dimension twice"),
        (Reshape((7, -1)), (tensor(8, 16),),
         "Reshape: shape (7, -1) needs a multiple of 7 elements, input 0 of shape (8, 16) has 128"),
        (Reshape((8, 8)), (tensor(8, 16),),
         "Reshape: shape (8, 8) needs 64 elements, input 0 of shape (8, 16) has 128"),
        (Reshape((-1, -1)), (tensor(8),), "Reshape: shape (-1, -1) may hold one -1 and no other negative number"),
        (Transpose((0, 0)), (tensor(8, 16),),
         "Transpose: perm (0, 0) is no permutation of the 2 dimensions of input 0"),
        (Squeeze(1), (tensor(8, 16),), "Squeeze: dimension 1 of input 0 is 16, not 1"),
        (Flatten(), (tensor(),), "Flatten: input 0 is a scalar, which has no dimension to keep"),
        (BroadcastTo((8,)), (tensor(8, 1),), "BroadcastTo: input 0 of shape (8, 1) has more dimensions than (8,)"),
        (BroadcastTo((8, 3)), (tensor(8, 2),),
         "BroadcastTo: dimension 1 of input 0 is 2, which does not broadcast to 3"),
        (Split(1, 3), (tensor(8, 16),), "Split: dimension 1 of input 0 is 16, which does not split into 3 equal parts"),
        (Concat(2), (tensor(8, 16), tensor(8, 16)), "Concat: axis 2 is out of range for 2 dimensions"),
        (Concat(0), (tensor(8, 16), tensor(8)), "Concat needs 2 dimensions in input 1, whose shape is (8,)"),
        (Concat(0), (tensor(8, 16), tensor(8, 4)),
         "Concat: dimension 1 of input 1 is 4, but dimension 1 of input 0 says 16"),
        (Concat(0), (), "Concat needs at least one tensor"),
        (Tile((0,)), (tensor(8),), "Tile: multiples (0,) must be positive"),
        (StridedSlice(begin=(9,), end=(10,), strides=(1,)), (tensor(8),),
         "StridedSlice: the slice of dimension 0 of size 8 is empty: 9:10:1"),
        (StridedSlice(begin=(8,), end=(9,), strides=(1,), shrink_axis_mask=1), (tensor(8),),
         "StridedSlice: index 8 is out of range for dimension 0 of size 8"),
        (StridedSlice(begin=(0,), end=(8,), strides=(0,)), (tensor(8),),
         "StridedSlice: the stride of dimension 0 is 0"),
        (StridedSlice(begin=(0, 0), end=(1, 1), strides=(1, 1)), (tensor(8),),
         "StridedSlice: 2 slices were given for a tensor of shape (8,)"),
        (StridedSlice(begin=(0,), end=(1, 1), strides=(1, 1)), (tensor(8),),
         "StridedSlice: begin (0,), end (1, 1) and strides (1, 1) differ in length"),
        (Gather(), (tensor(8, 16), tensor(8)), "Gather: input 1 is Float32, not an integer tensor"),
        (OneHot(depth=8), (tensor(8), tensor(), tensor()), "OneHot: input 0 is Float32, not an integer tensor"),
        (Softmax(axis=2), (tensor(8, 16),), "Softmax: axis 2 is out of range for 2 dimensions"),
        (BiasAdd("NWHC"), (tensor(8, 16), tensor(16)), "BiasAdd: data_format is 'NWHC', not 'NCHW', 'NHWC' or 'NCDHW'"),
        (PReLU(), (tensor(8, 16), tensor(4, 4)),
         "PReLU needs one dimension in input 1 and at least one in input 0; the shapes are " "(8, 16) and (4, 4)"),
        (ApplyMomentum(), (tensor(8), tensor(8), tensor(1), tensor(8), tensor()),
         "ApplyMomentum: input 2 (learning_rate) has shape (1,), not that of a scalar"),
        (ApplyMomentum(), (tensor(8), tensor(8), tensor(), tensor(4), tensor()),
         "ApplyMomentum: input 3 (gradient) has shape (4,), the parameter has (8,)"),
        (Dropout(keep_prob=0.0), (tensor(8),), "Dropout: keep_prob is 0.0, not above 0 and at most 1"),
        (TopK(k=9), (tensor(8),), "TopK: k is 9, not 1 to 8, the last dimension of input 0"),
        (Range(delta=0), (), "Range: delta must not be 0"),
        (RepeatInterleaveTensor((1, 2), 0), (tensor(3, 2),),
         "RepeatInterleaveTensor: repeats (1, 2) are not 3 numbers from 0 on, as dimension 0 of input 0 needs"),
        (RepeatInterleaveTensor((1, -2)), (tensor(2),),
         "RepeatInterleaveTensor: repeats (1, -2) are not 2 numbers from 0 on, as input 0 needs"),
        (LinSpaceBetween(0), (tensor(), tensor()), "LinSpace: num is 0, not at least 1"),
        (LinSpaceBetween(4), (tensor(), tensor(2)),
         "LinSpace: input 1 is <Tensor[Float32], (2)>, not a floating-point scalar"),
        (Range(limit=-3), (), "Range: from 0 to -3 by 1 there are 0 numbers, not 1 to 1000000"),
        (LayerNorm(), (tensor(8, 16), tensor(8), tensor(8)),
         "LayerNorm: dimension 0 of input 1 is 8, but dimension 1 of input 0 says 16"),
    ],
)  # fmt: skip
def test_wrong_operands_are_named(op: Op, types: Any, text: str) -> None:
    assert message(op, *types) == text


def test_tuple_in_place_of_a_tensor_is_named() -> None:
    graph = Graph("g")
    b = Builder(graph)
    parts = b.emit(Split(0, 2), Parameter("x", tensor(8, 4)))
    with pytest.raises(MspcError, match=r"Mul: input 0 is <Tuple.*>, not a tensor"):
        b.emit(Mul(), parts, parts)


# Calls ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("op", "args", "made"),
    [
        (ReduceSum(keep_dims=True), ("x", -1), ReduceSum(True, (-1,))),
        (ReduceSum(), ("x", None), ReduceSum(axis=())),
        (ReduceMean(), ("x",), ReduceMean()),
        (Reshape(), ("x", [8, -1]), Reshape((8, -1))),
        (Transpose(), ("x", (1, 0)), Transpose((1, 0))),
        (Cast(), ("x", "float16"), Cast(dst_type=FLOAT16)),
        (Cast(), ("x", np.int32), Cast(dst_type=INT32)),
        (
            StridedSlice(end_mask=1),
            ("x", (0,), (4,), (1,)),
            StridedSlice(end_mask=1, begin=(0,), end=(4,), strides=(1,)),
        ),
        (StridedSlice(), ("x", (0, 1), (4, 2)), StridedSlice(begin=(0, 1), end=(4, 2), strides=(1, 1))),
        (Gather(), ("x", "ids", 1), Gather(axis=1)),
        (OneHot(), ("ids", 8, "on", "off"), OneHot(depth=8)),
        (Tile(), ("x", (2, 1)), Tile((2, 1))),
        (Fill(), (FLOAT32, (2, 3), 1.0), Fill(FLOAT32, (2, 3), 1.0)),
        (Range(), (0, 4, 1), Range(limit=4)),
        (Range(), (0, 4, 0.5), Range(limit=4, delta=0.5, dtype=FLOAT32)),
    ],
)
def test_call_takes_attributes(op: Op, args: Any, made: Op) -> None:
    found, operands = op.call(*args)
    assert found == made
    assert all(isinstance(operand, str) for operand in operands)


def test_sequences_are_taken_apart() -> None:
    assert Concat(1).call(("a", "b")) == (Concat(1), ("a", "b"))
    assert Concat(1).call("a", "b") == (Concat(1), ("a", "b"))
    assert AddN().call(["a", "b", "c"]) == (AddN(), ("a", "b", "c"))


@pytest.mark.parametrize(
    ("op", "args", "text"),
    [
        (Reshape(), ("x",), "Reshape takes 2 arguments (1 tensor and shape), not 1"),
        (Reshape(), ("x", "8"), "Reshape: shape must be integers known at compile time, not '8'"),
        (Reshape(), ("x", (8, 2.5)), "Reshape: shape[1] must be an integer known at compile time, not 2.5"),
        (ReduceSum(), ("x", True), "ReduceSum: axis must be integers known at compile time, not True"),
        (Cast(), ("x", "float33"), "Cast: dtype must be an element type, not 'float33'"),
        (
            StridedSlice(),
            ("x", (0,)),
            "StridedSlice takes 3 to 4 arguments (1 tensor and begin, end, strides), not 2",
        ),
        (OneHot(), ("x", 8), "OneHot takes 4 arguments (indices, depth, on_value, off_value), not 2"),
        (Fill(), (FLOAT32, (2,), None), "Fill: value must be a number known at compile time, not None"),
    ],
)
def test_wrong_calls_are_named(op: Op, args: Any, text: str) -> None:
    assert error_of(op.call, *args).message == text


def test_functions_of_operators_take_their_arguments_by_name() -> None:
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    tensor = Tensor(x)
    assert ops.reshape(tensor, shape=(4, 3)).shape == ops.reshape(input=tensor, shape=(4, -1)).shape == (4, 3)
    np.testing.assert_allclose(ops.fft(tensor, dim=0).asnumpy(), np.fft.fft(x, axis=0), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(ops.rfft(tensor, norm="ortho").asnumpy(), np.fft.rfft(x, norm="ortho"), rtol=1e-5)
    assert tensor.isclose(tensor + 1, atol=2).asnumpy().all()
    assert not tensor.isclose(tensor + 1).asnumpy().any()
    assert ops.nan_to_num(Tensor(np.array([np.inf, 1], np.float32)), posinf=7.0).asnumpy().tolist() == [7, 1]
    assert ops.unsorted_segment_sum(tensor, segment_ids=Tensor([0, 1, 0]), num_segments=2).shape == (2, 4)
    np.testing.assert_array_equal(ops.maximum(input=tensor, other=tensor.multiply(value=2.0)).asnumpy(), 2 * x)
    for call in (lambda: ops.fft(tensor, bogus=1), lambda: ops.reshape(shape=(4, 3)), lambda: ops.add(tensor, z=1)):
        with pytest.raises(TypeError, match=r"has no operand of this name, or has it by position: (bogus|z)|shape"):
            call()


X = Tensor(np.ones((2, 3), np.float32))
IDS = Tensor(np.array([0, 1], np.int32))
CASES: dict[str, tuple[Callable[[], Any], str]] = {
    "zeros": (lambda: ops.zeros((-1, 3)), "Fill: shape (-1, 3) has a negative size"),
    "zeros of an int": (lambda: ops.zeros(-3), "Fill: shape (-3,) has a negative size"),
    "ones": (lambda: ops.ones((3, -1)), "Fill: shape (3, -1) has a negative size"),
    "full": (lambda: ops.full((-2,), 1.0), "Fill: shape (-2,) has a negative size"),
    "fill": (lambda: ops.fill(float32, (-2,), 1), "Fill: shape (-2,) has a negative size"),
    "Zeros": (lambda: ops.Zeros()((-1, 3), float32), "Zeros: shape (-1, 3) has a negative size"),
    "Ones": (lambda: ops.Ones()((-1, 3), float32), "Ones: shape (-1, 3) has a negative size"),
    "mint": (lambda: mint.zeros((2, -1)), "Fill: shape (2, -1) has a negative size"),
    "eye": (lambda: ops.eye(-1), "Eye: n must not be negative, and is -1"),
    "eye of two": (lambda: ops.eye(3, -2), "Eye: m must not be negative, and is -2"),
    "one_hot": (lambda: ops.one_hot(IDS, -4), "OneHot: depth must not be negative, and is -4"),
    "random": (lambda: ops.UniformReal()((-1, 2)), "UniformReal: shape (-1, 2) has a negative size"),
    "segments": (
        lambda: ops.UnsortedSegmentSum()(X, IDS, -2),
        "UnsortedSegmentSum: num_segments must not be negative, and is -2",
    ),
    "broadcast_to": (
        lambda: ops.broadcast_to(X, (-2, 2, 3)),
        "BroadcastTo: shape (-2, 2, 3) has a negative size, and input 0 has no such dimension",
    ),
    "scatter": (
        lambda: ops.ScatterNd()(Tensor([[0]]), Tensor([1.0]), (-3,)),
        "the result would have the negative size -3 along a dimension",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_negative_sizes_are_named(name):
    call, message = CASES[name]
    error = error_of(call)
    assert error.message == message
    assert isinstance(error, ValueError)


class Net(nn.Cell):
    def construct(self, x: Any) -> Any:
        return x + ops.zeros((-1, 3))


def test_in_a_network_they_name_the_line():
    error = error_of(lambda: Net()(X))
    assert "Fill: shape (-1, 3) has a negative size" in error.render()
    assert "return x + ops.zeros((-1, 3))" in error.render()


def test_a_size_of_zero_is_none_too_few():
    assert ops.zeros((0, 3)).shape == (0, 3)
    assert ops.eye(0, 2).shape == (0, 2)
