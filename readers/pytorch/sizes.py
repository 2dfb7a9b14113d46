"""Symbols in the sizes of an exported program get values here, and the rest has numbers only."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from mspc.ir.diagnostics import MspcError, did_you_mean
from mspc.readers.pytorch.exported_program import (
    Argument,
    CallExpression,
    ExportedGraph,
    ExportedNode,
    ExportedProgram,
    ExportedType,
    Expression,
    Number,
    Range,
    SymbolicSize,
    all_nodes,
    shown,
    symbols,
    value_of,
)

ASSERTION = "aten._assert_scalar.default"
CHECKS = ("aten.sym_constrain_range.default", "aten.sym_constrain_range_for_size.default")
"""Kinds that only restrict sizes, as `ranges` does."""
BOUNDED = frozenset((
    "aten.nonzero.default", "aten.where.default", "aten.nonzero_numpy.default", "aten.masked_select.default",
    "aten._unique2.default", "aten.bincount.default", "aten.repeat_interleave.Tensor",
    "aten.repeat_interleave.self_Tensor",
))  # fmt: skip
"""Kinds with a result whose size depends on data, which may have a bound."""
OF_SHAPES = frozenset(("view", "reshape", "_unsafe_view", "expand", "sym_size", "_assert_scalar"))
"""Kinds that take such a size only as that of an operand."""
MESSAGE = 200
"""Most characters of an assertion's text."""


def with_sizes(program: ExportedProgram, given: Mapping[str, int]) -> ExportedProgram:
    """Return the program with numbers for all sizes, without the nodes that compute nothing else.

    given: values of symbols (`s77`), or of dimensions of inputs (`input_ids.0`). Others have their values in the
    example that the program was exported with.

    Raise MspcError if a name is no symbol, a value is out of its range, two contradict each other, a symbol has none,
    or is known only when the program runs, or an assertion of the program does not hold for them.
    """
    open_sizes = _symbols_of_inputs(program)
    sources = _data_dependent(program, open_sizes)
    bounded = {symbol: [] for symbol, node in sources.items() if node.target in BOUNDED and symbol in given}
    sizes = _values(program, given, open_sizes | bounded)
    _check_data_dependent(program, {each: node for each, node in sources.items() if each not in bounded})
    _check_uses(program, bounded)
    filled = _Filled(program.name, sizes, {id(sources[symbol]): sizes[symbol] for symbol in bounded})
    return replace(
        program,
        graph=filled.graph(program.graph),
        inputs=tuple(replace(each, type=filled.type(each.type)) for each in program.inputs),
        outputs=tuple(replace(each, value=filled.argument(each.value)) for each in program.outputs),
        ranges={},
        examples=sizes,
    )


def shown_range(found: Range) -> str:
    """Return a range in words."""
    least, most = found
    if most is None or most >= 1 << 40:
        return f"from {least or 0} on"
    return f"from {least or 0} to {most}"


def _symbols_of_inputs(program: ExportedProgram) -> dict[str, list[str]]:
    """Return the symbols in the shapes of inputs, each with the dimensions that it is (`x.0`), if any."""
    found: dict[str, list[str]] = {}
    for each in program.inputs:
        for at, size in enumerate(each.type.shape if each.type is not None else ()):
            if isinstance(size, SymbolicSize):
                for symbol in symbols(size.expression):
                    found.setdefault(symbol, [])
                if isinstance(size.expression, str):
                    found[size.expression].append(f"{each.qualified}.{at}")
    return found


def _values(program: ExportedProgram, given: Mapping[str, int], known: Mapping[str, list[str]]) -> dict[str, int]:
    sizes = {name: value for name, value in program.examples.items() if name in known}
    by_name: dict[str, Expression] = {
        place: symbol for symbol, places in known.items() for place in (symbol, *places)
    } | _derived_dimensions(program)
    said: dict[str, str] = {}
    for name, value in given.items():
        if name not in by_name:
            names = [*dict.fromkeys(by_name)]
            fixed = "all of its sizes are numbers: export it with dynamic_shapes"
            notes = [*did_you_mean(name, names), f"it has {', '.join(names)}" if names else fixed]
            raise MspcError(f"{program.name} has no size {name!r:.60}", notes=notes)
        symbol, number = _solved_symbol(program, name, by_name[name], value)
        if symbol in said and sizes[symbol] != number:
            first = said[symbol]
            raise MspcError(
                f"{program.name}: sizes {first} and {name} are {given[first]} and {value}, and no {symbol} is both",
                notes=[f"{each} is {shown(by_name[each])}" for each in (first, name) if each != symbol],
            )
        sizes[symbol], said[symbol] = number, name
    for symbol, places in known.items():
        allowed = program.ranges.get(symbol, (None, None))
        called = f"{symbol} ({', '.join(places)})" if places else symbol
        if symbol not in sizes:
            raise MspcError(
                f"{program.name}: the size {called}, {shown_range(allowed)}, has no value",
                notes=[f"give one: --size {(places or [symbol])[0]}=8"],
            )
        least, most = allowed
        value = sizes[symbol]
        if value < (least or 0) or (most is not None and value > most):
            raise MspcError(f"{program.name}: the size {called} is {value}; it may be {shown_range(allowed)}")
    return sizes


def _derived_dimensions(program: ExportedProgram) -> dict[str, Expression]:
    """Return the dimensions of inputs that are computed from one symbol."""
    return {
        f"{each.qualified}.{at}": size.expression
        for each in program.inputs
        for at, size in enumerate(each.type.shape if each.type is not None else ())
        if isinstance(size, SymbolicSize) and isinstance(size.expression, CallExpression)
        and len(set(symbols(size.expression))) == 1
    }  # fmt: skip


def _solved_symbol(program: ExportedProgram, name: str, size: Expression, value: int) -> tuple[str, int]:
    """Return the symbol of a size, and its value if the size is `value`. Raise MspcError if the size never is, or does
    not grow linearly with the symbol."""
    if isinstance(size, str):
        return size, value
    symbol = next(symbols(size))
    try:
        first, second = (value_of(size, {symbol: at}) for at in (0, 1))
        number = round((value - first) / (second - first))
        if value_of(size, {symbol: number}) == value:
            return symbol, number
    except (ValueError, ZeroDivisionError):
        pass
    raise MspcError(
        f"{program.name}: the size {name} is {shown(size)}, and never {value}", notes=[f"--size takes {symbol}, too"]
    )


def _data_dependent(program: ExportedProgram, known: Mapping[str, object]) -> dict[str, ExportedNode]:
    """Return the nodes that make sizes that depend on the numbers in tensors, by symbol. Numbers that no tensor is made
    of are left out: only assertions read them."""
    found: dict[str, ExportedNode] = {}
    for node in (node for node in all_nodes(program.graph) if any(node.types)):
        shapes = [type.shape for type in node.types if type is not None]
        for symbol in _symbols_of((*shapes, *(value for _, value in node.arguments))):
            if symbol not in known:
                found.setdefault(symbol, node)
    return found


def _check_data_dependent(program: ExportedProgram, found: Mapping[str, ExportedNode]) -> None:
    """Raise MspcError if sizes depend on data and have no bound."""
    if not found:
        return
    notes = [f"{symbol}: {_called(node)}" for symbol, node in found.items()][:8]
    bounds = " ".join(f"--size {symbol}=N" for symbol, node in found.items() if node.target in BOUNDED)
    if bounds:
        notes.append(f"give the most elements that there may be, {bounds}: values are padded, and padding is masked")
    raise MspcError(
        f"{program.name}: sizes depend on the numbers in tensors, and are known only when it runs: {', '.join(found)}",
        next(iter(found.values())).user_line,
        notes,
    )


def _check_uses(program: ExportedProgram, bounded: Mapping[str, object]) -> None:
    """Raise MspcError if a node computes with a size that has only a bound, or makes a tensor of it."""
    for node in all_nodes(program.graph):
        kind = node.target.removeprefix("aten.").partition(".")[0]
        for symbol in _symbols_of(value for _, value in node.arguments) if any(node.types) else ():
            if symbol in bounded and kind not in OF_SHAPES:
                raise MspcError(
                    f"{program.name}: {node.target} reads the size {symbol}, of which only the bound is known",
                    node.user_line, ["means and sums over the dimension are read without it"],
                )  # fmt: skip


def _called(node: ExportedNode) -> str:
    line = node.user_line
    return f"{node.target}{f' at {line}' if line else ''}{f' in {node.scope}' if node.scope else ''}"


def _symbols_of(values: Iterable[Argument]) -> Iterator[str]:
    for value in values:
        if isinstance(value, SymbolicSize):
            yield from symbols(value.expression)
        elif isinstance(value, tuple):
            yield from _symbols_of(value)


class _Filled:
    """Puts values in the places of symbols. bounds: of sizes that depend on data, by the id of the node that makes
    them."""

    def __init__(self, name: str, sizes: Mapping[str, int], bounds: Mapping[int, int]) -> None:
        self.name = name
        self.sizes = sizes
        self.bounds = bounds

    def graph(self, graph: ExportedGraph) -> ExportedGraph:
        nodes = [made for node in graph.nodes if (made := self._node(node)) is not None]
        inputs = tuple((name, self.type(type)) for name, type in graph.inputs)
        return ExportedGraph(tuple(nodes), inputs, tuple(map(self.argument, graph.outputs)))

    def _node(self, node: ExportedNode) -> ExportedNode | None:
        """Return the node, or None if it computes numbers from sizes, or checks them."""
        if node.target in CHECKS:
            return None
        if node.results and all(node.results) and not any(node.types):
            return None
        if node.target == ASSERTION and not set(_symbols_of(value for _, value in node.arguments)) <= self.sizes.keys():
            return None  # it is about the numbers in tensors
        arguments = tuple((name, self.argument(value)) for name, value in node.arguments)
        if node.target == ASSERTION and arguments and isinstance(arguments[0][1], bool | int):
            self._check(node, arguments)
            return None
        if id(node) in self.bounds:
            arguments = (*arguments, ("bound", self.bounds[id(node)]))
        return replace(node, arguments=arguments, types=tuple(map(self.type, node.types)))

    def _check(self, node: ExportedNode, arguments: tuple[tuple[str, Argument], ...]) -> None:
        if arguments[0][1]:
            return
        text = next((value for _, value in arguments[1:] if isinstance(value, str)), "")
        given = ", ".join(f"{symbol} = {value}" for symbol, value in self.sizes.items())
        notes = [f"with {given}"] if given else []
        raise MspcError(
            f"{self.name}: the program may not be called with these sizes: {text[:MESSAGE] or 'an assertion fails'}",
            node.user_line, notes,
        )  # fmt: skip

    def type(self, type: ExportedType | None) -> ExportedType | None:
        if type is None or not any(isinstance(size, SymbolicSize) for size in type.shape):
            return type
        return replace(type, shape=tuple(self._size(size) for size in type.shape))

    def _size(self, size: int | SymbolicSize) -> int:
        if not isinstance(size, SymbolicSize):
            return size
        found = self._number(size)
        if not float(found).is_integer() or found < 0:
            raise MspcError(f"{self.name}: the size {size} would be {found}")
        return int(found)

    def _number(self, size: SymbolicSize) -> Number:
        try:
            return value_of(size.expression, self.sizes)
        except ValueError as error:
            raise MspcError(f"{self.name}: {error}") from None

    def argument(self, value: Argument) -> Argument:
        if isinstance(value, SymbolicSize):
            return self._number(value)
        if isinstance(value, tuple):
            return tuple(map(self.argument, value))
        return self.graph(value) if isinstance(value, ExportedGraph) else value
