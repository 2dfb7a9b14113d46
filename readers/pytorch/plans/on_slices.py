"""Decides whether an operator gives slices of its results for slices of its operands, by computing both on an example.

Ranks that follow a plan by hand call every operator on what they hold. That is right if rank r gets slice r of what the
operator gives for whole operands, along some dimension of the result, or all of it. No list of operators could say so:
of `x[:, ::2]` it is true, and of `x[:, :8]` not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from mspc.api.common.tensor import Tensor
from mspc.ir.diagnostics import MspcError
from mspc.readers.pytorch.control import CONTROL
from mspc.readers.pytorch.kinds.kind import Kind
from mspc.readers.pytorch.kinds.random import RANDOM
from mspc.readers.pytorch.kinds.table import kind_of
from mspc.readers.pytorch.program import Argument, ExportedNode, ExportedType, NodeResult

SMALL, LARGEST = 1 << 14, 1 << 22
"""Elements up to which tensors are computed as they are, and up to which they are computed at all."""
SIZES = frozenset({"size", "sizes", "shape"})
"""Arguments that name the shape of the result: a rank's own program has that of its slice there."""
DRAWN = frozenset(kind.name for kinds in RANDOM for kind in kinds)


class Unjudged(Exception):
    """The operator cannot be computed here."""


def dims_of_results(
    node: ExportedNode, types: Mapping[str, ExportedType], cuts: Mapping[str, int], parts: int
) -> list[int | None] | None:
    """Return for every result the dimension along which ranks get slices of it, None if each gets all.

    types: of the operands, by name. cuts: the dimensions of operands that are cut, the others are whole.

    Returns None if the ranks get anything else.

    Raises:
        Unjudged: the operator is not computed: it draws numbers, runs graphs, is too large, or has open sizes.
    """
    kind = None if node.target in CONTROL else kind_of(node.target)
    if kind is None or kind.name in DRAWN or kind.writes not in ((), (kind.arguments[0].name,)):
        raise Unjudged
    shapes = {name: _numbers(type) for name, type in types.items()}
    if any(shapes[name][dim] % parts for name, dim in cuts.items()):
        raise Unjudged
    smaller = _smaller(shapes, cuts)
    arrays = _arrays(types, shapes, smaller)
    if sum(array.size for array in arrays.values()) > LARGEST:
        raise Unjudged
    try:
        whole = _computed(kind, node, arrays, smaller)
    except MspcError:
        raise Unjudged from None
    return _dims(kind, node, arrays, smaller, cuts, parts, whole)


def _dims(
    kind: Kind, node: ExportedNode, arrays: Mapping[str, Any], smaller: Mapping[int, int], cuts: Mapping[str, int],
    parts: int, whole: Sequence[Any],
) -> list[int | None] | None:  # fmt: skip
    found: list[int | None] = []
    ranks = sorted({0, 1, parts - 1})
    slices = [{n: _slice(a, cuts[n], parts, rank) if n in cuts else a for n, a in arrays.items()} for rank in ranks]
    for place, expected in enumerate(whole):
        for dim in _candidates(expected, parts):
            wanted = [expected if dim is None else _slice(expected, dim, parts, rank) for rank in ranks]
            if _gives(kind, node, slices, smaller, place, wanted):
                found.append(dim)
                break
        else:
            return None
    return found


def _candidates(expected: Any, parts: int) -> Iterator[int | None]:
    """The dimensions along which a result may be cut; last that it is not."""
    yield from (dim for dim, size in enumerate(expected.shape) if size % parts == 0 and size)
    yield None


def _gives(
    kind: Kind, node: ExportedNode, slices: Sequence[Mapping[str, Any]], smaller: Mapping[int, int], place: int,
    wanted: Sequence[Any],
) -> bool:  # fmt: skip
    """Whether ranks get these arrays for a result, with the arguments as they are or with their own shape."""
    shape = tuple(wanted[0].shape)
    for own in (None, shape) if any(name in SIZES for name, _ in node.arguments) else (None,):
        try:
            found = [_computed(kind, node, each, smaller, own)[place] for each in slices]
        except (MspcError, IndexError):
            continue
        pairs = zip(found, wanted, strict=True)
        if all(a.shape == b.shape and np.allclose(a, b, 1e-4, 1e-5, equal_nan=True) for a, b in pairs):
            return True
    return False


def _computed(
    kind: Kind, node: ExportedNode, arrays: Mapping[str, Any], smaller: Mapping[int, int],
    own: tuple[int, ...] | None = None,
) -> list[Any]:  # fmt: skip
    """The results. own: the shape that arguments for one have."""

    def operand(value: Argument) -> Any:
        if isinstance(value, NodeResult):
            return Tensor(arrays[value.name])
        return tuple(map(operand, value)) if isinstance(value, tuple) else value

    given: dict[str, Any] = {}
    for name, value in node.arguments:
        if name in SIZES and isinstance(value, tuple):
            sizes = tuple(smaller.get(size, size) if isinstance(size, int) else size for size in value)
            value = own if own is not None and len(own) == len(value) else sizes
        given[name] = value if name in kind.unread else operand(value)
    with np.errstate(all="ignore"):
        try:
            found = kind.target(*kind.bound(given))
        except (TypeError, ValueError, IndexError, ArithmeticError, AttributeError) as error:
            raise MspcError(str(error)) from None
    results = list(found) if isinstance(found, (tuple, list)) else [found]
    if len(results) < len(node.results) or not all(isinstance(each, Tensor) for each in results[: len(node.results)]):
        raise MspcError("there are other results")
    return [each.asnumpy() for each in results[: len(node.results)]]


def _numbers(type: ExportedType) -> tuple[int, ...]:
    if not all(isinstance(size, int) for size in type.shape):
        raise Unjudged
    return tuple(size for size in type.shape if isinstance(size, int))


def _smaller(shapes: Mapping[str, tuple[int, ...]], cuts: Mapping[str, int]) -> dict[int, int]:
    """Smaller sizes in the place of those that no operand is cut along, where operands are large."""
    if sum(int(np.prod(shape)) for shape in shapes.values()) <= SMALL:
        return {}
    fixed = {shapes[name][dim] for name, dim in cuts.items()}
    return {size: 2 for shape in shapes.values() for size in shape if size > 2 and size not in fixed}


def _arrays(
    types: Mapping[str, ExportedType], shapes: Mapping[str, tuple[int, ...]], smaller: Mapping[int, int]
) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    found: dict[str, Any] = {}
    for name, type in types.items():
        shape = tuple(smaller.get(size, size) for size in shapes[name])
        if np.prod(shape, dtype=float) > LARGEST:
            raise Unjudged
        dtype = type.dtype.numpy
        if type.dtype.is_complex:
            found[name] = (rng.uniform(-1, 1, shape) + 1j * rng.uniform(-1, 1, shape)).astype(dtype)
        elif type.dtype.is_float:
            found[name] = rng.uniform(-1, 1, shape).astype(dtype)
        else:
            found[name] = rng.integers(0, 2, shape).astype(dtype)
    return found


def _slice(array: Any, dim: int, parts: int, rank: int) -> Any:
    count = array.shape[dim] // parts
    return np.ascontiguousarray(array[(slice(None),) * dim + (slice(rank * count, (rank + 1) * count),)])
