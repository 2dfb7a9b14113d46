"""Kinds of complex numbers and of Fourier transforms."""

from __future__ import annotations

from typing import Any

from mspc.api import ops
from mspc.readers.pytorch.kinds.kind import row


def with_parts(self: Any) -> Any:
    """Real and imaginary part along a new last dimension."""
    return ops.view_as_real(self)


def of_parts(self: Any) -> Any:
    """Complex numbers of real and imaginary parts, the last dimension."""
    real, imaginary = ops.unstack(self, -1)
    return ops.Complex()(real, imaginary)


def direction(self: Any) -> Any:
    """The angle in the plane; of a negative real number that is pi."""
    if self.dtype.is_complex:
        return ops.Atan2()(ops.Imag()(self), ops.Real()(self))
    return ops.where(ops.Less()(self, 0), ops.full_like(self, 3.141592653589793), ops.zeros_like(self))


def dims_of(dim: Any) -> Any:
    """Dimensions as transforms take them."""
    return None if dim is None else tuple(dim)


COMPLEX = (
    row("view_as_real.default", "self", with_parts),
    row("view_as_complex.default", "self", of_parts),
    row("complex.default", "real, imag", lambda real, imag: ops.Complex()(real, imag)),
    row("polar.default", "abs, angle", lambda length, angle: ops.Complex()(
        length * ops.Cos()(angle), length * ops.Sin()(angle))),
    row("real.default", "self", lambda self: ops.Real()(self) if self.dtype.is_complex else self),
    row("angle.default", "self", direction),
    row("imag.default", "self", lambda self: ops.Imag()(self)),
    row("conj.default _conj.default", "self", lambda self: ops.Conj()(self) if self.dtype.is_complex else self),
    row("fft_fft.default", "self, n=None, dim=-1, norm=None", ops.fft),
    row("fft_ifft.default", "self, n=None, dim=-1, norm=None", ops.ifft),
    row("fft_rfft.default", "self, n=None, dim=-1, norm=None", ops.rfft),
    row("fft_irfft.default", "self, n=None, dim=-1, norm=None", ops.irfft),
    row("fft_fftn.default", "self, s=None, dim=None, norm=None",
        lambda self, s, dim, norm: ops.fftn(self, dims_of(s), dims_of(dim), norm)),
    row("fft_ifftn.default", "self, s=None, dim=None, norm=None",
        lambda self, s, dim, norm: ops.ifftn(self, dims_of(s), dims_of(dim), norm)),
    row("fft_fft2.default", "self, s=None, dim=(-2, -1), norm=None",
        lambda self, s, dim, norm: ops.fft2(self, dims_of(s), dims_of(dim), norm)),
    row("fft_rfft2.default", "self, s=None, dim=(-2, -1), norm=None",
        lambda self, s, dim, norm: ops.rfft2(self, dims_of(s), dims_of(dim), norm)),
    row("fft_irfft2.default", "self, s=None, dim=(-2, -1), norm=None",
        lambda self, s, dim, norm: ops.irfft2(self, dims_of(s), dims_of(dim), norm)),
)  # fmt: skip
"""Kinds of complex numbers."""
