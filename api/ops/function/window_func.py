"""Windows over signals, and transforms of the parts that they cut out."""

from __future__ import annotations

from typing import Any

from mspc.api import ops
from mspc.api.ops.arguments import element_type, least, no_such, of_rank
from mspc.api.ops.checked import TensorLike
from mspc.api.ops.frames import frame_places, frequencies
from mspc.api.ops.frames import window as window_of
from mspc.api.ops.method_table import tensor_method
from mspc.ir.types import FLOAT32, INT64


def bartlett_window(window_length: Any, periodic: bool = True, *, dtype: Any = None) -> Any:
    """Numbers that rise from 0 to 1 and fall again, evenly; as all windows Float32 unless `dtype` is given, and for
    periodic without the last number of one longer by one.

    Raises:
        ValueError: window_length is no integer from 0 on.
    """
    return _of("bartlett", window_length, periodic, (), dtype)


def blackman_window(window_length: Any, periodic: bool = True, *, dtype: Any = None) -> Any:
    """0.42 - 0.5 cos(t) + 0.08 cos(2 t), where t goes from 0 to 2 pi; see `bartlett_window`."""
    return _of("blackman", window_length, periodic, (), dtype)


def hamming_window(
    window_length: Any, periodic: bool = True, alpha: float = 0.54, beta: float = 0.46, *, dtype: Any = None
) -> Any:
    """alpha - beta cos(t), where t goes from 0 to 2 pi; see `bartlett_window`."""
    return _of("hamming", window_length, periodic, (alpha, beta), dtype)


def hann_window(window_length: Any, periodic: bool = True, *, dtype: Any = None) -> Any:
    """0.5 - 0.5 cos(t), where t goes from 0 to 2 pi; see `bartlett_window`."""
    return _of("hann", window_length, periodic, (), dtype)


def kaiser_window(window_length: Any, periodic: bool = True, beta: float = 12.0, *, dtype: Any = None) -> Any:
    """Kaiser's window: a Bessel function of beta and the distance from the middle; see `bartlett_window`."""
    return _of("kaiser", window_length, periodic, (beta,), dtype)


def _of(kind: str, length: Any, periodic: bool, numbers: Any, dtype: Any) -> Any:
    return ops.cast(window_of(kind, length, periodic, numbers), FLOAT32 if dtype is None else element_type(dtype))


def fftfreq(n: int, d: float = 1.0, dtype: Any = None) -> Any:
    """The frequencies of a transform of n values, d apart, Float32 unless `dtype` is given."""
    return ops.cast(frequencies("fftfreq", n, d, False), FLOAT32 if dtype is None else element_type(dtype))


def rfftfreq(n: int, d: float = 1.0, dtype: Any = None) -> Any:
    """Those of them that a transform of n real values gives."""
    return ops.cast(frequencies("rfftfreq", n, d, True), FLOAT32 if dtype is None else element_type(dtype))


def stft(
    x: TensorLike, n_fft: int, hop_length: Any = None, win_length: Any = None, window: Any = None, center: bool = True,
    pad_mode: str = "REFLECT", normalized: bool = False, onesided: Any = None, return_complex: Any = None,
) -> Any:  # fmt: skip
    """Fourier transforms of parts of signals [..., time] that overlap: [..., frequencies, parts], complex, or with a
    last dimension of real and imaginary part.

    n_fft: the length of a part. hop_length: from one part to the next, n_fft // 4 unless given. win_length: the length
    of the window, n_fft unless given, which stands in the middle of a part. window: a vector, ones unless given.
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


def mirror_pad(input_x: TensorLike, paddings: Any, mode: str) -> Any:
    """The input with margins (before, after) for every dimension, mirrored: "REFLECT" without its own edge, "SYMMETRIC"
    with it."""
    return ops.MirrorPad(mode.lower())(input_x, paddings)


def logspace(start: float, end: float, steps: int, base: Any = 10, *, dtype: Any = FLOAT32) -> Any:
    """`steps` powers of the base, the exponents from start to end, both included."""
    return ops.cast(ops.Pow()(float(base), ops.linspace(start, end, least("logspace", "steps", steps, 0))), dtype)


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


@tensor_method()
def fills(x: TensorLike, value: Any) -> Any:
    """One value at every place of x, of its type."""
    return ops.broadcast_to(ops.cast(value, x.dtype), x.shape)


def dyn_shape(input_x: TensorLike) -> Any:
    """The shape, a tensor of Int64."""
    return ops.cast(ops.tuple_to_array(input_x.shape), INT64)


def view_as_real(input: TensorLike) -> Any:
    """Real and imaginary part of complex numbers along a new last dimension."""
    return ops.stack((ops.Real()(input), ops.Imag()(input)), -1)
