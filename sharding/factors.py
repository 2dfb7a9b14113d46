"""A factor rule is one string that says how the dimensions of an operator's tensors belong together.

`"m k, k n -> m n"` is a matrix product: `k` is in the inputs and in no output, so sharding it leaves partial results
(`reduction` says how they combine). The same rule gives shape inference, the legal strategies and propagation,
and knows no operator by name.

    name      a factor; the same name means the same size and the same axes
    name!     a factor that must not be sharded (softmax axis)
    name=8    a factor with a given size, where no input dimension tells it
    (a b)     one dimension made of two factors, the first the more significant (reshape)
    1         a dimension of size 1 that is broadcast, never sharded
    +a b      a result that is a sum over all factors that it lacks and other results have (a weight's gradient beside
              that of its operand), so that sharding them leaves it partial

nnScaler's annotations and Shardy's sharding rules are the models (factor, reduction and need-replication kinds).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache

from mspc.ir.diagnostics import MspcError
from mspc.ir.late_dataclass import dataclass
from mspc.ir.layout import Axes, Layout

Dim = tuple[int, ...]
"""Factors of one dimension, major to minor; () for a broadcast dimension of size 1."""

_TOKEN = re.compile(r"\(|\)|1|[A-Za-z_]\w*(?:=\d+)?!?")


@dataclass(frozen=True, slots=True, eq=False)
class Rule:
    """A parsed rule with the sizes of its factors. Equal rules are one object (parsing is cached), so that rules are
    cheap keys.

    inputs, outputs: per tensor, per dimension, the factors that make it up.
    names, sizes: of every factor.
    frozen: factors that must not be sharded.
    reduction: how partial results over a reduced factor combine ("sum", "mean", "max", ...).
    summed: indices of results that are sums over every factor that they lack.
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
        """Factors of an input that no output has."""
        remaining = {f for dims in self.outputs for dim in dims for f in dim}
        return frozenset(f for dims in self.inputs for dim in dims for f in dim if f not in remaining)

    def output_shapes(self) -> tuple[tuple[int, ...], ...]:
        return tuple(tuple(math.prod(self.sizes[f] for f in dim) for dim in dims) for dims in self.outputs)

    def layouts(
        self, mesh: tuple[int, ...], axes: Sequence[Axes], passed: Axes = (), passed_reduction: str = "sum"
    ) -> tuple[tuple[Layout, ...], tuple[Layout, ...]]:
        """(layouts that the inputs need, layouts of the outputs) when factor f is sharded by `axes[f]` of `mesh`.

        `passed` are axes over which the caller lets an input stay partial (linear operators); they come out as
        partial, and are not in the inputs' layouts returned here.
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
    """Names per tensor and dimension, the names in order of appearance, given sizes, frozen names, summed results."""
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
    text: str,
    input_shapes: Sequence[Sequence[int]],
    operator: str = "operator",
    reduction: str = "sum",
    sizes: Mapping[str, int] | None = None,
) -> Rule:
    """The rule of `text` for inputs of these shapes; cached, since networks repeat the same operators.

    Raises:
        MspcError: the shapes do not fit the rule; the message names operator, input, dimension and value.
    """
    return _parse_rule(
        text, tuple(map(tuple, input_shapes)), operator, reduction, tuple(sorted(sizes.items())) if sizes else ()
    )


@lru_cache(maxsize=4096)
def _parse_rule(
    text: str,
    input_shapes: tuple[tuple[int, ...], ...],
    operator: str,
    reduction: str,
    given: tuple[tuple[str, int], ...],
) -> Rule:
    ins, outs, order, fixed, frozen, summed = _parse(text)
    if not input_shapes and ins == [[]]:
        ins = []  # " -> a=8": an operator without operands, not one with a scalar operand
    if len(ins) != len(input_shapes):
        raise MspcError(f"{operator} takes {len(ins)} tensors, not {len(input_shapes)}")
    sizes: dict[str, int] = {**fixed, **dict(given)}
    where: dict[str, str] = {}
    for i, (dims, shape) in enumerate(zip(ins, input_shapes, strict=True)):
        if len(dims) != len(shape):
            raise MspcError(f"{operator} needs {len(dims)} dimensions in input {i}, whose shape is {tuple(shape)}")
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
