"""The methods of a Tensor that compute: one NumPy call each, results typed as MindSpore types them."""

from __future__ import annotations

from typing import Any, Self

import numpy as np

from mspc.api.errors import ApiValueError
from mspc.ir.types import BOOL, FLOAT32, INT64, dtype_of


class TensorMethods:
    """Mixed into Tensor, which supplies `value`, `from_array` and `_derived`."""

    value: np.ndarray
    from_array: Any
    _derived: Any

    def _made(self, array: Any, like: Any = None) -> Self:
        """A tensor of `array` in the element type `like` (this tensor's own when None)."""
        dtype = self.value.dtype if like is None else like
        return self._derived(np.asarray(array).astype(dtype, copy=False))

    # Shape ----------------------------------------------------------------------------------------

    def reshape(self, *shape: Any) -> Self:
        sizes = tuple(shape[0]) if len(shape) == 1 and isinstance(shape[0], (tuple, list)) else shape
        try:
            return self._derived(self.value.reshape(sizes))
        except ValueError:
            raise ApiValueError(f"cannot reshape {self.value.shape} to {sizes}") from None

    def view(self, *shape: Any) -> Self:
        return self.reshape(*shape)

    def view_as(self, other: Any) -> Self:
        return self.reshape(other.shape)

    def reshape_as(self, other: Any) -> Self:
        return self.reshape(other.shape)

    def flatten(self, order: str = "C", *, start_dim: int = 0, end_dim: int = -1) -> Self:
        shape = self.value.shape
        last = end_dim % max(len(shape), 1)
        return self._derived(self.value.reshape((*shape[:start_dim], -1, *shape[last + 1 :]), order=order))

    def ravel(self) -> Self:
        return self._derived(self.value.reshape(-1))

    def transpose(self, *axes: Any) -> Self:
        perm = axes[0] if len(axes) == 1 and isinstance(axes[0], (tuple, list)) else axes
        return self._derived(self.value.transpose(perm or None))

    def permute(self, *axes: Any) -> Self:
        return self.transpose(*axes)

    def swapaxes(self, axis0: int, axis1: int) -> Self:
        return self._derived(self.value.swapaxes(axis0, axis1))

    @property
    def T(self) -> Self:
        return self._derived(self.value.T)

    @property
    def mT(self) -> Self:
        return self._derived(self.value.swapaxes(-1, -2))

    def expand_dims(self, axis: int) -> Self:
        return self._derived(np.expand_dims(self.value, axis))

    def unsqueeze(self, dim: int) -> Self:
        return self.expand_dims(dim)

    def squeeze(self, axis: Any = None) -> Self:
        return self._derived(self.value.squeeze(axis))

    def broadcast_to(self, shape: Any) -> Self:
        return self._derived(np.broadcast_to(self.value, tuple(shape)))

    def expand_as(self, x: Any) -> Self:
        return self.broadcast_to(x.shape)

    def repeat(self, repeats: Any, axis: Any = None) -> Self:
        return self._derived(self.value.repeat(repeats, axis))

    def tile(self, reps: Any) -> Self:
        return self._derived(np.tile(self.value, reps))

    def split(self, split_size_or_sections: Any, axis: int = 0) -> tuple[Self, ...]:
        sections = split_size_or_sections
        size = self.value.shape[axis]
        cuts = range(sections, size, sections) if isinstance(sections, int) else np.cumsum(sections)[:-1]
        return tuple(self.from_array(part) for part in np.split(self.value, list(cuts), axis))

    # Element type ---------------------------------------------------------------------------------

    def astype(self, dtype: Any, copy: bool = True) -> Self:
        return self._derived(self.value.astype(dtype_of(dtype).numpy, copy=copy))

    def to(self, dtype: Any) -> Self:
        return self.astype(dtype)

    def type_as(self, other: Any) -> Self:
        return self.astype(other.dtype)

    def float(self) -> Self:
        return self.astype(FLOAT32)

    def int(self) -> Self:
        return self.astype("int32")

    def long(self) -> Self:
        return self.astype(INT64)

    def half(self) -> Self:
        return self.astype("float16")

    def bool(self) -> Self:
        return self.astype(BOOL)

    # Reductions -----------------------------------------------------------------------------------

    def sum(self, axis: Any = None, dtype: Any = None, keepdims: Any = False) -> Self:
        kind = None if dtype is None else dtype_of(dtype).numpy
        if kind is None and self.value.dtype.kind == "b":
            kind = INT64.numpy
        return self._made(self.value.sum(_axis(axis), kind, keepdims=keepdims), kind)

    def mean(self, axis: Any = None, keep_dims: Any = False) -> Self:
        return self._made(self.value.mean(_axis(axis), keepdims=keep_dims))

    def prod(self, axis: Any = None, keep_dims: Any = False) -> Self:
        return self._made(self.value.prod(_axis(axis), keepdims=keep_dims))

    def max(self, axis: Any = None, keepdims: Any = False) -> Self:
        return self._made(self.value.max(_axis(axis), keepdims=keepdims))

    def min(self, axis: Any = None, keepdims: Any = False) -> Self:
        return self._made(self.value.min(_axis(axis), keepdims=keepdims))

    def var(self, axis: Any = None, ddof: Any = 0, keepdims: Any = False) -> Self:
        return self._made(self.value.var(_axis(axis), ddof=ddof, keepdims=keepdims))

    def std(self, axis: Any = None, ddof: Any = 0, keepdims: Any = False) -> Self:
        return self._made(self.value.std(_axis(axis), ddof=ddof, keepdims=keepdims))

    def all(self, axis: Any = None, keep_dims: Any = False) -> Self:
        return self._derived(self.value.all(_axis(axis), keepdims=keep_dims))

    def any(self, axis: Any = None, keep_dims: Any = False) -> Self:
        return self._derived(self.value.any(_axis(axis), keepdims=keep_dims))

    def argmax(self, axis: Any = None, keepdims: Any = False) -> Self:
        return self._made(self.value.argmax(axis, keepdims=keepdims), INT64.numpy)

    def argmin(self, axis: Any = None, keepdims: Any = False) -> Self:
        return self._made(self.value.argmin(axis, keepdims=keepdims), INT64.numpy)

    def cumsum(self, axis: Any = None) -> Self:
        return self._made(self.value.cumsum(axis))

    # Elementwise ----------------------------------------------------------------------------------

    def abs(self) -> Self:
        return self._made(np.abs(self.value))

    def exp(self) -> Self:
        return self._made(np.exp(self.value))

    def log(self) -> Self:
        return self._made(np.log(self.value))

    def sqrt(self) -> Self:
        return self._made(np.sqrt(self.value))

    def rsqrt(self) -> Self:
        return self._made(1 / np.sqrt(self.value))

    def square(self) -> Self:
        return self._made(np.square(self.value))

    def tanh(self) -> Self:
        return self._made(np.tanh(self.value))

    def sigmoid(self) -> Self:
        return self._made(1 / (1 + np.exp(-self.value)))

    def relu(self) -> Self:
        return self._made(np.maximum(self.value, 0))

    def round(self) -> Self:
        return self._made(np.round(self.value))

    def floor(self) -> Self:
        return self._made(np.floor(self.value))

    def ceil(self) -> Self:
        return self._made(np.ceil(self.value))

    def sign(self) -> Self:
        return self._made(np.sign(self.value))

    def clip(self, xmin: Any = None, xmax: Any = None) -> Self:
        return self._made(np.clip(self.value, _plain(xmin), _plain(xmax)))

    def clamp(self, min: Any = None, max: Any = None) -> Self:
        return self.clip(min, max)

    def masked_fill(self, mask: Any, value: Any) -> Self:
        found = np.where(_plain(mask), _plain(value), self.value).astype(self.value.dtype, copy=False)
        return self._derived(found, mask, value)

    def isnan(self) -> Self:
        return self._derived(np.isnan(self.value))

    def isinf(self) -> Self:
        return self._derived(np.isinf(self.value))

    def isfinite(self) -> Self:
        return self._derived(np.isfinite(self.value))

    # Named operators ------------------------------------------------------------------------------

    def add(self, other: Any) -> Self:
        return self + other

    def sub(self, other: Any) -> Self:
        return self - other

    def mul(self, other: Any) -> Self:
        return self * other

    def div(self, other: Any) -> Self:
        return self / other

    def pow(self, exponent: Any) -> Self:
        return self**exponent

    def matmul(self, tensor2: Any) -> Self:
        return self @ tensor2

    def equal(self, other: Any) -> Self:
        return self == other


def _axis(axis: Any) -> Any:
    if isinstance(axis, (list, tuple)):
        return tuple(axis) or None
    return axis


def _plain(value: Any) -> Any:
    return getattr(value, "value", value)
