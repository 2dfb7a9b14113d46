"""Merge of several texts into one, in which integers become expressions of the sizes the texts were made for."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import product
from math import prod
from typing import Any

from mspc.compiler.driver import Compiled
from mspc.engine.capture import CapturedCall
from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Graph
from mspc.ir.late_dataclass import dataclass
from mspc.ir.text.printer import print_graph
from mspc.ir.types import TensorType
from mspc.mindspore_api.nn.cell_state import Dimension, open_dimensions
from mspc.output.dumps import NO_FILES
from mspc.output.programs import compile_for

Point = tuple[int, ...]
"""For every symbol, the index of its size among its three sizes."""
Polynomial = dict[tuple[int, ...], Fraction]
"""Coefficients of the terms; a key holds the symbols that a term multiplies, ascending."""
_NUMBER = re.compile(r"((?<![\w.%])\d+(?:\.\d+)?(?:e[+-]?\d+)?(?![\w.]))")


def points_of(symbols: int) -> list[Point]:
    """Return the points at which a polynomial of so many symbols is fitted and checked. It is linear in each symbol."""
    corners = list(product((0, 1), repeat=symbols))
    beyond = [tuple(2 * (other == symbol) for other in range(symbols)) for symbol in range(symbols)]
    return list(dict.fromkeys([*corners, *beyond, (2,) * symbols]))


def polynomial(values: Mapping[Point, int], sizes: Sequence[Sequence[int]]) -> Polynomial | None:
    """Return the polynomial with these values at every point, or None if none exists that is linear in each symbol.
    sizes: the three sizes of every symbol."""
    found = _through_corners(values, sizes, ())
    for point, value in values.items():
        at = [sizes[symbol][choice] for symbol, choice in enumerate(point)]
        if sum(factor * prod(at[s] for s in symbols) for symbols, factor in found.items()) != value:
            return None
    return {symbols: factor for symbols, factor in found.items() if factor} or {(): Fraction(0)}


def _through_corners(values: Mapping[Point, int], sizes: Sequence[Sequence[int]], point: Point) -> Polynomial:
    symbol = len(point)
    if symbol == len(sizes):
        return {(): Fraction(values[point])}
    low, high = (_through_corners(values, sizes, (*point, choice)) for choice in (0, 1))
    first, second = sizes[symbol][:2]
    found: Polynomial = {}
    for symbols, value in low.items():
        slope = (high[symbols] - value) / (second - first)
        found[symbols] = value - slope * first
        found[(symbol, *symbols)] = slope
    return found


def shown(found: Polynomial, names: Sequence[str]) -> str:
    """Return a polynomial as text: `2*s1*s2 + s1/4 + 3`."""
    text = ""
    for symbols, factor in sorted(found.items(), key=lambda entry: (-len(entry[0]), entry[0])):
        size = abs(factor)
        words = [str(size.numerator)] if size.numerator != 1 or not symbols else []
        term = "*".join([*words, *(names[symbol] for symbol in symbols)])
        term += f"/{size.denominator}" if size.denominator != 1 else ""
        sign = "-" if factor < 0 else "+"
        text += f" {sign} {term}" if text else f"-{term}" if factor < 0 else term
    return text


def merged(
    texts: Mapping[Point, str], sizes: Sequence[Sequence[int]], names: Sequence[str],
    differs: Callable[[str, Point, str], str],
) -> tuple[str, str]:
    """Return (one text for all, ""), with an expression for each integer that differs, or ("", reason) if none fits.

    differs: makes the reason from a line of the first point, another point, and its line.
    """  # fmt: skip
    lines = {point: text.splitlines() for point, text in texts.items()}
    first = next(iter(lines))
    for point, own in lines.items():
        if len(own) != len(lines[first]):
            return "", differs(f"{len(lines[first])} lines", point, f"{len(own)} lines")
    found: list[str] = []
    for number, line in enumerate(lines[first]):
        if all(own[number] == line for own in lines.values()):
            found.append(line)
            continue
        parts = {point: _NUMBER.split(own[number]) for point, own in lines.items()}
        united = _merged_parts(parts, sizes, names)
        if isinstance(united, tuple):
            return "", differs(line.strip(), united, lines[united][number].strip())
        found.append(united)
    return "\n".join(found) + "\n", ""


def _merged_parts(
    parts: Mapping[Point, list[str]], sizes: Sequence[Sequence[int]], names: Sequence[str]
) -> str | Point:
    """Return the merged text of one line, or a point that does not fit. parts: words and numbers, alternating."""
    words = next(iter(parts.values()))
    for point, own in parts.items():
        if own[::2] != words[::2]:
            return point
    found: list[str] = []
    for place, word in enumerate(words):
        values = {point: own[place] for point, own in parts.items()}
        other = next((point for point, value in values.items() if value != word), None)
        if other is None:
            found.append(word)
            continue
        text = _expression(values, sizes, names)
        if not text:
            return other
        found.append(text)
    return "".join(found)


def _expression(values: Mapping[Point, str], sizes: Sequence[Sequence[int]], names: Sequence[str]) -> str:
    """Return the expression of integers, or 1/(expression) for floats; "" if neither is found."""
    if all(value.isdecimal() for value in values.values()):
        found = polynomial({point: int(value) for point, value in values.items()}, sizes)
        return shown(found, names) if found is not None else ""
    floats = {point: float(value) for point, value in values.items()}
    if not all(floats.values()):
        return ""
    parts = {point: round(1 / value) for point, value in floats.items()}
    if any(part == 0 or abs(part * floats[point] - 1) > 2**-24 for point, part in parts.items()):
        return ""  # a Float32 is no further from the number that it rounds
    found = polynomial(parts, sizes)
    return f"1/({shown(found, names)})" if found is not None else ""


MOST_SYMBOLS = 3
"""Most open sizes: each further symbol doubles the number of compiles."""
ATTEMPTS = 6
"""Most sizes of a symbol that are tried, as the network may not compile for some."""
_SAME = ("group", "rank_list", "mesh", "axes")
"""Fields of collectives that must not depend on a size."""


@dataclass(frozen=True)
class _Symbol:
    """Dimensions that share one size. sizes: three of them, that of the call first."""

    name: str
    dimensions: tuple[Dimension, ...]
    sizes: tuple[int, ...] = ()

    def line(self) -> str:
        said = list(dict.fromkeys(dimension.said for dimension in self.dimensions))
        labels = ", ".join(dimension.label for dimension in self.dimensions)
        return f"# {self.name}: {labels}; declared: {'; '.join(said)}"


class _None(Exception):
    """Error: no single graph covers all sizes; the message says why."""


def symbolic_graph(captured: CapturedCall, compiled: Compiled, rank: int) -> str:
    """Return the text of the single graph of a launch for all sizes, or the reason why none exists; "" if no size is
    open.

    compiled: the launch as it was called. rank: the rank that the graph is of.
    """
    # Dimensions of one Symbol are one size; without a Symbol they are one if they are equal in the call.
    same: dict[Any, list[Dimension]] = {}
    for dimension in open_dimensions(captured.target, captured.args):
        same.setdefault((id(dimension.rule), dimension.size), []).append(dimension)
    symbols = [_Symbol(f"s{number}", tuple(dimensions)) for number, dimensions in enumerate(same.values(), 1)]
    if not symbols:
        return ""
    head = [symbol.line() for symbol in symbols]
    try:
        return _written(captured, compiled, rank, symbols, head)
    except _None as reason:
        return "\n".join([*head, "# There is no one graph for all sizes that could be shown:", f"# {reason}", ""])


def _written(captured: CapturedCall, compiled: Compiled, rank: int, symbols: Sequence[_Symbol], head: list[str]) -> str:
    if len(symbols) > MOST_SYMBOLS:
        raise _None(f"{len(symbols)} sizes are open, and it is looked for up to {MOST_SYMBOLS}")
    compiles = _Compiles(captured, compiled, rank, symbols)
    symbols = [replace(symbol, sizes=compiles.sizes_of(place)) for place, symbol in enumerate(symbols)]
    sizes, names = [symbol.sizes for symbol in symbols], [symbol.name for symbol in symbols]
    texts: dict[Point, str] = {}

    def at(point: Point) -> str:
        return ", ".join(f"{s.name} = {s.sizes[choice]}" for s, choice in zip(symbols, point, strict=True))

    first = (0,) * len(symbols)
    for point in points_of(len(symbols)):
        found = compiles.of(tuple(own[choice] for own, choice in zip(sizes, point, strict=True)))
        if isinstance(found, MspcError):
            raise _None(f"with {at(point)} it does not compile: {found.message}")
        other = _other_cuts(compiled.graph, found.graph)
        if other:
            raise _None(f"with {at(first)} and with {at(point)} {other}")
        lines = print_graph(found.rank_graph(rank)).splitlines(keepends=True)
        texts[point] = "".join(line for line in lines if not line.startswith("compile_id"))
    text, why = merged(
        texts, sizes, names, lambda line, point, other: f"with {at(first)}: {line}\n# with {at(point)}: {other}"
    )
    if why:
        raise _None(why)
    return "\n".join([
        f"# What rank {rank} executes, with the sizes that set_inputs leaves open as {', '.join(names)}: for people to "
        "read, no file of mspc's.",
        *head,
        f"# compiled with {'; '.join(map(at, texts))}:",
        "# operators, layouts and collectives are the same in all, and every number is what its expression gives.",
        text,
    ])  # fmt: skip


class _Compiles:
    """Compiles of a launch with other sizes, each made once."""

    def __init__(self, captured: CapturedCall, compiled: Compiled, rank: int, symbols: Sequence[_Symbol]) -> None:
        self._launch = captured
        self._rank = rank
        self._symbols = symbols
        self._call = tuple(symbol.dimensions[0].size for symbol in symbols)
        self._known: dict[tuple[int, ...], Compiled | MspcError] = {self._call: compiled}

    def of(self, sizes: tuple[int, ...]) -> Compiled | MspcError:
        """Return the compile with these sizes of the symbols, or its error."""
        if sizes not in self._known:
            args = list(self._launch.args)
            for symbol, size in zip(self._symbols, sizes, strict=True):
                for dimension in symbol.dimensions:
                    args = _with_size(args, dimension.place, dimension.index, size)
            captured, ranks = replace(self._launch, args=tuple(args)), self._known[self._call].config.all_ranks
            try:
                self._known[sizes] = compile_for(captured, ranks, NO_FILES).compiled
            except MspcError as error:
                self._known[sizes] = error
        return self._known[sizes]

    def sizes_of(self, place: int) -> tuple[int, ...]:
        """Return three sizes of a symbol for which the network compiles, the others as in the call. Raise `_None` if
        there are fewer."""
        symbol, size = self._symbols[place], self._call[place]
        allowed = [n for n in _others(size, symbol) if all(d.allows(n) for d in symbol.dimensions)]
        found, reason = [size], ""
        for other in allowed[:ATTEMPTS]:
            compiled = self.of((*self._call[:place], other, *self._call[place + 1 :]))
            if isinstance(compiled, MspcError):
                reason = f": with {other} it does not compile: {compiled.message}"
            else:
                found.append(other)
            if len(found) == 3:
                return tuple(found)
        raise _None(f"for {symbol.name} no three sizes were found to compare{reason}")


def _others(size: int, symbol: _Symbol) -> list[int]:
    """Return further candidate sizes of a symbol. Multiples of the call's size come first: they shard the same way."""
    step = max((d.rule.divisor for d in symbol.dimensions if d.rule is not None), default=1)
    found = [2 * size, 3 * size, 4 * size, size // 2, size // 4, size + step, size + 2 * step, size - step]
    return [n for n in dict.fromkeys(found) if n > 1 and n != size]  # a size of 1 is broadcast


def _with_size(args: Sequence[Any], place: tuple[int, ...], dimension: int, size: int) -> list[Any]:
    """Return the arguments with a dimension of one tensor resized; the tensor is replaced by its type."""
    found = list(args)
    index, *inner = place
    if inner:
        found[index] = tuple(_with_size(found[index], tuple(inner), dimension, size))
        return found
    shape = list(found[index].shape)
    shape[dimension] = size
    found[index] = TensorType(found[index].dtype, tuple(shape))
    return found


def _other_cuts(one: Graph, other: Graph) -> str:
    """Return the first difference of two graphs other than tensor sizes, as text; "" if there is none."""
    if [node.op.name for node in one.nodes] != [node.op.name for node in other.nodes]:
        return "other operators run"
    for value, same in zip(one.values(), other.values(), strict=True):
        if value.layout != same.layout or getattr(value, "in_layouts", None) != getattr(same, "in_layouts", None):
            return f"{getattr(value, 'label', value.name)} is sharded otherwise"
    for node, same in zip(one.nodes, other.nodes, strict=True):
        fields = same.op.attributes()
        if node.op.is_collective and any(node.op.attributes().get(key) != fields.get(key) for key in _SAME):
            return f"other ranks meet in {node.label}"
    return ""
