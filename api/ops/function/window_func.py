"""These functions are windows over signals, and transforms of the parts that they take out."""

from __future__ import annotations

from typing import Any

from mspc.api import ops
from mspc.api.ops.checked import TensorLike
from mspc.api.ops.frames import frame_places
from mspc.api.ops.function_arguments import least, no_such, of_rank


def stft(
    x: TensorLike, n_fft: int, hop_length: Any = None, win_length: Any = None, window: Any = None, center: bool = True,
    pad_mode: str = "REFLECT", normalized: bool = False, onesided: Any = None, return_complex: Any = None,
) -> Any:  # fmt: skip
    """Fourier transforms of parts of signals [..., time] that overlap: [..., frequencies, parts], complex, or with a
    last dimension of real and imaginary part.

    n_fft: the length of a part. hop_length: from one part to the next, n_fft // 4 unless given. win_length: the length
    of the window, n_fft unless given, which is in the middle of a part. window: a vector, ones unless given.
    center: signals are made longer by half a part on both sides, in one of `pad`'s modes. normalized: divided by the
    root of n_fft. onesided: the frequencies from 0 on alone, True for real signals unless given. return_complex: as
    the signal is, unless given.

    Raises:
        ValueError: the lengths do not fit.
    """
    least("stft", "n_fft", n_fft, 1)
    hop = n_fft // 4 if hop_length is None else hop_length
    length = n_fft if win_length is None else win_length
    least("stft", "hop_length", hop, 1)
    if not 0 < length <= n_fft:
        no_such("stft", "win_length", length, f"an integer from 1 to n_fft, which is {n_fft}")
    shape = ops.ones((length,), x.dtype) if window is None else ops.cast(window, x.dtype)
    of_rank("stft", "window", shape.shape, 1)
    before = (n_fft - length) // 2
    shape = ops.pad(shape, (before, n_fft - length - before))
    if center:
        x = _longer(x, n_fft // 2, pad_mode)
    parts = ops.Gather()(x, frame_places("stft", x.shape[-1], n_fft, hop), -1) * shape
    real = not x.dtype.is_complex
    half = real if onesided is None else onesided
    if half and not real:
        no_such("stft", "onesided", True, "False for complex signals")
    scale = n_fft**-0.5 if normalized else 1.0
    found = (ops.rfft(parts) if half else ops.fft(parts)) * scale
    found = ops.swapaxes(found, -1, -2)
    if (not real) if return_complex is None else return_complex:
        return found
    return ops.stack((ops.Real()(found), ops.Imag()(found)), -1)


def _longer(x: Any, size: int, mode: str) -> Any:
    """Signals with so many values before and behind."""
    if len(x.shape) > 1:
        return ops.pad(x, (size, size), mode.lower())
    return ops.Squeeze(0)(ops.pad(ops.ExpandDims()(x, 0), (size, size), mode.lower()))


def range(start: int | float, end: int | float, step: int | float, maxlen: int = 1000000) -> Any:
    """Numbers from start up to end, without end, by step.

    Raises:
        ValueError: there are more than maxlen.
    """
    found = ops.arange(start, end, step)
    if found.size > maxlen:
        no_such("range", "maxlen", maxlen, f"at least {found.size}, how many numbers there are")
    return found


def padding(x: TensorLike, pad_dim_size: int = 8) -> Any:
    """The last dimension, of size 1, made of size pad_dim_size: zeros behind."""
    if x.shape[-1:] != (1,):
        no_such("padding", "the last dimension of x", x.shape, "1")
    return ops.pad(x, (0, pad_dim_size - 1))
