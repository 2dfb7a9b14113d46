"""Kinds of ATen that make tensors, random ones too."""

from __future__ import annotations

import math
from typing import Any

from mspc.ir.types import BOOL, COMPLEX64, FLOAT32, FLOAT64, INT64
from mspc.mindspore_api import mint, ops
from mspc.mindspore_api.ops.index_arguments import window
from mspc.readers.pytorch.kinds.kind import row

_PLACE = "-layout=None, -device=None, -pin_memory=None"
_NEW = f"dtype=None, {_PLACE}"
_FORMAT = f"{_NEW}, -memory_format=None"


def counted(start: Any, end: Any, step: Any, dtype: Any) -> Any:
    """Numbers from start to end, `step` apart."""
    whole = isinstance(start, int) and isinstance(end, int) and isinstance(step, int)
    kind = (INT64 if whole else FLOAT32) if dtype is None else dtype
    if kind.is_integer:
        start, end, step = int(start), int(end), int(step)
    if math.ceil((end - start) / step) <= 0:
        return ops.zeros((0,), kind)
    return ops.cast(ops.arange(start, end, step), kind)


def complex_number(number: Any, size: Any, dtype: Any) -> Any:
    """Return a complex number everywhere."""
    kind = FLOAT64 if dtype.itemsize == 16 else FLOAT32
    parts = [ops.Fill()(kind, size, each) for each in (number.real, number.imag)]
    return ops.cast(ops.Complex()(parts[0], parts[1]), dtype)


def all_of(size: Any, number: Any, dtype: Any) -> Any:
    """One number everywhere; the default element type of a whole one is that of integers."""
    if isinstance(number, complex):
        return complex_number(number, tuple(size), COMPLEX64 if dtype is None else dtype)
    kind = (INT64 if isinstance(number, int) else FLOAT32) if dtype is None else dtype
    return ops.Fill()(kind, tuple(size), number)


def floats(size: Any, number: Any, dtype: Any) -> Any:
    """One number everywhere, in floating point unless another type is given."""
    return ops.Fill()(FLOAT32 if dtype is None else dtype, tuple(size), number)


def like(self: Any, number: Any, dtype: Any) -> Any:
    """One number everywhere in the shape of another tensor."""
    return new(self, self.shape, number, dtype)


def new(self: Any, size: Any, number: Any, dtype: Any) -> Any:
    """One number everywhere in the element type of another tensor."""
    return all_of(size, number, self.dtype if dtype is None else dtype)


def overwritten(self: Any, src: Any) -> Any:
    """Return the elements of another tensor, broadcast to this one's shape, in its element type."""
    other = ops.cast(src, self.dtype)
    return other if other.shape == self.shape else ops.BroadcastTo(self.shape)(other)


def with_gradient_of(old: Any, new: Any) -> Any:
    """Return the numbers of one tensor, through which the gradient of another one goes, if that is finite."""
    apart = ops.stop_gradient(new)
    if not (old.dtype.is_float or old.dtype.is_complex):
        return apart
    nothing = old - ops.stop_gradient(old)
    if old.dtype.is_complex:
        return apart + nothing
    return apart + ops.where(ops.IsFinite()(old), nothing, ops.zeros_like(old))


def filled(self: Any, value: Any) -> Any:
    """One number everywhere in the place of a tensor."""
    if isinstance(value, (int, float, bool, complex)):
        return like(self, value, None)
    return overwritten(self, value)


def windows(name: str, *shares: float) -> Any:
    """Return the rows of one kind of windows."""

    def made(length: Any, periodic: Any, dtype: Any) -> Any:
        return ops.cast(window(name, length, periodic, shares), FLOAT32 if dtype is None else dtype)

    return [
        *row(f"{name}_window.default", f"window_length, {_NEW}", lambda length, dtype: made(length, True, dtype)),
        *row(f"{name}_window.periodic", f"window_length, periodic, {_NEW}", made),
    ]


CREATION = (
    windows("hann"), windows("hamming", 0.54, 0.46), windows("blackman"), windows("bartlett"),
    row("arange.default", f"end, dtype=None, {_PLACE}", lambda end, dtype: counted(0, end, 1, dtype)),
    row("arange.start", f"start, end, dtype=None, {_PLACE}", lambda start, end, dtype: counted(start, end, 1, dtype)),
    row("arange.start_step", f"start, end, step=1, dtype=None, {_PLACE}", counted),
    row("zeros.default", f"size, {_NEW}", lambda size, dtype: floats(size, 0, dtype)),
    row("ones.default", f"size, {_NEW}", lambda size, dtype: floats(size, 1, dtype)),
    row("empty.memory_format", f"size, {_FORMAT}", lambda size, dtype: floats(size, 0, dtype)),
    row("full.default", f"size, fill_value, {_NEW}", all_of),
    row("zeros_like.default empty_like.default", f"self, {_FORMAT}", lambda self, dtype: like(self, 0, dtype)),
    row("ones_like.default", f"self, {_FORMAT}", lambda self, dtype: like(self, 1, dtype)),
    row("full_like.default", f"self, fill_value, {_FORMAT}", like),
    row("new_zeros.default new_empty.default", f"self, size, {_NEW}",
        lambda self, size, dtype: new(self, size, 0, dtype)),
    row("new_ones.default", f"self, size, {_NEW}", lambda self, size, dtype: new(self, size, 1, dtype)),
    row("new_full.default", f"self, size, fill_value, {_NEW}", new),
    row("scalar_tensor.default", f"s, {_NEW}", lambda s, dtype: floats((), s, dtype)),
    row("empty_strided.default", f"size, -stride, {_NEW}", lambda size, dtype: floats(size, 0, dtype)),
    row("new_empty_strided.default", f"self, size, -stride, {_NEW}",
        lambda self, size, dtype: new(self, size, 0, dtype)),
    row("empty_permuted.default", f"size, -physical_layout, {_NEW}", lambda size, dtype: floats(size, 0, dtype)),
    row("triu_indices.default", f"row, col, offset=0, -dtype=None, {_PLACE}",
        lambda rows, columns, offset: ops.triu_indices(rows, columns, offset)),
    row("tril_indices.default", f"row, col, offset=0, -dtype=None, {_PLACE}",
        lambda rows, columns, offset: ops.tril_indices(rows, columns, offset)),
    row("eye.default", f"n, dtype=None, {_PLACE}", lambda n, dtype: ops.eye(n, n, FLOAT32 if dtype is None else dtype)),
    row("eye.m", f"n, m, dtype=None, {_PLACE}", lambda n, m, dtype: ops.eye(n, m, FLOAT32 if dtype is None else dtype)),
    row("copy.default", "self, src, -non_blocking=False", overwritten),
    row("fill.Scalar fill.Tensor", "self, value", filled),
    row("zero.default", "self", lambda self: like(self, 0, None)),
)  # fmt: skip
"""Kinds of new tensors."""


# Each call of a random kind draws its own numbers, by mspc's generator: they are not PyTorch's.


def dropped(input: Any, p: Any, train: Any) -> Any:
    """Elements set to 0 with probability p in training, the others divided by 1 - p."""
    if not train or p == 0:
        return input
    return input * 0 if p == 1 else ops.dropout(input, p, True)


def dropped_channels(input: Any, p: Any, train: Any) -> Any:
    """Return [n, channels, ...] with whole channels set to 0 with probability p, the others divided by 1 - p."""
    if not train or p == 0:
        return input
    return input * dropped(ops.ones(input.shape[:2] + (1,) * (len(input.shape) - 2), input.dtype), p, train)


def dropped_to_mean(input: Any, p: Any, train: Any, is_of_channels: Any) -> Any:
    """Return the elements, or channels, with the least value of SELU in place of some, and mean and variance kept."""
    if not train or p == 0:
        return input
    if p == 1:
        return input * 0
    least = -1.7580993408473766
    scale = 1 / math.sqrt((1 + p * least**2) * (1 - p))
    shape = input.shape[:2] + (1,) * (len(input.shape) - 2) if is_of_channels else input.shape
    remains = ops.cast(ops.Less()(mint.rand(shape), 1 - p), input.dtype)
    return (input * remains + least * (1 - remains)) * scale - least * p * scale


def dropped_with_mask(input: Any, p: Any, train: Any) -> Any:
    """Return (the result of `dropped`, a mask of the remaining elements)."""
    if train is False or p == 0:
        return input, ops.ones(input.shape, BOOL)
    out, mask = ops.Dropout(1.0 - p)(input)
    return out, ops.cast(mask, BOOL)


def typed(values: Any, dtype: Any, otherwise: Any) -> Any:
    """Drawn numbers in an element type."""
    return ops.cast(values, otherwise if dtype is None else dtype)


def leaking(self: Any, lower: Any, upper: Any, training: Any) -> Any:
    """Return (elements below 0 times slopes, the slopes): drawn ones in training, else their mean."""
    drawn = mint.rand(self.shape) * (upper - lower) + lower if training else ops.full_like(self, (lower + upper) / 2)
    slopes = ops.where(ops.LessEqual()(self, 0), ops.cast(drawn, self.dtype), ops.ones_like(self))
    return self * slopes, slopes


RANDOM = (
    row("rrelu_with_noise.default",
        "self, -noise, lower=0.125, upper=0.3333333333333333, training=False, -generator=None", leaking,
        writes="noise"),
    row("dropout.default", "input, p, train", dropped, lambda base, new, p, train: new),
    row("feature_dropout.default", "input, p, train", dropped_channels, lambda base, new, p, train: new),
    row("native_dropout.default", "input, p, train", dropped_with_mask),
    row("rand.default", f"size, {_NEW}", lambda size, dtype: typed(mint.rand(tuple(size)), dtype, FLOAT32)),
    row("randn.default", f"size, {_NEW}", lambda size, dtype: typed(mint.randn(tuple(size)), dtype, FLOAT32)),
    row("rand_like.default", f"self, {_FORMAT}", lambda self, dtype: typed(mint.rand(self.shape), dtype, self.dtype)),
    row("randn_like.default", f"self, {_FORMAT}", lambda self, dtype: typed(mint.randn(self.shape), dtype, self.dtype)),
    row("randint.default", f"high, size, -dtype=None, {_PLACE}",
        lambda high, size: mint.randint(0, high, tuple(size))),
    row("randint.low", f"low, high, size, -dtype=None, {_PLACE}",
        lambda low, high, size: mint.randint(low, high, tuple(size))),
    row("randperm.default", f"n, -dtype=None, {_PLACE}", lambda n: mint.randperm(n)),
    row("normal.float_float", f"mean, std, size, -generator=None, {_NEW}",
        lambda mean, std, size, dtype: typed(mint.randn(tuple(size)) * std + mean, dtype, FLOAT32)),
    row("normal.Tensor_Tensor", "mean, std, -generator=None",
        lambda mean, std: ops.cast(mint.randn((mean + std).shape) * std + mean, mean.dtype)),
    row("normal.Tensor_float", "mean, std=1.0, -generator=None",
        lambda mean, std: ops.cast(mint.randn(mean.shape) * std + mean, mean.dtype)),
    row("normal.float_Tensor", "mean, std, -generator=None",
        lambda mean, std: ops.cast(mint.randn(std.shape) * std + mean, std.dtype)),
    row("alpha_dropout.default", "input, p, train", lambda input, p, train: dropped_to_mean(input, p, train, False)),
    row("feature_alpha_dropout.default", "input, p, train",
        lambda input, p, train: dropped_to_mean(input, p, train, True)),
    row("rrelu.default", "self, lower=0.125, upper=0.3333333333333333, training=False, -generator=None",
        lambda *given: leaking(*given)[0]),
    row("normal_functional.default", "self, mean=0.0, std=1.0, -generator=None",
        lambda self, mean, std: ops.cast(mint.randn(self.shape) * std + mean, self.dtype)),
    row("multinomial.default", "self, num_samples, replacement=False, -generator=None", mint.multinomial),
    row("bernoulli.default", "self, -generator=None",
        lambda self: ops.cast(ops.Less()(mint.rand(self.shape), self), self.dtype)),
    row("exponential.default", "self, lambd=1.0, -generator=None",
        lambda self, lambd: ops.cast(ops.Log1p()(ops.Neg()(mint.rand(self.shape))) / -lambd, self.dtype)),
    row("bernoulli.p bernoulli.Tensor", "self, p, -generator=None",
        lambda self, p: ops.cast(ops.Less()(mint.rand(self.shape), p), self.dtype)),
    row("bernoulli_.float", "self, p=0.5, -generator=None",
        lambda self, p: ops.cast(ops.Less()(mint.rand(self.shape), p), self.dtype), writes="self"),
    row("cauchy_.default", "self, median=0.0, sigma=1.0, -generator=None", lambda self, median, sigma: ops.cast(
        ops.Tan()((mint.rand(self.shape) - 0.5) * math.pi) * sigma + median, self.dtype), writes="self"),
    row("log_normal_.default", "self, mean=1.0, std=2.0, -generator=None", lambda self, mean, std: ops.cast(
        ops.Exp()(mint.randn(self.shape) * std + mean), self.dtype), writes="self"),
    row("geometric_.default", "self, p, -generator=None", lambda self, p: ops.cast(
        ops.Ceil()(ops.Log1p()(ops.Neg()(mint.rand(self.shape))) / math.log1p(-p)), self.dtype), writes="self"),
    row("randint_like.default", f"self, high, -{_FORMAT}",
        lambda self, high: ops.cast(mint.randint(0, high, self.shape), self.dtype)),
    row("randint_like.low_dtype", f"self, low, high, -{_FORMAT}",
        lambda self, low, high: ops.cast(mint.randint(low, high, self.shape), self.dtype)),
    row("normal_.default", "self, mean=0.0, std=1.0, -generator=None",
        lambda self, mean, std: ops.cast(mint.randn(self.shape) * std + mean, self.dtype), writes="self"),
    row("uniform.default", "self, from=0.0, to=1.0, -generator=None",
        lambda self, least, most: ops.cast(mint.rand(self.shape) * (most - least) + least, self.dtype)),
)  # fmt: skip
"""Kinds that draw."""
