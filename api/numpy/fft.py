"""`mindspore.numpy.fft` has Fourier transforms with the arguments of `numpy.fft`; they are compiled as those of
`ops`."""

from __future__ import annotations

from typing import Any

from mspc.api import ops
from mspc.api.ops.checked import TensorLike


def fft(a: TensorLike, n: int | None = None, axis: int = -1, norm: str | None = None) -> Any:
    """The transform, along an axis, of n elements."""
    return ops.fft(a, n, axis, norm)


def fft2(a: TensorLike, s: Any = None, axes: Any = (-2, -1), norm: str | None = None) -> Any:
    """The transform, along two axes, of s elements."""
    return ops.fft2(a, s, axes, norm)


def fftn(a: TensorLike, s: Any = None, axes: Any = None, norm: str | None = None) -> Any:
    """The transform, along axes, all unless given, of s elements."""
    return ops.fftn(a, s, axes, norm)


def ifft(a: TensorLike, n: int | None = None, axis: int = -1, norm: str | None = None) -> Any:
    """The inverse transform, along an axis, of n elements."""
    return ops.ifft(a, n, axis, norm)


def ifft2(a: TensorLike, s: Any = None, axes: Any = (-2, -1), norm: str | None = None) -> Any:
    """The inverse transform, along two axes, of s elements."""
    return ops.ifft2(a, s, axes, norm)


def ifftn(a: TensorLike, s: Any = None, axes: Any = None, norm: str | None = None) -> Any:
    """The inverse transform, along axes, all unless given, of s elements."""
    return ops.ifftn(a, s, axes, norm)


def rfft(a: TensorLike, n: int | None = None, axis: int = -1, norm: str | None = None) -> Any:
    """Half of the transform of a real tensor, whose other half is its mirror image, along an axis, of n elements."""
    return ops.rfft(a, n, axis, norm)


def rfft2(a: TensorLike, s: Any = None, axes: Any = (-2, -1), norm: str | None = None) -> Any:
    """Half of the transform of a real tensor, whose other half is its mirror image, along two axes, of s elements."""
    return ops.rfft2(a, s, axes, norm)


def rfftn(a: TensorLike, s: Any = None, axes: Any = None, norm: str | None = None) -> Any:
    """Half of the transform of a real tensor, whose other half is its mirror image, along axes, all unless given, of
    s elements."""
    return ops.rfftn(a, s, axes, norm)


def irfft(a: TensorLike, n: int | None = None, axis: int = -1, norm: str | None = None) -> Any:
    """The real tensor of which this is half of the transform, along an axis, of n elements."""
    return ops.irfft(a, n, axis, norm)


def irfft2(a: TensorLike, s: Any = None, axes: Any = (-2, -1), norm: str | None = None) -> Any:
    """The real tensor of which this is half of the transform, along two axes, of s elements."""
    return ops.irfft2(a, s, axes, norm)


def irfftn(a: TensorLike, s: Any = None, axes: Any = None, norm: str | None = None) -> Any:
    """The real tensor of which this is half of the transform, along axes, all unless given, of s elements."""
    return ops.irfftn(a, s, axes, norm)


def hfft(a: TensorLike, n: int | None = None, axis: int = -1, norm: str | None = None) -> Any:
    """The real transform of a tensor that is half of a symmetric one, along an axis, of n elements."""
    return ops.hfft(a, n, axis, norm)


def hfft2(a: TensorLike, s: Any = None, axes: Any = (-2, -1), norm: str | None = None) -> Any:
    """The real transform of a tensor that is half of a symmetric one, along two axes, of s elements."""
    return ops.hfft2(a, s, axes, norm)


def hfftn(a: TensorLike, s: Any = None, axes: Any = None, norm: str | None = None) -> Any:
    """The real transform of a tensor that is half of a symmetric one, along axes, all unless given, of s elements."""
    return ops.hfftn(a, s, axes, norm)


def ihfft(a: TensorLike, n: int | None = None, axis: int = -1, norm: str | None = None) -> Any:
    """Half of the inverse transform of a real tensor, along an axis, of n elements."""
    return ops.ihfft(a, n, axis, norm)


def ihfft2(a: TensorLike, s: Any = None, axes: Any = (-2, -1), norm: str | None = None) -> Any:
    """Half of the inverse transform of a real tensor, along two axes, of s elements."""
    return ops.ihfft2(a, s, axes, norm)


def ihfftn(a: TensorLike, s: Any = None, axes: Any = None, norm: str | None = None) -> Any:
    """Half of the inverse transform of a real tensor, along axes, all unless given, of s elements."""
    return ops.ihfftn(a, s, axes, norm)


def fftshift(x: TensorLike, axes: Any = None) -> Any:
    """The elements with those of frequency 0 in the middle, along axes, all unless given."""
    return ops.fftshift(x, axes)


def ifftshift(x: TensorLike, axes: Any = None) -> Any:
    """What `fftshift` is undone by."""
    return ops.ifftshift(x, axes)


def fftfreq(n: int, d: float = 1.0, dtype: Any = None) -> Any:
    """The frequencies of `fft` of n elements that are d apart."""
    return ops.fftfreq(n, d, dtype)


def rfftfreq(n: int, d: float = 1.0, dtype: Any = None) -> Any:
    """The frequencies of `rfft` of n elements that are d apart."""
    return ops.rfftfreq(n, d, dtype)
