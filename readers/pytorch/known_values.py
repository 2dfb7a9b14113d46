"""Tensors with numbers that follow from the program alone: places, and the masks made of them.

Models build the masks of their attention of `arange` and comparisons. They are computed here, so that an attention gets
the meaning of its mask in one word. Repeated dimensions are held once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from mspc.ir.late_dataclass import dataclass
from mspc.ir.types import DType
from mspc.readers.pytorch.exported_program import ExportedType

MAX_BYTES = 1 << 26
"""Bytes of a tensor that are computed at most: a mask of 8,192 places by 8,192."""
FEW = 1 << 16
"""Elements of a tensor up to which repeated dimensions are looked for."""


@dataclass(frozen=True, eq=False)
class KnownTensor:
    """The numbers of a tensor of this shape. base: as many dimensions, of size 1 if all places have the same."""

    base: Any
    shape: tuple[int, ...]
    dtype: DType

    @property
    def varies(self) -> bool:
        """Return whether it is not one number everywhere."""
        return self.base.size > 1


def known_result(target: str, operands: Mapping[str, Any], type: ExportedType) -> KnownTensor | None:
    """Return the result of a node with operands that are known tensors and numbers, or None if it is not computed
    here."""
    fold = FOLDS.get(target.removeprefix("aten."))
    shape = tuple(n for n in type.shape if isinstance(n, int))
    if fold is None or len(shape) != len(type.shape):
        return None
    try:
        with np.errstate(all="ignore"):
            found = fold(shape, **operands)
    except (IndexError, ValueError, TypeError, ZeroDivisionError, MemoryError):
        return None  # its error is reported at the node
    if found is None:
        return None
    base = _padded(np.asarray(found), len(shape))
    if base.size * type.dtype.itemsize > MAX_BYTES:
        return None
    if any(n not in (1, size) for n, size in zip(base.shape, shape, strict=True)):
        return None
    return KnownTensor(_compact_tensor(base.astype(type.dtype.numpy, copy=False)), shape, type.dtype)


def is_known(value: Any) -> bool:
    """Return whether an operand is known: a known tensor, a number or a list of such."""
    if isinstance(value, (tuple, list)):
        return all(map(is_known, value))
    return value is None or isinstance(value, (KnownTensor, DType, bool, int, float, str))


def _padded(base: Any, rank: int) -> Any:
    return base.reshape((1,) * (rank - base.ndim) + base.shape)


def _compact_tensor(base: Any) -> Any:
    """Return the tensor with size 1 for dimensions that repeat one number."""
    for dim in range(base.ndim if base.size <= FEW else 0):
        first = base.take([0], dim) if base.shape[dim] > 1 else base
        repeated = np.broadcast_to(first, base.shape)
        if base.shape[dim] > 1 and np.array_equal(repeated, base, equal_nan=base.dtype.kind == "f"):
            base = first
    return base


def _elementwise(function: Callable[..., Any]) -> Callable[..., Any]:
    def fold(shape: tuple[int, ...], /, **operands: Any) -> Any:
        values = [value.base if isinstance(value, KnownTensor) else value for value in operands.values()]
        ranks = [value.ndim for value in values if isinstance(value, np.ndarray)]
        sizes = [_padded(value, max(ranks)).shape for value in values if isinstance(value, np.ndarray)]
        count = math.prod(max(each) for each in zip(*sizes, strict=True))
        return None if count > MAX_BYTES else function(*values)

    return fold


def _scaled(function: Callable[..., Any]) -> Callable[..., Any]:
    plain = _elementwise(lambda left, right, alpha: function(left, right if alpha == 1 else right * alpha))
    return lambda shape, /, self, other, alpha=1: plain(shape, self=self, other=other, alpha=alpha)


def _same(shape: tuple[int, ...], /, self: Any, **_: Any) -> Any:
    return self.base


def _reshaped(shape: tuple[int, ...], /, self: Any, **_: Any) -> Any:
    """Reshape to the shape of the result, in any form of the kind."""
    if self.base.size == 1:
        return self.base.reshape((1,) * len(shape))
    whole = math.prod(self.shape)
    return np.broadcast_to(self.base, self.shape).reshape(shape) if whole <= FEW else None


def _repeated(shape: tuple[int, ...], /, self: Any, repeats: Sequence[int]) -> Any:
    base = _padded(self.base, len(repeats))
    return np.tile(base, [count if n > 1 else 1 for n, count in zip(base.shape, repeats, strict=True)])


def _along(self: Any, dim: int) -> tuple[Any, int]:
    """Return the numbers along a dimension, and its place."""
    place = dim % len(self.shape)
    sizes = list(self.base.shape)
    sizes[place] = self.shape[place]
    return np.broadcast_to(self.base, sizes), place


def _part(shape: tuple[int, ...], /, self: Any, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Any:
    place = dim % len(self.shape)
    if self.base.shape[place] == 1:
        return self.base
    return self.base[(slice(None),) * place + (slice(start, end, step),)]


def _selected(shape: tuple[int, ...], /, self: Any, dim: int, index: int) -> Any:
    return self.base.take(0 if self.base.shape[dim] == 1 else index, dim)


def _at_places(shape: tuple[int, ...], /, self: Any, indices: Sequence[Any]) -> Any:
    if any(index is None or index.base.dtype == bool for index in indices) or len(indices) != len(self.shape):
        return None
    places = [
        _padded(index.base, len(shape)) if self.base.shape[d] > 1 else np.zeros((1,) * len(shape), np.int64)
        for d, index in enumerate(indices)
    ]
    return self.base[tuple(places)]


def _running_sum(shape: tuple[int, ...], /, self: Any, dim: int, dtype: Any = None) -> Any:
    values, place = _along(self, dim)
    return values.cumsum(place)


def _differences(
    shape: tuple[int, ...], /, self: Any, n: int = 1, dim: int = -1, prepend: Any = None, append: Any = None
) -> Any:
    values, place = _along(self, dim)
    parts = [values]
    if prepend is not None:
        before, _ = _along(prepend, dim)
        parts.insert(0, before)
    if append is not None:
        parts.append(_along(append, dim)[0])
    sizes = np.broadcast_shapes(*[(*part.shape[:place], 1, *part.shape[place + 1 :]) for part in parts])
    whole = [np.broadcast_to(p, (*sizes[:place], p.shape[place], *sizes[place + 1 :])) for p in parts]
    return np.diff(np.concatenate(whole, place), n, place)


def _triangle(keeps: Callable[..., Any]) -> Callable[..., Any]:
    def fold(shape: tuple[int, ...], /, self: Any, diagonal: int = 0) -> Any:
        sizes = (*self.base.shape[:-2], *self.shape[-2:])
        return None if math.prod(sizes) > MAX_BYTES else keeps(np.broadcast_to(self.base, sizes), diagonal)

    return fold


def _counted(shape: tuple[int, ...], /, end: Any, start: Any = 0, step: Any = 1, dtype: Any = None) -> Any:
    is_whole = dtype is not None and dtype.is_integer  # PyTorch rounds the ends towards zero first
    return np.arange(*[int(each) if is_whole else each for each in (start, end, step)])


def _all_of(name: str) -> Callable[..., Any]:
    """Return one number, which the kind has itself or takes by this name."""
    fixed = {"zeros": 0, "ones": 1}.get(name)
    return lambda shape, /, **given: np.full((1,) * len(shape), given[name] if fixed is None else fixed)


ELEMENTWISE: Mapping[str, Callable[..., Any]] = {
    "mul": np.multiply, "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater,
    "ge": np.greater_equal, "__and__": np.bitwise_and, "__or__": np.bitwise_or, "bitwise_and": np.bitwise_and,
    "bitwise_or": np.bitwise_or, "floor_divide": np.floor_divide, "maximum": np.maximum, "minimum": np.minimum,
}  # fmt: skip
FOLDS: dict[str, Callable[..., Any]] = {
    **{f"{name}.{kind}": _elementwise(function) for name, function in ELEMENTWISE.items()
       for kind in ("Tensor", "Scalar", "default")},
    **{f"add.{kind}": _scaled(np.add) for kind in ("Tensor", "Scalar")},
    **{f"sub.{kind}": _scaled(np.subtract) for kind in ("Tensor", "Scalar")},
    "logical_and.default": _elementwise(np.logical_and), "logical_or.default": _elementwise(np.logical_or),
    "bitwise_not.default": _elementwise(np.invert),
    "logical_not.default": _elementwise(np.logical_not), "neg.default": _elementwise(np.negative),
    "abs.default": _elementwise(np.abs),
    **{f"where.{kind}": _elementwise(np.where) for kind in ("self", "ScalarOther", "ScalarSelf", "Scalar")},
    **{f"masked_fill.{kind}": lambda shape, /, self, mask, value: _elementwise(np.where)(
        shape, mask=mask, value=value, self=self) for kind in ("Scalar", "Tensor")},
    **{f"arange.{name}": _counted for name in ("default", "start", "start_step")},
    **{f"{name}.default": _all_of("zeros") for name in ("zeros", "zeros_like", "new_zeros")},
    **{f"{name}.default": _all_of("ones") for name in ("ones", "ones_like", "new_ones")},
    **{f"{name}.default": _all_of("fill_value") for name in ("full", "full_like", "new_full")},
    "scalar_tensor.default": _all_of("s"),
    **{name: _same for name in (
        "alias.default", "contiguous.default", "clone.default", "detach.default", "detach_.default",
        "lift_fresh_copy.default",
        "to.dtype", "to.device", "to.dtype_layout", "_to_copy.default")},
    "unsqueeze.default": lambda shape, /, self, dim: np.expand_dims(self.base, dim),
    "squeeze.dim": _reshaped, "view.default": _reshaped, "reshape.default": _reshaped,
    "transpose.int": lambda shape, /, self, dim0, dim1: self.base.swapaxes(dim0, dim1),
    "permute.default": lambda shape, /, self, dims: self.base.transpose(tuple(dims)),
    "expand.default": _same, "slice.Tensor": _part, "select.int": _selected, "index.Tensor": _at_places,
    "cumsum.default": _running_sum, "repeat.default": _repeated,
    "diff.default": _differences, "tril.default": _triangle(np.tril), "triu.default": _triangle(np.triu),
}  # fmt: skip
"""Functions of known tensors, by kinds."""
NOT_READ = frozenset({"device", "layout", "pin_memory", "memory_format", "non_blocking", "copy", "implicit"})
"""Arguments for the memory format or device of a tensor."""
LIKE = frozenset({"zeros_like.default", "ones_like.default", "full_like.default", "new_zeros.default",
                  "new_ones.default", "new_full.default"})  # fmt: skip
"""Kinds that read no number of their first argument."""


def allows(mask: KnownTensor) -> Any:
    """Return whether a mask lets a query look at a key, as the mask's base has it: a Bool mask has it, an added one is
    0 there and hides the rest. None if it does neither, or a query would look at nothing by numbers that are not
    infinite: those leave it an equal share of all keys."""
    if mask.base.dtype == bool:
        return mask.base
    hidden = mask.base <= np.finfo(np.float16).min if mask.base.dtype.kind == "f" else None
    if hidden is None or not np.array_equal(mask.base == 0, ~hidden):
        return None
    if (hidden.all(-1) & np.isfinite(mask.base).any(-1)).any():
        return None
    return ~hidden


def band_of(seen: Any, queries: int, keys: int) -> tuple[int, int] | None:
    """Return (how many keys before its own place a query looks at, how many after it), if that is so for all queries of
    as many keys; None if it is not."""
    if queries != keys or seen.size != queries * keys:
        return None
    rows = seen.reshape(queries, keys)
    if not (rows[0].any() and rows[-1].any()):
        return None
    before, behind = keys - 1 - int(rows[-1].argmax()), keys - 1 - int(rows[0, ::-1].argmax())
    for place, row in enumerate(rows):
        first, last = max(0, place - before), min(keys, place + behind + 1)
        if not row[first:last].all() or row[:first].any() or row[last:].any():
            return None
    return before, behind
