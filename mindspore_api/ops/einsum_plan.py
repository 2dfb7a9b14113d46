"""Plans of sums over products in Einstein notation, as diagonals, sums, transposes and matmuls.

Plans are made when a network is compiled; `ops.einsum` executes them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

from mspc.ir.late_dataclass import dataclass
from mspc.mindspore_api.errors import ApiTypeError, ApiValueError
from mspc.ops.operator_arguments import describe

Shape = tuple[int, ...]
Labels = tuple[str, ...]


@dataclass(frozen=True)
class Prepared:
    """Preparation of one operand. diagonals: pairs of dimensions, in sequence; each pair is replaced by its diagonal,
    at the end. dropped: dimensions of size 1 to remove. summed: dimensions that no other operand and no result has."""

    diagonals: tuple[tuple[int, int], ...]
    dropped: Shape
    summed: Shape


@dataclass(frozen=True)
class Product:
    """Product of the result so far and the next operand, each transposed and reshaped first.

    is_matrix: a matmul; else elementwise.
    """

    left_order: Shape
    left_shape: Shape
    right_order: Shape
    right_shape: Shape
    is_matrix: bool
    shape: Shape


@dataclass(frozen=True)
class EinsumPlan:
    """operands, products: in order, one product less than operands. order: of the dimensions of the result, without
    those of size 1. shape: of the result."""

    operands: tuple[Prepared, ...]
    products: tuple[Product, ...]
    order: Shape
    shape: Shape


def einsum_equation(terms: Sequence[Any], result: Sequence[Any]) -> str:
    """Return the equation of a call with labels given as lists of numbers after each tensor; `result` has the labels of
    the result, or is empty. Raise ValueError if a number has no letter; TypeError if they are no lists of numbers."""
    if not terms:
        raise ApiTypeError("einsum(): the first argument must be an equation, or a tensor followed by its labels")
    return "->".join([",".join(map(_term, terms)), *map(_term, result)])


def _term(labels: Any) -> str:
    if not isinstance(labels, list | tuple):
        raise ApiTypeError(f"einsum(): labels must be a list of integers, not {describe(labels)}")
    letters = ""
    for label in labels:
        if label is not Ellipsis and not (isinstance(label, int) and 0 <= label < 52):
            raise ApiValueError(f"einsum(): a label must be an integer from 0 to 51 or ..., not {describe(label)}")
        letters += "..." if label is Ellipsis else chr((65 if label < 26 else 71) + label)
    return letters


def einsum_plan(equation: str, shapes: Sequence[Shape]) -> EinsumPlan:
    """Return the plan of the sum. Raise ValueError if the equation is invalid, or does not fit the shapes."""
    if not shapes:
        raise ApiTypeError("einsum(): there are no tensors after the equation")
    terms, wanted = _labels(equation, shapes)
    sizes = _sizes(equation, terms, shapes)
    for label in wanted:
        if label not in sizes:
            raise ApiValueError(f"einsum(): '{label}' of the result is in no operand of {equation!r}")
    if len(set(wanted)) != len(wanted):
        raise ApiValueError(f"einsum(): the result of {equation!r} names a dimension twice", code="E0307")
    wide = [label for label in wanted if sizes[label] != 1]
    remaining: list[Labels] = []
    operands: list[Prepared] = []
    named = [dict(zip(term, shape, strict=True)) for term, shape in zip(terms, shapes, strict=True)]
    wider = [{label for label, size in term.items() if size != 1} for term in named]
    for i, (labels, shape) in enumerate(zip(terms, shapes, strict=True)):
        others = set(wide).union(*wider[:i], *wider[i + 1 :])
        prepared, left = _prepared(labels, shape, others)
        operands.append(prepared)
        remaining.append(left)
    products: list[Product] = []
    have = remaining[0]
    for i, right in enumerate(remaining[1:], 1):
        later = {label for term in remaining[i + 1 :] for label in term} | set(wide)
        product, have = _product(have, right, later, sizes)
        products.append(product)
    order = tuple(have.index(label) for label in wide)
    return EinsumPlan(tuple(operands), tuple(products), order, tuple(sizes[label] for label in wanted))


def _labels(equation: str, shapes: Sequence[Shape]) -> tuple[list[Labels], Labels]:
    """Return labels of every operand and of the result; those of an ellipsis are numbers, counted from the end."""
    text = equation.replace(" ", "")
    left, arrow, right = text.partition("->")
    parts = left.split(",")
    if len(parts) != len(shapes):
        raise ApiValueError(f"einsum(): {equation!r} names {len(parts)} operands, and there are {len(shapes)}")
    terms = [_expanded(equation, part, len(shape)) for part, shape in zip(parts, shapes, strict=True)]
    dots = sorted({label for term in terms for label in term if label.isdigit()}, key=int, reverse=True)
    if arrow:
        return terms, _result(equation, right, dots)
    counts = Counter(label for term in terms for label in term)
    return terms, (*dots, *sorted(label for label, n in counts.items() if n == 1 and not label.isdigit()))


def _result(equation: str, term: str, dots: Sequence[str]) -> Labels:
    before, named, after = term.partition("...")
    _check_letters(equation, before + after)
    return (*before, *(dots if named else ()), *after)


def _expanded(equation: str, term: str, rank: int) -> Labels:
    before, named, after = term.partition("...")
    _check_letters(equation, before + after)
    rest = rank - len(before) - len(after)
    if rest < 0 or (rest and not named):
        raise ApiValueError(f"einsum(): '{term}' of {equation!r} does not name the {rank} dimensions of its operand")
    return (*before, *map(str, reversed(range(rest))), *after)


def _check_letters(equation: str, letters: str) -> None:
    for letter in letters:
        if not (letter.isascii() and letter.isalpha()):
            raise ApiValueError(f"einsum(): {equation!r} holds '{letter}', which is no letter")


def _sizes(equation: str, terms: Sequence[Labels], shapes: Sequence[Shape]) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for labels, shape in zip(terms, shapes, strict=True):
        for label, size in zip(labels, shape, strict=True):
            known = sizes.get(label, 1)
            if 1 not in (known, size) and known != size:
                what = "a dimension of the ellipsis" if label.isdigit() else f"'{label}'"
                raise ApiValueError(f"einsum(): {what} of {equation!r} is {known} in one operand and {size} in another")
            sizes[label] = size if known == 1 else known
    return sizes


def _prepared(labels: Labels, shape: Shape, others: set[str]) -> tuple[Prepared, Labels]:
    dims = list(zip(labels, shape, strict=True))
    dropped = tuple(d for d, (_, size) in enumerate(dims) if size == 1)
    dims = [entry for entry in dims if entry[1] != 1]
    diagonals: list[tuple[int, int]] = []
    while True:
        names = [label for label, _ in dims]
        twice = next((label for label in names if names.count(label) > 1), None)
        if twice is None:
            break
        first = names.index(twice)
        second = names.index(twice, first + 1)
        diagonals.append((first, second))
        dims = [entry for d, entry in enumerate(dims) if d not in (first, second)] + [dims[first]]
    summed = tuple(d for d, (label, _) in enumerate(dims) if label not in others)
    return Prepared(tuple(diagonals), dropped, summed), tuple(label for label, _ in dims if label in others)


def _product(left: Labels, right: Labels, later: set[str], sizes: dict[str, int]) -> tuple[Product, Labels]:
    """Return the product of two operands, and its labels: shared ones that remain, those of the left one, of the right
    one."""
    shared = tuple(label for label in left if label in right)
    batch = tuple(label for label in shared if label in later)
    summed = tuple(label for label in shared if label not in later)
    rows = tuple(label for label in left if label not in shared)
    columns = tuple(label for label in right if label not in shared)

    def count(labels: Labels) -> int:
        return math.prod(sizes[label] for label in labels)

    def shape(*labels: str) -> Shape:
        return tuple(sizes[label] for label in labels)

    orders = [
        tuple(have.index(label) for label in wanted)
        for have, wanted in ((left, (*batch, *rows, *summed)), (right, (*batch, *summed, *columns)))
    ]
    out = (*batch, *rows, *columns)
    if summed:
        left_shape = (*shape(*batch), count(rows), count(summed))
        right_shape = (*shape(*batch), count(summed), count(columns))
    else:
        left_shape = (*shape(*batch, *rows), *(1 for _ in columns))
        right_shape = (*shape(*batch), *(1 for _ in rows), *shape(*columns))
    return Product(orders[0], left_shape, orders[1], right_shape, bool(summed), shape(*out)), out
