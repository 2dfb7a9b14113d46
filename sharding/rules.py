"""Factor rules: one string per operator with the factors that the dimensions of its tensors share; some depend on
shapes."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from functools import lru_cache

from mspc.ir.diagnostics import MspcError
from mspc.ir.late_dataclass import dataclass
from mspc.ir.layout import Axes, Layout

Dim = tuple[int, ...]
"""Factors of one dimension, major to minor; () for a broadcast dimension of size 1."""

_TOKEN = re.compile(r"\(|\)|1|[A-Za-z_]\w*(?:=\d+)?!?")


@dataclass(frozen=True, slots=True, eq=False)
class Rule:
    """A parsed rule with the sizes of its factors. Equal rules are one object, because parsing is cached, so rules are
    cheap keys.

    inputs, outputs: per tensor, per dimension, the factors that make it up. names, sizes: of every factor. frozen:
    factors that must not be sharded. reduction: how partial results over a reduced factor combine ("sum", "mean",
    "max", ...). summed: indices of results that are sums over all factors that they do not have.
    """

    inputs: tuple[tuple[Dim, ...], ...]
    outputs: tuple[tuple[Dim, ...], ...]
    names: tuple[str, ...]
    sizes: tuple[int, ...]
    frozen: frozenset[int]
    reduction: str = "sum"
    summed: frozenset[int] = frozenset()

    @property
    def reduced(self) -> frozenset[int]:
        """Factors of the inputs that no output has."""
        remaining = {f for dims in self.outputs for dim in dims for f in dim}
        return frozenset(f for dims in self.inputs for dim in dims for f in dim if f not in remaining)

    @property
    def is_elementwise(self) -> bool:
        """Whether every operand is a number for all elements, or has the layout of the only result."""
        return len(self.outputs) == 1 and all(
            dims == self.outputs[0] or all(self.sizes[f] == 1 for dim in dims for f in dim) for dims in self.inputs
        )

    def output_shapes(self) -> tuple[tuple[int, ...], ...]:
        return tuple(tuple(math.prod(self.sizes[f] for f in dim) for dim in dims) for dims in self.outputs)

    def layouts(
        self, mesh: tuple[int, ...], axes: Sequence[Axes], passed: Axes = (), passed_reduction: str = "sum"
    ) -> tuple[tuple[Layout, ...], tuple[Layout, ...]]:
        """Return (layouts of the inputs, layouts of the outputs) if factor f is sharded by `axes[f]` of `mesh`.

        passed: axes over which the caller lets an input remain partial (linear operators). They are partial in the
        outputs, and absent from the returned layouts of the inputs.
        """
        partial = tuple(a for f in sorted(self.reduced) for a in axes[f])
        ins = tuple(Layout.of(mesh, [_axes_of(dim, axes) for dim in dims]) for dims in self.inputs)
        outs: list[Layout] = []
        for index, dims in enumerate(self.outputs):
            own = partial
            if index in self.summed:
                own = tuple(a for f in range(len(self.names)) if all(f not in dim for dim in dims) for a in axes[f])
            reduction = self.reduction if own else passed_reduction
            outs.append(Layout.of(mesh, [_axes_of(dim, axes) for dim in dims], (*own, *passed), reduction))
        return ins, tuple(outs)

    def __str__(self) -> str:
        return f"{_side(self.inputs, self)} -> {_side(self.outputs, self, self.summed)}"


def _axes_of(dim: Dim, axes: Sequence[Axes]) -> Axes:
    return axes[dim[0]] if len(dim) == 1 else tuple(a for f in dim for a in axes[f])


def _side(tensors: tuple[tuple[Dim, ...], ...], rule: Rule, summed: frozenset[int] = frozenset()) -> str:
    def one(dim: Dim) -> str:
        names = [rule.names[f] + ("!" if f in rule.frozen else "") for f in dim]
        return "1" if not names else names[0] if len(names) == 1 else f"({' '.join(names)})"

    return ", ".join("+" * (i in summed) + " ".join(one(dim) for dim in dims) for i, dims in enumerate(tensors))


_Names = list[list[list[str]]]


@lru_cache(maxsize=4096)
def _parse(text: str) -> tuple[_Names, _Names, list[str], dict[str, int], frozenset[str], frozenset[int]]:
    """Return names per tensor and dimension of inputs and outputs, names in order of appearance, given sizes, frozen
    names, and summed results."""
    order: list[str] = []
    sizes: dict[str, int] = {}
    frozen: set[str] = set()

    def dims_of(tensor: str) -> list[list[str]]:
        dims: list[list[str]] = []
        inside = False
        for token in _TOKEN.findall(tensor):
            if token in "()":
                inside = token == "("
                if inside:
                    dims.append([])
                continue
            if not inside:
                dims.append([])
            if token == "1":
                continue
            name, _, size = token.rstrip("!").partition("=")
            if name not in order:
                order.append(name)
            if size:
                sizes[name] = int(size)
            if token.endswith("!"):
                frozen.add(name)
            dims[-1].append(name)
        return dims

    left, _, right = text.partition("->")
    nothing: _Names = [[]]
    ins = [dims_of(t) for t in left.split(",")] if left.strip() or "," in left else nothing
    results = right.split(",")
    outs = [dims_of(t) for t in results]
    summed = frozenset(i for i, t in enumerate(results) if t.lstrip().startswith("+"))
    return ins, outs, order, sizes, frozenset(frozen), summed


def parse_rule(
    text: str, input_shapes: Sequence[Sequence[int]], operator: str = "operator", reduction: str = "sum"
) -> Rule:
    """Return the rule of `text` for inputs of these shapes; cached, because networks repeat operators. Raise MspcError
    if the shapes do not fit the rule; the message names operator, input, dimension and value."""
    return _parse_rule(text, tuple(map(tuple, input_shapes)), operator, reduction)


@lru_cache(maxsize=4096)
def _parse_rule(text: str, input_shapes: tuple[tuple[int, ...], ...], operator: str, reduction: str) -> Rule:
    ins, outs, order, fixed, frozen, summed = _parse(text)
    if not input_shapes and ins == [[]]:
        ins = []  # " -> a=8": an operator without operands, not one with a scalar operand
    if len(ins) != len(input_shapes):
        raise MspcError(f"{operator} takes {len(ins)} tensors, not {len(input_shapes)}")
    sizes = dict(fixed)
    where: dict[str, str] = {}
    for i, (dims, shape) in enumerate(zip(ins, input_shapes, strict=True)):
        if len(dims) != len(shape):
            raise MspcError(
                f"{operator} needs {len(dims)} dimensions in input {i}, whose shape is {tuple(shape)}", code="E0303"
            )
        for d, (names, n) in enumerate(zip(dims, shape, strict=True)):
            unknown = [name for name in names if name not in sizes]
            known = math.prod(sizes[name] for name in names if name in sizes)
            if len(unknown) > 1 or (unknown and n % max(known, 1)):
                raise MspcError(f"{operator}: dimension {d} of input {i} is {n}, which does not fit {names}")
            if unknown:
                sizes[unknown[0]] = n // known
                where[unknown[0]] = f"dimension {d} of input {i}"
            elif known != n:
                first = where.get(names[0], "the operator's attributes") if names else "a broadcast of size 1"
                raise MspcError(
                    f"{operator}: dimension {d} of input {i} is {n}, but {first} says {known}",
                    notes=[f"the shapes are {', '.join(str(tuple(s)) for s in input_shapes)}"],
                    code="E0302",
                )
    index = {name: f for f, name in enumerate(order)}
    return Rule(
        tuple(tuple(tuple(index[n] for n in names) for names in dims) for dims in ins),
        tuple(tuple(tuple(index[n] for n in names) for names in dims) for dims in outs),
        tuple(order),
        tuple(sizes[n] for n in order),
        frozenset(index[n] for n in frozen),
        reduction,
        summed,
    )


Shape = tuple[int, ...]


def factor_names(count: int, first: int = 0) -> list[str]:
    """Return `count` names of factors: a, b, ..., z, a1, b1, ..."""
    return [chr(97 + i % 26) + (str(i // 26) if i >= 26 else "") for i in range(first, first + count)]


@lru_cache(maxsize=4096)
def broadcast_rule(shapes: tuple[Shape, ...], outputs: int = 1) -> str:
    """Return the rule of an elementwise operator: shapes are aligned at the right, dimensions of size 1 are broadcast.

    (8, 16), (16,) -> "a b, b -> a b". Sizes that do not fit are reported by the parser.
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
    """Return the rule of an operator with `inputs` inputs and `outputs` outputs, all of one shape."""
    return broadcast_rule((tuple(shape),) * inputs, outputs)


def sized(name: str, size: int) -> str:
    """Return a factor that only outputs have, with its size, or "1" for size 1. Raise MspcError for a negative size."""
    if size < 0:
        raise MspcError(f"the result would have the negative size {size} along a dimension")
    return "1" if size == 1 else f"{name}={size}"


@lru_cache(maxsize=4096)
def reshape_rule(source: Shape, target: Shape) -> str:
    """Return the rule of a reshape, from the common refinement of both shapes' cumulative products.

    (8, 16, 32) -> (128, 32) is "a b c -> (a b) c" and (64, 32) -> (32, 64) is "(a b) c -> a (b c)". If the cumulative
    products cross, the part between two common ones is frozen except for its largest leading factor: (6, 4) -> (4, 6)
    is "(a=2 x=3!) y=4! -> (a=2 z=2!) w=6!". Every factor carries its size. A tensor without elements has no such
    products: all dimensions after the common leading ones are frozen.
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
    left: list[tuple[int, int]], right: list[tuple[int, int]], i: int, j: int, product_left: int, product_right: int,
    ins: list[list[str]], outs: list[list[str]], names: Iterator[str],
) -> tuple[int, int]:  # fmt: skip
    """Freeze dimensions on both sides up to the next common cumulative product. Return the indices after them."""
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
