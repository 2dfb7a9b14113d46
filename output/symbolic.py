"""Makes one graph for all sizes that a call may have: where graphs of several sizes are the same up to their integers,
and these are polynomials of the sizes.

Input:  a launch of a cell whose `set_inputs` leaves sizes open. Output: the text of `symbolic_graph.txt`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from mspc.api.nn.cell_state import Dimension, open_dimensions
from mspc.compiler.driver import Compiled
from mspc.engine.capture import CapturedCall
from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Graph
from mspc.ir.late_dataclass import dataclass
from mspc.ir.text.printer import print_graph
from mspc.ir.types import TensorType
from mspc.output.dumps import NO_FILES
from mspc.output.programs import compile_for

if TYPE_CHECKING:
    from mspc.output.symbolic_sizes import Point

MOST_SYMBOLS = 3
"""Each further symbol takes twice as many compiles."""
ATTEMPTS = 6
"""How many sizes of a symbol are tried for which the network may not compile."""
_SAME = ("group", "rank_list", "mesh", "axes")
"""Fields of collectives that no size may change."""


@dataclass(frozen=True)
class _Symbol:
    """Dimensions of one size. sizes: three of them, that of the call first."""

    name: str
    dimensions: tuple[Dimension, ...]
    sizes: tuple[int, ...] = ()

    def line(self) -> str:
        said = list(dict.fromkeys(dimension.said for dimension in self.dimensions))
        labels = ", ".join(dimension.label for dimension in self.dimensions)
        return f"# {self.name}: {labels}; declared: {'; '.join(said)}"


class _None(Exception):
    """There is no one graph; the message says why."""


def symbolic_graph(captured: CapturedCall, compiled: Compiled, rank: int) -> str:
    """The text of the one graph of a launch, or why there is none; "" where no size is left open.

    compiled: the launch as it was called. rank: whose graph is shown.
    """
    symbols = _symbols(captured)
    if not symbols:
        return ""
    head = [symbol.line() for symbol in symbols]
    try:
        return _written(captured, compiled, rank, symbols, head)
    except _None as reason:
        return "\n".join([*head, "# There is no one graph for all sizes that could be shown:", f"# {reason}", ""])


def _symbols(captured: CapturedCall) -> list[_Symbol]:
    """The open sizes of a call. Dimensions of one Symbol are one, and so are those without where the call has one size
    for them."""
    found: dict[Any, list[Dimension]] = {}
    for dimension in open_dimensions(captured.target, captured.args):
        found.setdefault((id(dimension.rule), dimension.size), []).append(dimension)
    return [_Symbol(f"s{number}", tuple(same)) for number, same in enumerate(found.values(), 1)]


def _written(captured: CapturedCall, compiled: Compiled, rank: int, symbols: Sequence[_Symbol], head: list[str]) -> str:
    from mspc.output.symbolic_sizes import merged, points_of  # late: few networks leave sizes open

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
        texts[point] = _text(found, rank)
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
    """Compiles of a launch with other sizes."""

    def __init__(self, captured: CapturedCall, compiled: Compiled, rank: int, symbols: Sequence[_Symbol]) -> None:
        self._launch = captured
        self._rank = rank
        self._symbols = symbols
        self._call = tuple(symbol.dimensions[0].size for symbol in symbols)
        self._known: dict[tuple[int, ...], Compiled | MspcError] = {self._call: compiled}

    def of(self, sizes: tuple[int, ...]) -> Compiled | MspcError:
        """The compile with these sizes of the symbols, or why there is none."""
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
        """Three sizes of a symbol for which the network compiles, the others as in the call."""
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
    """Sizes that a symbol may have beside that of the call: multiples of it first, which are sharded as it is."""
    step = max((d.rule.divisor for d in symbol.dimensions if d.rule is not None), default=1)
    found = [2 * size, 3 * size, 4 * size, size // 2, size // 4, size + step, size + 2 * step, size - step]
    return [n for n in dict.fromkeys(found) if n > 1 and n != size]  # a size of 1 is broadcast


def _with_size(args: Sequence[Any], place: tuple[int, ...], dimension: int, size: int) -> list[Any]:
    """The arguments with another size of a tensor, which is then there as its type."""
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
    """What two graphs do otherwise but for the sizes of their tensors; "" where it is nothing."""
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


def _text(compiled: Compiled, rank: int) -> str:
    """A rank's graph, without what names the one compile."""
    graph = compiled.rank_graph(rank)
    lines = print_graph(graph).splitlines(keepends=True)
    return "".join(line for line in lines if not line.startswith("compile_id"))
