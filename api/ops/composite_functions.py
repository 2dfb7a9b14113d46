"""These classes of MindSpore's operators are functions here: made with its fields, called with its tensors."""

from __future__ import annotations

import math
from typing import Any

from mspc.api import ops
from mspc.api.errors import ApiTypeError, ApiValueError
from mspc.api.ops.composite_marks import CompositeMarks
from mspc.ir.types import BOOL, FLOAT32, INT32, dtype_of
from mspc.ops.operator_arguments import describe


class StandardNormal(CompositeMarks):
    """Numbers of the normal distribution with mean 0 and deviation 1, Float32. Called with a shape; with the same seeds
    a run draws the same numbers. Box and Muller 1958."""

    def __init__(self, seed: int = 0, seed2: int = 0) -> None:
        self.radius, self.angle = (ops.UniformReal(seed, seed2 * 2 + i if seed or seed2 else 0) for i in (1, 2))

    def __call__(self, shape: Any) -> Any:
        shape = tuple(shape)
        return ops.sqrt(ops.log(1.0 - self.radius(shape)) * -2.0) * ops.cos(self.angle(shape) * (2.0 * math.pi))


class UniformInt(CompositeMarks):
    """Integers from minval to below maxval, Int32. Called as `UniformInt(seed)(shape, minval, maxval)`."""

    def __init__(self, seed: int = 0, seed2: int = 0) -> None:
        self.uniform = ops.UniformReal(seed, seed2)

    def __call__(self, shape: Any, minval: Any, maxval: Any) -> Any:
        sampled = ops.floor(self.uniform(tuple(shape)) * ops.cast(maxval - minval, FLOAT32))
        return ops.cast(sampled, INT32) + minval


class Meshgrid(CompositeMarks):
    """`ops.meshgrid` of a tuple of vectors. Called as `Meshgrid(indexing="xy")((x, y))`."""

    def __init__(self, indexing: str = "xy") -> None:
        if indexing not in ("xy", "ij"):
            raise ApiValueError(f"Meshgrid: indexing must be 'xy' or 'ij', not {describe(indexing)}")
        self.indexing = indexing

    def __call__(self, inputs: Any) -> Any:
        return ops.meshgrid(*inputs, indexing=self.indexing)


class NLLLoss(CompositeMarks):
    """(the loss of logarithms of probabilities [n, classes], the sum of the labels' weights). Called as
    `NLLLoss(reduction)(logits, labels, weight)`; weight has one number for each class."""

    def __init__(self, reduction: str = "mean", ignore_index: int = -100) -> None:
        self.reduction, self.ignore_index = reduction, ignore_index

    def __call__(self, logits: Any, labels: Any, weight: Any) -> Any:
        counted = ops.cast(ops.not_equal(labels, self.ignore_index), weight.dtype)
        inside = ops.select(ops.equal(labels, self.ignore_index), ops.zeros_like(labels), labels)
        total = ops.reduce_sum(ops.gather(weight, inside, 0) * counted)
        return ops.nll_loss(logits, labels, weight, self.ignore_index, self.reduction), total


class BCEWithLogitsLoss(CompositeMarks):
    """`ops.binary_cross_entropy_with_logits`. Called as `BCEWithLogitsLoss(reduction)(logits, label, weight,
    pos_weight)`."""

    def __init__(self, reduction: str = "mean") -> None:
        self.reduction = reduction

    def __call__(self, predict: Any, target: Any, weight: Any = None, pos_weight: Any = None) -> Any:
        return ops.binary_cross_entropy_with_logits(predict, target, weight, pos_weight, self.reduction)


class ScalarToTensor(CompositeMarks):
    """A number as a tensor without dimensions. Called as `ScalarToTensor()(number, dtype)`."""

    def __call__(self, input_scalar: Any, dtype: Any = FLOAT32) -> Any:
        return ops.scalar_to_array(input_scalar, dtype)


class ScalarToArray(CompositeMarks):
    """A number as a tensor without dimensions, of Float32, Int64 or Bool. Called with the number."""

    def __call__(self, input_scalar: Any) -> Any:
        return ops.scalar_to_array(input_scalar)


class ScalarCast(CompositeMarks):
    """A Python number as another kind of number. Called as `ScalarCast()(number, dtype)`.

    Raises:
        TypeError: it is no number known when the network is compiled.
    """

    def __call__(self, input_scalar: Any, dtype: Any) -> Any:
        if not isinstance(input_scalar, bool | int | float):
            raise ApiTypeError(f"ScalarCast: input_scalar must be a number, not {describe(input_scalar)}")
        kind = dtype_of(dtype)
        return bool(input_scalar) if kind == BOOL else float(input_scalar) if kind.is_float else int(input_scalar)


class ReverseSequence(CompositeMarks):
    """`ops.reverse_sequence`. Called as `ReverseSequence(seq_dim, batch_dim)(x, seq_lengths)`."""

    def __init__(self, seq_dim: int, batch_dim: int = 0) -> None:
        self.seq_dim, self.batch_dim = seq_dim, batch_dim

    def __call__(self, x: Any, seq_lengths: Any) -> Any:
        return ops.reverse_sequence(x, seq_lengths, self.seq_dim, self.batch_dim)


class Einsum(CompositeMarks):
    """`ops.einsum` of a tuple of tensors. Called as `Einsum(equation)((x, y))`."""

    def __init__(self, equation: str) -> None:
        self.equation = equation

    def __call__(self, inputs: Any) -> Any:
        return ops.einsum(self.equation, *inputs)


class Chunk(CompositeMarks):
    """`ops.chunk`: a tensor in parts along a dimension. Called as `Chunk()(input, chunks, dim)`."""

    def __call__(self, input: Any, chunks: int, dim: int = 0) -> Any:
        return ops.chunk(input, chunks, dim)


class Diag(CompositeMarks):
    """`ops.diag`: a matrix with a vector on its diagonal. Called with the vector."""

    def __call__(self, input_x: Any) -> Any:
        return ops.diag(input_x)


class DiagPart(CompositeMarks):
    """`ops.diagonal`: the diagonal of a matrix. Called with the matrix."""

    def __call__(self, input_x: Any) -> Any:
        return ops.diagonal(input_x)


class Scatter(CompositeMarks):
    """Elements of src put, or added with reduce 1, at the places that index names along dim. Called as
    `Scatter()(input, dim, index, src, reduce)`."""

    def __call__(self, input: Any, dim: int, index: Any, src: Any, reduce: int = 0) -> Any:
        if reduce not in (0, 1):
            raise ApiValueError(f"Scatter: reduce must be 0 or 1, not {describe(reduce)}")
        return ops.tensor_scatter_elements(input, index, src, dim, ("none", "add")[reduce])
