"""Kinds of complex numbers and of Fourier transforms."""

from __future__ import annotations

from typing import Any

from mspc.api import mint, ops
from mspc.api.errors import ApiValueError
from mspc.readers.pytorch.kinds.elementwise import direction_of
from mspc.readers.pytorch.kinds.kind import row


def with_parts(self: Any) -> Any:
    """Real and imaginary part along a new last dimension."""
    return ops.view_as_real(self)


def of_parts(self: Any) -> Any:
    """Complex numbers of real and imaginary parts, the last dimension."""
    real, imaginary = ops.unstack(self, -1)
    return ops.Complex()(real, imaginary)


def direction(self: Any) -> Any:
    """The angle in the plane; of a negative real number that is pi, of NaN NaN."""
    if self.dtype.is_complex:
        return direction_of(ops.Imag()(self), ops.Real()(self))
    if not self.dtype.is_float:
        return ops.where(ops.Less()(self, 0), ops.full_like(self, 3.141592653589793), ops.zeros_like(self))
    angle = ops.where(ops.Less()(self, 0), ops.full_like(self, 3.141592653589793), ops.zeros_like(self))
    return ops.where(ops.IsNan()(self), self, angle)


def dims_of(dim: Any) -> Any:
    """Dimensions as transforms take them."""
    return None if dim is None else tuple(dim)


def transformed_parts(
    self: Any, n_fft: Any, hop_length: Any, win_length: Any, window: Any, normalized: Any, onesided: Any,
    return_complex: Any,
) -> Any:  # fmt: skip
    """Fourier transforms of parts of signals, which have been made longer before where they should be."""
    return ops.stft(self, n_fft, hop_length, win_length, window, False, "REFLECT", normalized, onesided, return_complex)


def joined_parts(
    self: Any, n_fft: Any, hop_length: Any, win_length: Any, window: Any, center: Any, normalized: Any, onesided: Any,
    length: Any, return_complex: Any,
) -> Any:  # fmt: skip
    """The signals whose parts have such Fourier transforms: parts are put one over the other, and divided by what the
    window's squares add up to there."""
    if return_complex:
        raise ApiValueError("istft: return_complex is read as False alone, and is True")
    spectra = self if onesided in (None, True) else self[..., : n_fft // 2 + 1, :]
    parts = ops.swapaxes(ops.irfft(ops.swapaxes(spectra, -1, -2), n_fft), -1, -2)
    hop, count, size = hop_length or n_fft // 4, parts.shape[-1], win_length or n_fft
    before = (n_fft - size) // 2
    shape = ops.ones((size,), parts.dtype) if window is None else window
    shape = ops.pad(shape, (before, n_fft - size - before))
    total = n_fft + hop * (count - 1)
    places = ops.Reshape()(ops.Reshape()(ops.arange(n_fft), (-1, 1)) + hop * ops.arange(count), (-1,))

    def over(each: Any) -> Any:
        rows = ops.Reshape()(each, (*each.shape[:-2], n_fft * count))
        return mint.index_add(ops.zeros((*rows.shape[:-1], total), rows.dtype), -1, places, rows)

    column = ops.Reshape()(shape, (n_fft, 1))
    begin = n_fft // 2 if center else 0
    end = total - begin if length is None else min(total, begin + length)
    weights = over(ops.BroadcastTo((n_fft, count))(column * column))[begin:end]
    found = over(parts * column)[..., begin:end] / weights
    found = found * n_fft**0.5 if normalized else found
    return found if length is None else ops.pad(found, (0, length - (end - begin)))


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
    row("stft.default", "self, n_fft, hop_length=None, win_length=None, window=None, normalized=False, onesided=None, "
        "return_complex=None, -align_to_window=None", transformed_parts),
    row("istft.default", "self, n_fft, hop_length=None, win_length=None, window=None, center=True, normalized=False, "
        "onesided=None, length=None, return_complex=False", joined_parts),
    row("fft_fftshift.default", "self, dim=None", lambda self, dim: ops.fftshift(self, dims_of(dim))),
    row("fft_ifftshift.default", "self, dim=None", lambda self, dim: ops.ifftshift(self, dims_of(dim))),
    row("fft_rfftn.default", "self, s=None, dim=None, norm=None",
        lambda self, s, dim, norm: ops.rfftn(self, dims_of(s), dims_of(dim), norm)),
    row("fft_irfftn.default", "self, s=None, dim=None, norm=None",
        lambda self, s, dim, norm: ops.irfftn(self, dims_of(s), dims_of(dim), norm)),
    row("fft_ifft2.default", "self, s=None, dim=(-2, -1), norm=None",
        lambda self, s, dim, norm: ops.ifft2(self, dims_of(s), dims_of(dim), norm)),
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
