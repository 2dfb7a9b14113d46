"""These initializers fill matrices and convolutions' weights, or have deviations that depend on the shape."""

from __future__ import annotations

import math
import numbers
from typing import Any

from mspc.api.common.initializers import Initializer, Normal, TruncatedNormal, Uniform, fans, plain
from mspc.api.errors import ApiTypeError, ApiValueError
from mspc.ir.initial_value import Diagonal, DiagonalKernel, Distribution, OrthogonalMatrix, SparseMatrix

TRUNCATED_STD = 0.87962566103423978
"""The deviation of a standard normal distribution between -2 and 2."""


class Identity(Initializer):
    """Ones on the diagonal of a matrix."""

    needs_random = False

    def of_shape(self, shape: tuple[int, ...]) -> Initializer:
        if len(shape) != 2:
            raise ApiValueError(f"Identity needs a matrix, not shape {shape}")
        return self

    def distribution(self) -> Distribution | None:
        return Diagonal()


class Orthogonal(Initializer):
    """`gain` times a matrix with orthonormal rows or columns (Saxe et al. 2014); the global matrix is sampled, then
    sharded."""

    def __init__(self, gain: float = 1.0) -> None:
        self.gain = gain

    def of_shape(self, shape: tuple[int, ...]) -> Initializer:
        fans(shape)
        return self

    def distribution(self) -> Distribution | None:
        return OrthogonalMatrix(plain(self.gain))


class Dirac(Initializer):
    """A weight [out, in, sizes...] of a convolution that hands its channels on, in each of `groups` parts of the first
    dimension: ones at the middle of the kernel where channels have one number, zeros elsewhere.

    Raises:
        TypeError, ValueError: groups is no positive integer; when values are made, that there are not 3 to 5
        dimensions, or that groups do not divide the first.
    """

    needs_random = False

    def __init__(self, groups: int = 1) -> None:
        if isinstance(groups, bool) or not isinstance(groups, int):
            raise ApiTypeError(f"Dirac: groups must be an integer, not {groups!r}")
        if groups < 1:
            raise ApiValueError(f"Dirac: groups {groups} must be at least 1")
        self.groups = groups

    def of_shape(self, shape: tuple[int, ...]) -> Initializer:
        if not 3 <= len(shape) <= 5:
            raise ApiValueError(f"Dirac needs the weight of a convolution, with 3 to 5 dimensions, not shape {shape}")
        if shape[0] % self.groups:
            raise ApiValueError(f"Dirac: {self.groups} groups do not divide the first dimension of shape {shape}")
        return self

    def distribution(self) -> Distribution | None:
        return DiagonalKernel(self.groups)


class Sparse(Initializer):
    """A matrix of deviation `sigma`, with zeros in a share `sparsity` of every column, rounded up. The global
    matrix is sampled, then sharded.

    Raises:
        ValueError: sparsity is not from 0 to 1; when values are made, that the tensor is no matrix.
    """

    def __init__(self, sparsity: float, sigma: float = 0.01) -> None:
        if isinstance(sparsity, bool) or not isinstance(sparsity, numbers.Real) or not 0 <= sparsity <= 1:
            raise ApiValueError(f"Sparse: sparsity {sparsity!r} must be a number from 0 to 1")
        self.sparsity = sparsity
        self.sigma = sigma

    def of_shape(self, shape: tuple[int, ...]) -> Initializer:
        if len(shape) != 2:
            raise ApiValueError(f"Sparse needs a matrix, not shape {shape}")
        return self

    def distribution(self) -> Distribution | None:
        return SparseMatrix(plain(self.sparsity), plain(self.sigma))


class VarianceScaling(Initializer):
    """Mean 0 and variance scale / fan, where the fan is that of `mode`: "fan_in", "fan_out" or their mean, "fan_avg".

    distribution: "truncated_normal" (between -2 and 2 deviations of the normal distribution that is truncated),
    "untruncated_normal" or "uniform".

    Raises:
        ValueError: an argument is none of these, or scale is not above 0.
    """

    def __init__(
        self, scale: float = 1.0, mode: str = "fan_in", distribution: str = "truncated_normal"
    ) -> None:
        name = "VarianceScaling"
        if isinstance(scale, bool) or not isinstance(scale, numbers.Real) or not scale > 0:
            raise ApiValueError(f"{name}: scale {scale!r} must be a number above 0")
        if mode not in ("fan_in", "fan_out", "fan_avg"):
            raise ApiValueError(f"{name}: mode {mode!r} is none of 'fan_in', 'fan_out', 'fan_avg'")
        if distribution not in ("uniform", "truncated_normal", "untruncated_normal"):
            known = "'uniform', 'truncated_normal', 'untruncated_normal'"
            raise ApiValueError(f"{name}: distribution {distribution!r} is none of {known}")
        self.scale = scale
        self.mode = mode
        self.kind = distribution

    def of_shape(self, shape: tuple[int, ...]) -> Initializer:
        fan_in, fan_out = fans(shape)
        fan = {"fan_in": fan_in, "fan_out": fan_out, "fan_avg": (fan_in + fan_out) / 2}[self.mode]
        variance: Any = plain(self.scale) / max(1.0, fan)
        if self.kind == "uniform":
            return Uniform(math.sqrt(3 * variance))
        deviation = math.sqrt(variance)
        return Normal(deviation) if self.kind == "untruncated_normal" else TruncatedNormal(deviation / TRUNCATED_STD)
