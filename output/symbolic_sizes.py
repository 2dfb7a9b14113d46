"""Writes integers of several texts as expressions of the sizes for which the texts were made."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from itertools import product
from math import prod

Point = tuple[int, ...]
"""For every symbol which of its three sizes it has."""
Polynomial = dict[tuple[int, ...], Fraction]
"""Coefficients by the symbols, ascending, of which each term is the product."""
_NUMBER = re.compile(r"((?<![\w.%])\d+(?:\.\d+)?(?:e[+-]?\d+)?(?![\w.]))")


def points_of(symbols: int) -> list[Point]:
    """Which sizes a polynomial of so many symbols, each in no term twice, needs to be known, and to be checked at."""
    corners = list(product((0, 1), repeat=symbols))
    beyond = [tuple(2 * (other == symbol) for other in range(symbols)) for symbol in range(symbols)]
    return list(dict.fromkeys([*corners, *beyond, (2,) * symbols]))


def polynomial(values: Mapping[Point, int], sizes: Sequence[Sequence[int]]) -> Polynomial | None:
    """What is `values` at every point, by the three sizes of every symbol; None where no polynomial is that has each
    symbol in no term twice."""
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
    """A polynomial as text: `2*s1*s2 + s1/4 + 3`."""
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
    """(one text for all, ""), with expressions where their integers differ; ("", why not) where there is none.

    differs: says it of a line of the first point and that of another point.
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
    """The tokens of one line, words and numbers in turns, as one; else a point that does not fit."""
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
    """What numbers are, or what floats are one part of; "" where nothing is found."""
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
