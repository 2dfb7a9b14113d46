"""Kinds that draw numbers. Each call draws its own, by mspc's generator: they are not PyTorch's."""

from __future__ import annotations

from typing import Any

from mspc.api import mint, ops
from mspc.ir.types import BOOL, FLOAT32
from mspc.readers.pytorch.kinds.kind import row



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


def dropped_with_mask(input: Any, p: Any, train: Any) -> Any:
    """(what `dropped` gives, which elements remain)."""
    if train is False or p == 0:
        return input, ops.ones(input.shape, BOOL)
    out, mask = ops.Dropout(1.0 - p)(input)
    return out, ops.cast(mask, BOOL)


def typed(values: Any, dtype: Any, otherwise: Any) -> Any:
    """Drawn numbers in an element type."""
    return ops.cast(values, otherwise if dtype is None else dtype)


def coins(self: Any, p: Any) -> Any:
    """1 with a probability, in the shape and type of a tensor."""
    return ops.cast(ops.Less()(mint.rand(self.shape), p), self.dtype)


RANDOM = (
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
    row("normal_functional.default", "self, mean=0.0, std=1.0, -generator=None",
        lambda self, mean, std: ops.cast(mint.randn(self.shape) * std + mean, self.dtype)),
    row("multinomial.default", "self, num_samples, replacement=False, -generator=None", mint.multinomial),
    row("bernoulli.default", "self, -generator=None",
        lambda self: ops.cast(ops.Less()(mint.rand(self.shape), self), self.dtype)),
    row("exponential.default", "self, lambd=1.0, -generator=None",
        lambda self, lambd: ops.cast(ops.Log1p()(ops.Neg()(mint.rand(self.shape))) / -lambd, self.dtype)),
    row("bernoulli.p", "self, p, -generator=None", coins),
    row("uniform.default", "self, from=0.0, to=1.0, -generator=None",
        lambda self, least, most: ops.cast(mint.rand(self.shape) * (most - least) + least, self.dtype)),
)  # fmt: skip
"""Kinds that draw."""
