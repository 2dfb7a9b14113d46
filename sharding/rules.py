"""These rule strings depend on shapes: broadcasting and reshaping. They are pure functions of shapes, and know no
operators.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache

from mspc.ir.diagnostics import MspcError

Shape = tuple[int, ...]


def factor_names(count: int, first: int = 0) -> list[str]:
    """`count` names of factors: a, b, ..., z, a1, b1, ..."""
    return [chr(97 + i % 26) + (str(i // 26) if i >= 26 else "") for i in range(first, first + count)]


@lru_cache(maxsize=4096)
def broadcast_rule(shapes: tuple[Shape, ...], outputs: int = 1) -> str:
    """The rule of an elementwise operator: shapes aligned at the right, dimensions of size 1 broadcast.

    (8, 16), (16,) -> "a b, b -> a b". Sizes that do not fit are left to the rule's parser, which names them.
    """
    rank = max((len(shape) for shape in shapes), default=0)
    names = factor_names(rank)
    single = [all(shape[d - rank] == 1 for shape in shapes if len(shape) >= rank - d) for d in range(rank)]
    ins = [
        " ".join("1" if n == 1 else name for n, name in zip(shape, names[rank - len(shape) :], strict=True))
        for shape in shapes
    ]
    out = " ".join("1" if one else name for one, name in zip(single, names, strict=True))
    return f"{', '.join(ins)} -> {', '.join([out] * outputs)}"


def same_rule(shape: Sequence[int], inputs: int, outputs: int = 1) -> str:
    """`inputs` tensors of one shape in, `outputs` of the same shape out."""
    return broadcast_rule((tuple(shape),) * inputs, outputs)


def sized(name: str, size: int) -> str:
    """A factor that only outputs have, with its size; "1" where there is nothing to shard. Raises MspcError for a
    negative size."""
    if size < 0:
        raise MspcError(f"the result would have the negative size {size} along a dimension")
    return "1" if size == 1 else f"{name}={size}"


@lru_cache(maxsize=4096)
def reshape_rule(source: Shape, target: Shape) -> str:
    """The rule of a reshape, from the common refinement of both shapes' cumulative products.

    (8, 16, 32) -> (128, 32) is "a b c -> (a b) c" and (64, 32) -> (32, 64) is "(a b) c -> a (b c)". Where the
    cumulative products cross, the part between two common ones is frozen but for its greatest leading factor:
    (6, 4) -> (4, 6) is "(a=2 x=3!) y=4! -> (a=2 z=2!) w=6!". Every factor carries its size. A tensor without elements
    has no such products: what stands behind the leading dimensions that both shapes share is frozen.
    """
    if 0 in source:
        return _empty_reshape_rule(source, target)
    names = iter(factor_names(26 * 26))
    ins: list[list[str]] = [[] for _ in source]
    outs: list[list[str]] = [[] for _ in target]
    left = [(d, n) for d, n in enumerate(source) if n != 1]
    right = [(d, n) for d, n in enumerate(target) if n != 1]
    i = j = 0
    rest_left = left[0][1] if left else 1
    rest_right = right[0][1] if right else 1
    while i < len(left) and j < len(right):
        common = math.gcd(rest_left, rest_right)
        crossing = common != rest_left and common != rest_right
        if common > 1:
            token = f"{next(names)}={common}"
            ins[left[i][0]].append(token)
            outs[right[j][0]].append(token)
            rest_left //= common
            rest_right //= common
        if crossing:
            i, j = _freeze(left, right, i, j, rest_left, rest_right, ins, outs, names)
            rest_left = left[i][1] if i < len(left) else 1
            rest_right = right[j][1] if j < len(right) else 1
            continue
        if rest_left == 1:
            i += 1
            rest_left = left[i][1] if i < len(left) else 1
        if rest_right == 1:
            j += 1
            rest_right = right[j][1] if j < len(right) else 1
    return f"{_text(ins)} -> {_text(outs)}"


def _empty_reshape_rule(source: Shape, target: Shape) -> str:
    names = factor_names(len(source) + len(target))
    shared = 0
    while shared < min(len(source), len(target)) and source[shared] == target[shared]:
        shared += 1
    leading = [sized(name, n) for name, n in zip(names, source[:shared], strict=False)]
    ins = [sized(name, n) for name, n in zip(names[shared:], source[shared:], strict=False)]
    outs = [sized(name, n) for name, n in zip(names[len(source) :], target[shared:], strict=False)]
    left, right = ([token if token == "1" else f"{token}!" for token in tokens] for tokens in (ins, outs))
    return f"{' '.join(leading + left)} -> {' '.join(leading + right)}"


def _freeze(
    left: list[tuple[int, int]],
    right: list[tuple[int, int]],
    i: int,
    j: int,
    product_left: int,
    product_right: int,
    ins: list[list[str]],
    outs: list[list[str]],
    names: Iterator[str],
) -> tuple[int, int]:
    """Freeze dimensions on both sides up to the next common cumulative product; return where it ends."""
    ins[left[i][0]].append(f"{next(names)}={product_left}!")
    outs[right[j][0]].append(f"{next(names)}={product_right}!")
    while product_left != product_right:
        if product_left < product_right:
            i += 1
            d, n = left[i]
            product_left *= n
            ins[d].append(f"{next(names)}={n}!")
        else:
            j += 1
            d, n = right[j]
            product_right *= n
            outs[d].append(f"{next(names)}={n}!")
    return i + 1, j + 1


def _text(dims: list[list[str]]) -> str:
    return " ".join("1" if not dim else dim[0] if len(dim) == 1 else f"({' '.join(dim)})" for dim in dims)
