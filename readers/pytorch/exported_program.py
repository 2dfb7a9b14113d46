"""The exported program as data: graphs, nodes, types, symbolic sizes, and the lines that nodes come from."""

from __future__ import annotations

import ast
import functools
import math
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from functools import cache
from typing import Any

from mspc.checkpoint.stored_tensors import Checkpoint
from mspc.ir.diagnostics import Frames, Location, MspcError
from mspc.ir.late_dataclass import dataclass
from mspc.ir.types import DType

# Programs describe sizes in two forms: calls (`Add(Mul(Integer(2), Symbol('s77', integer=True)), Integer(1))`) and
# arithmetic (`2*s77 + 1`). Both are Python's grammar, and Python evaluates nothing of them.


Number = int | float | bool
LONGEST = 1 << 14
"""Characters of an expression."""
LARGEST_POWER = 1 << 12


@dataclass(frozen=True, slots=True)
class CallExpression:
    """An operation over expressions."""

    kind: str
    operands: tuple[Expression, ...]


Expression = Number | str | CallExpression
"""A number, the name of a symbol, or an operation."""


def _quotient(left: Number, right: Number) -> Number:
    """Divide, exactly if the result is a whole number."""
    both_whole = isinstance(left, int) and isinstance(right, int)
    return left // right if both_whole and left % right == 0 else left / right


def _power(base: Number, exponent: Number) -> Number:
    if abs(exponent) > LARGEST_POWER or abs(base) > 1 << 62:
        raise OverflowError("a power is too large")
    return base**exponent


OPERATIONS: dict[str, Callable[..., Number]] = {
    "Add": lambda *each: sum(each),
    "Mul": lambda *each: math.prod(each),
    "Pow": _power,
    "PowByNatural": _power,
    "FloatPow": _power,
    "Rational": _quotient,
    "IntTrueDiv": operator.truediv,
    "FloatTrueDiv": operator.truediv,
    "FloorDiv": operator.floordiv,
    "CleanDiv": operator.floordiv,
    "CeilDiv": lambda left, right: -(-left // right),
    "Mod": operator.mod,
    "PythonMod": operator.mod,
    "ModularIndexing": lambda base, divisor, modulus: base // divisor % modulus,
    "Max": max,
    "Min": min,
    "Abs": abs,
    "floor": math.floor,
    "ceiling": math.ceil,
    "FloorToInt": math.floor,
    "CeilToInt": math.ceil,
    "TruncToInt": math.trunc,
    "TruncToFloat": lambda value: float(math.trunc(value)),
    "RoundToInt": round,
    "ToFloat": float,
    "Equality": operator.eq,
    "Unequality": operator.ne,
    "StrictLessThan": operator.lt,
    "LessThan": operator.le,
    "StrictGreaterThan": operator.gt,
    "GreaterThan": operator.ge,
    "And": lambda *each: all(each),
    "Or": lambda *each: any(each),
    "Not": operator.not_,
}  # fmt: skip
"""The functions of calls."""
OTHER_NAMES = {"Eq": "Equality", "Ne": "Unequality", "Lt": "StrictLessThan", "Le": "LessThan",
               "Gt": "StrictGreaterThan", "Ge": "GreaterThan", "Identity": "", "Integer": "", "Float": ""}  # fmt: skip
"""Names of the same; of "" the first operand is all."""
BINARY: dict[type[ast.AST], str] = {
    ast.Add: "Add", ast.Mult: "Mul", ast.Pow: "Pow", ast.FloorDiv: "FloorDiv", ast.Mod: "Mod", ast.Div: "Rational",
    ast.Eq: "Equality", ast.NotEq: "Unequality", ast.Lt: "StrictLessThan", ast.LtE: "LessThan",
    ast.Gt: "StrictGreaterThan", ast.GtE: "GreaterThan", ast.BitAnd: "And", ast.BitOr: "Or",
}  # fmt: skip
SIGNS = {"Add": " + ", "Mul": "*", "Pow": "**", "PowByNatural": "**", "FloorDiv": "//", "CleanDiv": "//", "Mod": "%",
         "PythonMod": "%", "Rational": "/", "IntTrueDiv": "/", "FloatTrueDiv": "/", "Equality": " == ",
         "Unequality": " != ", "StrictLessThan": " < ", "LessThan": " <= ", "StrictGreaterThan": " > ",
         "GreaterThan": " >= "}  # fmt: skip
LITERALS: dict[str, Number] = {"true": True, "false": False, "oo": math.inf, "int_oo": math.inf}


@functools.lru_cache(maxsize=4096)
def parsed(text: str) -> Expression:
    """Return the expression of a text. Raise ValueError if it is none, or has an unknown operation."""
    if len(text) > LONGEST:
        raise ValueError(f"an expression of {len(text)} characters is too long")
    try:
        return _of(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, RecursionError, MemoryError):
        raise ValueError(f"{text!r:.80} is no expression") from None


def _of(tree: ast.expr) -> Expression:
    match tree:
        case ast.Constant(value=bool() | int() | float() as value):
            return value
        case ast.Name(id=name):
            return LITERALS.get(name, name)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            inner = _of(operand)
            return -inner if isinstance(inner, int | float) else CallExpression("Mul", (-1, inner))
        case ast.UnaryOp(op=ast.Invert() | ast.Not(), operand=operand):
            return CallExpression("Not", (_of(operand),))
        case ast.BinOp(left=left, op=ast.Sub(), right=right):
            return CallExpression("Add", (_of(left), CallExpression("Mul", (-1, _of(right)))))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in BINARY:
            return CallExpression(BINARY[type(op)], (_of(left), _of(right)))
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in BINARY:
            return CallExpression(BINARY[type(op)], (_of(left), _of(right)))
        case ast.Call(func=ast.Name(id="Symbol"), args=[ast.Constant(value=str(name)), *_]):
            return name
        case ast.Call(func=ast.Name(id="Float"), args=[ast.Constant(value=str(text)), *_]):
            return float(text)
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]):
            operands = [_of(arg) for arg in args]
            known = OTHER_NAMES.get(name, name)
            if not known and operands:
                return operands[0]
            if known not in OPERATIONS:
                raise ValueError(f"sizes are computed by {name!r:.60}, which mspc does not know")
            return CallExpression(known, tuple(operands))
        case _:
            raise ValueError(f"{ast.unparse(tree)!r:.80} is no arithmetic over sizes")


def symbols(expression: Expression) -> Iterator[str]:
    """Yield the names of symbols in it, in order."""
    if isinstance(expression, str):
        yield expression
    elif isinstance(expression, CallExpression):
        for operand in expression.operands:
            yield from symbols(operand)


def value_of(expression: Expression, sizes: Mapping[str, int]) -> Number:
    """Return the value for these values of symbols. Raise KeyError if a symbol has none, ValueError if there is no
    result."""
    if isinstance(expression, str):
        return sizes[expression]
    if not isinstance(expression, CallExpression):
        return expression
    operands = [value_of(operand, sizes) for operand in expression.operands]
    try:
        found: Any = OPERATIONS[expression.kind](*operands)
    except (ArithmeticError, TypeError, ValueError) as error:
        raise ValueError(f"{shown(expression)} has no value: {error}") from None
    if isinstance(found, complex) or (isinstance(found, float) and not math.isfinite(found)):
        raise ValueError(f"{shown(expression)} has no value")
    return found


def shown(expression: Expression) -> str:
    """Return the expression as people write it."""
    if not isinstance(expression, CallExpression):
        return str(expression)
    sign = SIGNS.get(expression.kind)
    if sign is None:
        return f"{expression.kind}({', '.join(map(shown, expression.operands))})"
    text = sign.join(_in_brackets(operand, expression.kind) for operand in expression.operands)
    return text.replace(" + -", " - ")


def _in_brackets(operand: Expression, outer: str) -> str:
    """Return an operand, in brackets if the sign around it would take only a part of it."""
    text = shown(operand)
    is_sum = isinstance(operand, CallExpression) and operand.kind in SIGNS
    return f"({text})" if is_sum and not (operand.kind == "Mul" and outer == "Add") else text


# Names are those of the file: a node's kind and the names of its arguments are ATen's (`aten.linear.default`, `input`,
# `weight`, `bias`), a parameter's is its module's (`model.layers.0.self_attn.q_proj.weight`).


OWN = re.compile(r"(^|-packages[/\\]|pytorch[/\\])torch[/\\]|^<")
"""Files of PyTorch, installed or in its source tree, and code without a file. A user's folder may be called torch."""


@dataclass(frozen=True, slots=True)
class NodeResult:
    """An operand that is a value of the graph: the result of a node, or an input."""

    name: str


@dataclass(frozen=True, slots=True)
class SymbolicSize:
    """A number that depends on symbols which have no value yet, as `2*s77 + 1`."""

    expression: Expression

    def __str__(self) -> str:
        return shown(self.expression)


@dataclass(frozen=True, slots=True)
class TensorPlace:
    """A memory format, layout or device of a tensor, by PyTorch's name: `channels_last`, `strided`, `cuda:0`."""

    name: str


@dataclass(frozen=True, slots=True)
class ExportedType:
    """A tensor's element type and shape; requires_grad: whether its exporter differentiates by it."""

    dtype: DType
    shape: tuple[int | SymbolicSize, ...]
    requires_grad: bool = False


@dataclass(frozen=True, slots=True)
class ExportedNode:
    """One call.

    target: the kind, `aten.linear.default`, `_operator.mul` or `higher_order.cond`. arguments: the given ones, by the
    names of the kind's schema and in its order. results: their names; of a list of tensors, each has one. types: of the
    results, None for a number. frames: the call stack, the innermost first. scope: the path of the module that called
    it, "" for the outermost one. modules: the classes on that path, the outermost first. given_by_name: how many of the
    arguments, the last ones, were given by name. reason: why ranks communicate here.
    """

    name: str
    target: str
    arguments: tuple[tuple[str, Argument], ...]
    results: tuple[str, ...]
    types: tuple[ExportedType | None, ...]
    frames: Frames = ()
    scope: str = ""
    modules: tuple[str, ...] = ()
    given_by_name: int = 0
    reason: str = ""

    @property
    def operands(self) -> list[str]:
        """The names of the values in its arguments."""
        return names_in(tuple(value for _, value in self.arguments))

    @property
    def user_line(self) -> Location | None:
        """The innermost line of its call stack that is not PyTorch's own; None if it has none."""
        return next((frame for frame in self.frames if not OWN.search(frame.file)), None)


@dataclass(frozen=True, slots=True)
class ExportedGraph:
    """Nodes in the order of their calls. inputs: names and types (None for a number). outputs: its results."""

    nodes: tuple[ExportedNode, ...]
    inputs: tuple[tuple[str, ExportedType | None], ...]
    outputs: tuple[Argument, ...]

    @property
    def types(self) -> dict[str, ExportedType | None]:
        """The types of all values, by name."""
        return dict((*self.inputs, *(p for node in self.nodes for p in zip(node.results, node.types, strict=False))))


Argument = (
    NodeResult | SymbolicSize | ExportedGraph | TensorPlace | DType | int | float | bool | str | complex | None
    | tuple["Argument", ...]
)  # fmt: skip
"""An argument of a node; a graph is one that a control operator runs."""


def names_in(value: Argument) -> list[str]:
    """Return the names of the values in an argument, also in lists."""
    if isinstance(value, NodeResult):
        return [value.name]
    return [name for each in value for name in names_in(each)] if isinstance(value, tuple) else []


def all_nodes(graph: ExportedGraph) -> Iterator[ExportedNode]:
    """Yield the nodes of a graph and of those that its nodes run."""
    for node in graph.nodes:
        yield node
        for _, argument in node.arguments:
            if isinstance(argument, ExportedGraph):
                yield from all_nodes(argument)


@dataclass(frozen=True, slots=True)
class ProgramInput:
    """One input of the program.

    kind: "user", "parameter", "buffer", "constant" (a tensor of the module that is none of these), or "value": an
    argument that was no tensor, whose value is `value`. name: of the value in the graph. qualified: the module's name
    of a parameter, buffer or constant; of a user's input the name of the argument, `input_ids`. trainable: a parameter
    that the exporter differentiates by. persistent: a buffer that checkpoints hold.
    """

    kind: str
    name: str
    qualified: str
    type: ExportedType | None
    trainable: bool = False
    persistent: bool = True
    value: Argument = None


@dataclass(frozen=True, slots=True)
class ProgramOutput:
    """One output of the program.

    kind: "user", "loss", "buffer_mutation", "parameter_mutation", "user_input_mutation", "gradient_to_parameter" or
    "gradient_to_user_input". value: the output itself. target: of the others than "user" the name of the buffer,
    parameter or input (as the graph calls it); of a user's output the path in the return value of `forward`, as `loss`,
    `0` or `past_key_values.0.1`, "" if that is the tensor itself.
    """

    kind: str
    value: Argument
    target: str = ""


@dataclass(frozen=True)
class ProgramPart:
    """A slice of a parameter: of the one of this name, from `begin` to `end` of a dimension."""

    whole: str
    dim: int
    begin: int
    end: int

    def of(self, slices: Sequence[slice], rank: int) -> tuple[slice, ...]:
        """Slices of the part as slices of the whole parameter, which has so many dimensions."""
        found = list(slices) or [slice(None)] * rank
        own = found[self.dim]
        begin = own.start or 0
        end = self.end - self.begin if own.stop is None else own.stop
        found[self.dim] = slice(self.begin + begin, self.begin + end)
        return tuple(found)


Range = tuple[int | None, int | None]
"""The least and the most that a symbol may be; None: there is no such limit."""


@dataclass(frozen=True)
class ExportedProgram:
    """A program as its file has it.

    name: for messages. graph: its nodes. inputs: in the order of the graph's. ranges: the possible values of every
    symbol. examples: the values of symbols when the program was exported. weights: the tensors of parameters, buffers
    and constants by their qualified names, which are read when they are needed; empty if the program was exported
    without any. same: tensors that are another one under a second name, as tied weights are, with the name of that.
    schema: the version of the format. torch: that of PyTorch. own_plan: the model's own plan of its layers, styles by
    patterns; files have none. dropped: lines of layer drop, as of Exported. parts: parameters that are slices of one of
    the module's. is_step: a recorded step, each of whose nodes is computed; of other programs nodes of known numbers
    become constants.
    """

    name: str
    graph: ExportedGraph
    inputs: tuple[ProgramInput, ...]
    outputs: tuple[ProgramOutput, ...]
    weights: Checkpoint
    same: Mapping[str, str] = field(default_factory=dict[str, str])
    ranges: Mapping[str, Range] = field(default_factory=dict[str, Range])
    examples: Mapping[str, int] = field(default_factory=dict[str, int])
    schema: tuple[int, int] = (0, 0)
    torch: str = ""
    own_plan: Mapping[str, str] = field(default_factory=dict[str, str])
    dropped: tuple[str, ...] = ()
    parts: Mapping[str, ProgramPart] = field(default_factory=dict[str, "ProgramPart"])
    is_step: bool = False


# The arguments of control operators have no names: settings, then the graph, then its operands. The first setting of
# `wrap_with_set_grad_enabled` is whether gradients go through; those of `wrap_with_autocast` give the element types of
# operators, which the results' types have too. `cond` has a condition, a graph for either answer, and the operands of
# both. `looped` reads `while_loop`, `scan` and `map`, `associative` the scans of functions that are associative.


SET_GRADIENT = "higher_order.wrap_with_set_grad_enabled"
CONDITION = "higher_order.cond"
WHILE, SCAN, MAP = "higher_order.while_loop", "higher_order.scan", "higher_order.map_impl"
ASSOCIATIVE = "higher_order.associative_scan"
LOOPS = frozenset({WHILE, SCAN, MAP, ASSOCIATIVE})
INLINED = frozenset({SET_GRADIENT, "higher_order.wrap_with_autocast"})
CONTROL = frozenset({*INLINED, CONDITION, *LOOPS})
"""Their names."""


def inlined(node: ExportedNode) -> tuple[ExportedGraph, Sequence[Argument], bool]:
    """Return (the graph, its operands, whether gradients go through). Raise MspcError if there is none."""
    values = [value for _, value in node.arguments]
    for place, value in enumerate(values):
        if isinstance(value, ExportedGraph):
            operands = values[place + 1 :]
            if len(operands) != len(value.inputs):
                raise MspcError(f"its graph takes {len(value.inputs)} operands, not {len(operands)}")
            return value, operands, node.target != SET_GRADIENT or values[0] is not False
    raise MspcError("it has no graph to run")


def branches(node: ExportedNode) -> tuple[Argument, tuple[ExportedGraph, ExportedGraph], Sequence[Argument]]:
    """Return (the condition, the graphs for true and for false, their operands). Raise MspcError if there are not two
    graphs that take its operands."""
    values = [value for _, value in node.arguments]
    if len(values) == 4:
        condition, holds, fails, operands = values
        if isinstance(holds, ExportedGraph) and isinstance(fails, ExportedGraph) and isinstance(operands, tuple):
            if all(len(graph.inputs) == len(operands) for graph in (holds, fails)):
                return condition, (holds, fails), operands
    raise MspcError("it has no two graphs that take its operands")


LIBRARIES = re.compile(r".*[/\\](?:site|dist)-packages[/\\]")
"""The part of the path of a library's file that differs from machine to machine."""


def frames_of(node: ExportedNode) -> Frames:
    """Return the lines of the module that lead to a node, the innermost first, without those of PyTorch."""
    files = [(frame, shown_file(frame.file)) for frame in node.frames]
    return tuple([frame if file == frame.file else replace(frame, file=file) for frame, file in files if file])


@cache
def shown_file(file: str) -> str:
    """Return a library's file by its path among the libraries, another one by its own; "" for PyTorch's."""
    return "" if OWN.search(file) else LIBRARIES.sub("", file)


def scope_of(node: ExportedNode) -> str:
    """Return the module's path with the classes on it: `model-LlamaModel/layers.0-LlamaDecoderLayer`."""
    if not node.scope:
        return ""
    names: list[str] = []
    for part in node.scope.split("."):
        if part.isdigit() and names:
            names[-1] += f".{part}"
        else:
            names.append(part)
    classes = node.modules[1:]
    if len(classes) != len(names):
        return "/".join(names)
    return "/".join(f"{name}-{kind}" for name, kind in zip(names, classes, strict=True))


def of_node(error: MspcError, node: ExportedNode) -> MspcError:
    """Return a mistake with the kind and the module that it is about."""
    if error.message.startswith(node.target):
        return error
    where = f" of {node.scope}" if node.scope else ""
    message = f"{node.target}{where}: {error.message}"
    return MspcError(message, notes=error.notes, frames=frames_of(node), kind=error.kind)
