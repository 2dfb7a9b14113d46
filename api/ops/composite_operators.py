"""The arguments of these classes of MindSpore's operators differ from those of the function of `ops` that they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mspc.api import ops
from mspc.api.errors import ApiTypeError, ApiValueError
from mspc.ir.types import FLOAT32, INT32, INT64, dtype_of
from mspc.ops.operator_arguments import describe


class AccumulateNV2:
    """The sum of a tuple of tensors of one shape. Called with the tuple."""

    def __call__(self, x: Any) -> Any:
        return ops.AddN()(x)


class Bernoulli:
    """1 with probability p, else 0, for every element of x. Called as `Bernoulli(seed)(x, p)`; a negative seed draws
    of the script's."""

    def __init__(self, seed: int = -1, offset: int = 0) -> None:
        self.seed = None if seed < 0 else seed + offset

    def __call__(self, x: Any, p: Any) -> Any:
        return ops.bernoulli(x, p, self.seed)


class Bucketize:
    """How many boundaries each element has reached, Int32. Called with the tensor."""

    def __init__(self, boundaries: Sequence[float]) -> None:
        self.boundaries = boundaries

    def __call__(self, input: Any) -> Any:
        return ops.cast(ops.bucketize(input, self.boundaries, right=True), INT32)


class ConjugateTranspose:
    """A tensor with its dimensions in another order, conjugated. Called as `ConjugateTranspose()(x, perm)`."""

    def __call__(self, x: Any, perm: Any) -> Any:
        turned = ops.transpose(x, perm)
        return ops.conj(turned) if dtype_of(x.dtype).is_complex else turned


class Eps:
    """The least number whose sum with 1 differs from 1, for every element of a tensor of floats. Called with it."""

    def __call__(self, x: Any) -> Any:
        return ops.eps(x)


class EqualCount:
    """How many elements of two tensors of one shape are equal, (1,) of their type. Called with both."""

    def __call__(self, x: Any, y: Any) -> Any:
        return ops.reshape(ops.cast(ops.reduce_sum(ops.cast(ops.equal(x, y), INT32)), x.dtype), (1,))


class EuclideanNorm:
    """sqrt(sum(x^2)) over axes, a tuple of them, all for (). Called as `EuclideanNorm(keep_dims)(x, axes)`."""

    def __init__(self, keep_dims: bool = False) -> None:
        self.keep_dims = keep_dims

    def __call__(self, x: Any, axes: Any) -> Any:
        return ops.sqrt(ops.ReduceSum(self.keep_dims)(x * x, axes))


class FFTWithSize:
    """A Fourier transform of the last signal_ndim dimensions. Called with the tensor.

    inverse: the way back. real: of numbers that are real on the one side, of which the other has the first half where
    it is onesided. signal_sizes: of the real side, where the way back cannot tell them.
    """

    def __init__(
        self, signal_ndim: int, inverse: bool, real: bool, norm: str = "backward", onesided: bool = True,
        signal_sizes: Any = (),
    ) -> None:  # fmt: skip
        if signal_ndim not in (1, 2, 3):
            raise ApiValueError(f"FFTWithSize: signal_ndim must be 1, 2 or 3, not {describe(signal_ndim)}")
        self.axes = tuple(range(-signal_ndim, 0))
        self.inverse, self.real, self.norm, self.onesided = inverse, real, norm, onesided
        self.sizes = tuple(signal_sizes) or None

    def __call__(self, x: Any) -> Any:
        if not (self.real and self.onesided):
            made = (ops.ifftn if self.inverse else ops.fftn)(x, None, self.axes, self.norm)
            return ops.real(made) if self.real and self.inverse else made
        if self.inverse:
            return ops.irfftn(x, self.sizes, self.axes, self.norm)
        return ops.rfftn(x, None, self.axes, self.norm)


class FillDiagonal:
    """A tensor whose diagonal has one value; with wrap it begins again behind every square of a tall matrix. Called
    with the tensor."""

    def __init__(self, fill_value: float, wrap: bool = False) -> None:
        if isinstance(fill_value, bool) or not isinstance(fill_value, int | float):
            raise ApiTypeError(f"FillDiagonal: fill_value must be a number, not {describe(fill_value)}")
        self.fill_value, self.wrap = fill_value, wrap

    def __call__(self, input_x: Any) -> Any:
        return input_x.fill_diagonal(self.fill_value, self.wrap)


class HistogramFixedWidth:
    """How many elements lie in each of nbins parts of [range[0], range[1]], Int32; those outside count in the first or
    the last. Called as `HistogramFixedWidth(nbins)(x, range)`."""

    def __init__(self, nbins: int, dtype: str = "int32") -> None:
        if dtype not in ("int32", "int64"):
            raise ApiValueError(f"HistogramFixedWidth: dtype must be 'int32' or 'int64', not {describe(dtype)}")
        if isinstance(nbins, bool) or not isinstance(nbins, int) or nbins < 1:
            raise ApiValueError(f"HistogramFixedWidth: nbins must be an integer of at least 1, not {describe(nbins)}")
        self.nbins, self.kind = nbins, INT32 if dtype == "int32" else INT64

    def __call__(self, x: Any, range: Any) -> Any:
        first, last = ops.cast(range[0], FLOAT32), ops.cast(range[1], FLOAT32)
        part = ops.floor((ops.cast(ops.reshape(x, (-1,)), FLOAT32) - first) * self.nbins / (last - first))
        found = ops.one_hot(ops.cast(ops.clamp(part, 0, self.nbins - 1), INT32), self.nbins)
        return ops.cast(ops.reduce_sum(found, 0), self.kind)


class IdentityN:
    """The tensors that it is given."""

    def __call__(self, x: Any) -> Any:
        return tuple(x)


class InplaceUpdateV2:
    """x with the rows at indices replaced. Called as `InplaceUpdateV2()(x, indices, v)`."""

    def __call__(self, x: Any, indices: Any, v: Any) -> Any:
        return ops.inplace_update(x, v, indices)


class LogSpace:
    """`steps` powers of base, whose exponents go from start to end. Called as `LogSpace(steps, base, dtype)(start,
    end)`."""

    def __init__(self, steps: int = 10, base: int = 10, dtype: Any = FLOAT32) -> None:
        if isinstance(steps, bool) or not isinstance(steps, int) or steps < 0:
            raise ApiValueError(f"LogSpace: steps must be an integer of at least 0, not {describe(steps)}")
        self.steps, self.base, self.dtype = steps, base, dtype

    def __call__(self, start: Any, end: Any) -> Any:
        step = (end - start) / max(self.steps - 1, 1)
        return ops.cast(ops.pow(float(self.base), start + ops.arange(self.steps) * step), self.dtype)


class Logit:
    """`ops.logit`: log(x / (1 - x)), with x clipped to [eps, 1 - eps] where eps is not negative. Called with x."""

    def __init__(self, eps: float = -1.0) -> None:
        self.eps = None if eps < 0 else eps

    def __call__(self, input: Any) -> Any:
        return ops.logit(input, self.eps)


class SearchSorted:
    """`ops.searchsorted`. Called as `SearchSorted(dtype, right)(sorted_sequence, values, sorter)`."""

    def __init__(self, dtype: Any = INT64, right: bool = False) -> None:
        if dtype_of(dtype) not in (INT32, INT64):
            raise ApiTypeError(f"SearchSorted: dtype must be int32 or int64, not {describe(dtype)}")
        self.is_short, self.right = dtype_of(dtype) == INT32, right

    def __call__(self, sorted_sequence: Any, values: Any, sorter: Any = None) -> Any:
        return ops.searchsorted(
            sorted_sequence, values, out_int32=self.is_short, right=self.right, sorter=sorter
        )


class LowerBound(SearchSorted):
    """The first place in each sorted row at which a value may be inserted. Called as `LowerBound(out_type)(sorted_x,
    values)`."""

    def __init__(self, out_type: Any = INT32) -> None:
        super().__init__(out_type)


class UpperBound(SearchSorted):
    """The last place in each sorted row at which a value may be inserted. Called as `UpperBound(out_type)(sorted_x,
    values)`."""

    def __init__(self, out_type: Any = INT32) -> None:
        super().__init__(out_type, True)


class Median:
    """(the median along an axis, its place), of all elements with global_median. Called with the tensor.

    Raises:
        ValueError: ignore_nan is True.
    """

    def __init__(
        self, global_median: bool = False, axis: int = 0, keep_dims: bool = False, ignore_nan: bool = False
    ) -> None:
        if ignore_nan:
            raise ApiValueError("Median: ignore_nan=True is not supported", ["ops.nanmedian leaves NaNs out"])
        self.global_median, self.axis, self.keep_dims = global_median, axis, keep_dims

    def __call__(self, x: Any) -> Any:
        if self.global_median:
            return ops.median(ops.reshape(x, (-1,)), 0)
        return ops.median(x, self.axis, self.keep_dims)


class MultiMarginLoss:
    """`ops.multi_margin_loss`. Called as `MultiMarginLoss(p, margin, reduction)(x, target, weight)`."""

    def __init__(self, p: int = 1, margin: float = 1.0, reduction: str = "mean") -> None:
        self.p, self.margin, self.reduction = p, margin, reduction

    def __call__(self, x: Any, target: Any, weight: Any = None) -> Any:
        return ops.multi_margin_loss(x, target, self.p, self.margin, weight, self.reduction)


class Multinomial:
    """`ops.multinomial`, sampled with replacement. Called as `Multinomial(seed)(x, num_samples)`."""

    def __init__(self, seed: int = 0, seed2: int = 0, dtype: Any = INT32) -> None:
        self.seed, self.dtype = (seed or seed2) or None, dtype

    def __call__(self, x: Any, num_samples: int) -> Any:
        return ops.cast(ops.multinomial(x, num_samples, True, self.seed), self.dtype)


class ParallelConcat:
    """Tensors behind each other along the first dimension. Called with a tuple of them."""

    def __call__(self, values: Any) -> Any:
        return ops.concat(values, 0)


class RandomGamma:
    """`ops.random_gamma`. Called as `RandomGamma(seed)(shape, alpha)`."""

    def __init__(self, seed: int = 0, seed2: int = 0) -> None:
        self.seed = (seed or seed2) or None

    def __call__(self, shape: Any, alpha: Any) -> Any:
        return ops.random_gamma(shape, alpha, self.seed)


class RandomShuffle:
    """`ops.shuffle`: the rows of a tensor in another order. Called with the tensor."""

    def __init__(self, seed: int = 0, seed2: int = 0) -> None:
        self.seed = (seed or seed2) or None

    def __call__(self, x: Any) -> Any:
        return ops.shuffle(x, self.seed)


class ReduceStd:
    """(the deviation over an axis or several, all for (), the mean). Called with the tensor."""

    def __init__(self, axis: Any = (), unbiased: bool = True, keep_dims: bool = False) -> None:
        self.axis = None if isinstance(axis, tuple | list) and not axis else axis
        self.unbiased, self.keep_dims = unbiased, keep_dims

    def __call__(self, x: Any) -> Any:
        mean = ops.mean(x, self.axis, self.keep_dims)
        return ops.std(x, self.axis, int(self.unbiased), self.keep_dims), mean


class ResizeNearestNeighborV2:
    """`ops.ResizeNearestNeighbor` with the size given where it is called, as `(image, size)`.

    Raises:
        ValueError: half_pixel_centers is True.
    """

    def __init__(self, align_corners: bool = False, half_pixel_centers: bool = False) -> None:
        if half_pixel_centers:
            raise ApiValueError("ResizeNearestNeighborV2: half_pixel_centers=True is not supported")
        self.align_corners = align_corners

    def __call__(self, image: Any, size: Any) -> Any:
        return ops.ResizeNearestNeighbor(tuple(size), self.align_corners)(image)


class StandardLaplace:
    """`ops.standard_laplace`. Called as `StandardLaplace(seed)(shape)`."""

    def __init__(self, seed: int = 0, seed2: int = 0) -> None:
        self.seed = (seed or seed2) or None

    def __call__(self, shape: Any) -> Any:
        return ops.standard_laplace(shape, self.seed)


class TensorShape:
    """The sizes of a tensor, Int64. Called with the tensor."""

    def __call__(self, input_x: Any) -> Any:
        return ops.dyn_shape(input_x)


class TupleToTensor:
    """Numbers known when the network is compiled, or tensors without dimensions, as a tensor. Called as
    `TupleToTensor()(tuple, dtype)`."""

    def __call__(self, input_tuple: Any, dtype: Any = None) -> Any:
        if all([isinstance(each, bool | int | float) for each in input_tuple]):
            found = ops.tuple_to_array(tuple(input_tuple))
        else:
            found = ops.stack(tuple(input_tuple))
        return found if dtype is None else ops.cast(found, dtype)


class ListToTensor(TupleToTensor):
    """`TupleToTensor` of a list."""


class TensorToTuple:
    """The elements of a vector, tensors without dimensions, as a tuple. Called with the vector."""

    def __call__(self, input_tensor: Any) -> Any:
        return tuple(ops.unbind(input_tensor))


class TensorToList:
    """The elements of a vector, tensors without dimensions, as a list. Called with the vector."""

    def __call__(self, input_tensor: Any) -> Any:
        return list(ops.unbind(input_tensor))


class TensorToScalar:
    """A tensor of one element without its dimensions. Called with it."""

    def __call__(self, input_tensor: Any) -> Any:
        return ops.reshape(input_tensor, ())
