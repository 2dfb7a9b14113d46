"""A fused operator has lines: each is one operator as text, which is read without evaluating anything.

`Mul(x0, t1)` multiplies operand 0 of the fused operator by the result of line 1. Attributes follow the operands in
the spelling of the graph text: `Cast(t0, dst_type=Float16)`, `ReduceSum(t1, keep_dims=false, axis=(0))`. A line works
element by element, gives its operand another shape, moves elements of its operands to other places, or combines what
stands along some axes.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from typing import NoReturn, cast

from mspc.ir.diagnostics import MspcError
from mspc.ir.late_dataclass import dataclass
from mspc.ir.text.values import key_text, value_text
from mspc.ir.types import TensorType
from mspc.ops.bases import Elementwise
from mspc.ops.op import REGISTRY, Op
from mspc.ops.tensor.broadcast import ReductionOp

_LINE = re.compile(r"\s*([A-Za-z_]\w*)\s*\((.*)\)\s*\Z", re.DOTALL)
_OPERAND = re.compile(r"\s*([xt])(0|[1-9]\d{0,5})\s*(?:,|\Z)")
_KEY = re.compile(r"\s*([A-Za-z_]\w*)\s*=\s*")
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[()\[\]{},]|[^"()\[\]{},]+')


@dataclass(frozen=True, slots=True)
class BodyLine:
    """One line: the operator, and for each operand ("x", operand of the fused operator) or ("t", earlier line)."""

    op: Op
    operands: tuple[tuple[str, int], ...]

    @property
    def reduces(self) -> bool:
        """Whether the line is a reduction."""
        return closes(self.op)

    @property
    def reshapes(self) -> bool:
        """Whether the line has the elements of its operand in their order."""
        return reshapes(self.op)


def fusible(op: object) -> bool:
    """Whether every element of the operator's result is computed from the operands' elements at the same place alone,
    broadcast by the general rule, by an expression of C++."""
    return isinstance(op, Elementwise) and bool(op.cuda) and op.broadcasts


def by_element(op: object) -> bool:
    """Whether the operator is `fusible`, or is so on operands in other shapes."""
    return fusible(op) or (isinstance(op, Op) and type(op).as_broadcast is not Op.as_broadcast)


def form_of(op: Op, types: Sequence[TensorType]) -> tuple[Op, Sequence[tuple[int, ...]]]:
    """What computes the elements of a line, and the shapes of its operands, aligned by their last dimensions."""
    form = op.as_broadcast(*types)
    return form if form is not None else (op, [type.shape for type in types])


def reshapes(op: object) -> bool:
    """Whether the operator gives the elements of its one operand, in their order, another shape."""
    return isinstance(op, Op) and op.reshapes


def closes(op: object) -> bool:
    """Whether the operator is a reduction that may be a line."""
    return isinstance(op, ReductionOp) and op.closes_chains


def moves_elements(op: object) -> bool:
    """Whether the operator has one result and says for each of its elements where that lies in its operands."""
    return isinstance(op, Op) and type(op).index_map is not Op.index_map


def divides(op: object) -> bool:
    """Whether the operator has several results, each of which another operator can make by itself."""
    return isinstance(op, Op) and type(op).single_result is not Op.single_result


def along_rows(op: object) -> bool:
    """Whether the operator computes every element from those of its row, by lines that its class declares."""
    return isinstance(op, Op) and bool(op.row_lines)


def row_axes(op: Op, types: Sequence[TensorType]) -> tuple[int, ...] | None:
    """The axes of operand 0 along which the operator combines elements, for operands of these types; None for one that
    may be a line and combines none."""
    if isinstance(op, ReductionOp):
        return op.axes(types[0].rank) or tuple(range(types[0].rank))
    return op.row_axes(*types) if along_rows(op) else None


def line_of(op: Op, operands: Sequence[tuple[str, int]]) -> str:
    """The text of a line.

    Raises:
        TypeError: an attribute has a value that has no text.
    """
    parts = [f"{kind}{index}" for kind, index in operands]
    parts += [f"{key_text(key)}={value_text(value)}" for key, value in op.attributes().items()]
    return f"{op.name}({', '.join(parts)})"


@functools.lru_cache(maxsize=65536)
def read_line(line: str) -> BodyLine:
    """The operator and the operands of a line.

    Raises:
        MspcError: the line is malformed, or its operator is unknown or cannot have these attributes.
    """
    match = _LINE.match(line)
    if match is None:
        _fail(line, "it is not of the form Name(x0, t0, key=value)")
    name, rest = match.groups()
    operands: list[tuple[str, int]] = []
    at = 0
    while (operand := _OPERAND.match(rest, at)) is not None:
        operands.append((operand[1], int(operand[2])))
        at = operand.end()
    pairs = [_pair(line, text) for text in _split(rest[at:])]
    if pairs and operands and rest[:at].rstrip()[-1:] != ",":
        _fail(line, f"unexpected {rest[at:]!r}")
    return BodyLine(_operator(line, name, pairs), tuple(operands))


def _split(text: str) -> list[str]:
    """The parts between the commas that are in no brackets and no string."""
    if not text.strip():
        return []
    parts, depth = [""], 0
    for token in _TOKEN.findall(text):
        depth += (token in "([{") - (token in ")]}") if len(token) == 1 else 0
        if token == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += token
    return parts


def _pair(line: str, text: str) -> tuple[str, str]:
    match = _KEY.match(text)
    if match is None:
        _fail(line, f"{text.strip()!r} is neither x0, x1, ... nor t0, t1, ... nor key=value")
    return match[1], text[match.end() :].strip()


def _operator(line: str, name: str, pairs: list[tuple[str, str]]) -> Op:
    from mspc.ir.text.fragments import read_attributes
    from mspc.ir.text.node_reader import OperatorReader  # only a text that is read needs them
    from mspc.ir.text.source_text import Malformed, SourceText

    if name not in REGISTRY:
        _fail(line, f"there is no operator {name}")
    try:
        attributes = read_attributes(f"{{{', '.join([f'{key}: {value}' for key, value in pairs])}}}")
        op = OperatorReader(SourceText(line, "line"), REGISTRY).operator(name, attributes, 0)
    except (Malformed, MspcError) as error:
        _fail(line, error.message, error.notes if isinstance(error, MspcError) else ())
    return cast(Op, op)


def _fail(line: str, message: str, notes: Sequence[str] = ()) -> NoReturn:
    raise MspcError(f"in the line {line!r} of a fused operator: {message}", notes=notes) from None


@functools.lru_cache(maxsize=65536)
def read_body(body: tuple[str, ...], returns: tuple[int, ...], unread: int = 0) -> tuple[BodyLine, ...]:
    """The lines of a fused operator, checked against each other. unread: of the first operands so many need no reader.

    Raises:
        MspcError: a line is malformed, reads what there is not or is not needed, or `returns` names no lines.
    """
    if not body:
        raise MspcError("a fused operator has no lines")
    steps = tuple(map(read_line, body))
    needed: set[tuple[str, int]] = {("t", index) for index in returns}
    for number, (line, step) in enumerate(zip(body, steps, strict=True)):
        if not any(may_be(step.op) for may_be in (by_element, along_rows, reshapes, closes, moves_elements)):
            _fail(line, f"{step.op.name} does not work element by element")
        if not step.operands and (fusible(step.op) or not by_element(step.op)):
            _fail(line, "it reads nothing")
        for kind, index in step.operands:
            if kind == "t" and index >= number:
                _fail(line, f"t{index} is not the result of an earlier line")
        if (step.reduces or step.reshapes) and len(step.operands) != 1:
            _fail(line, f"{step.op.name} reads one tensor")
        needed.update(step.operands)
    if not returns or len(set(returns)) != len(returns) or not all(0 <= index < len(body) for index in returns):
        raise MspcError(f"a fused operator of {len(body)} lines cannot return {returns}")
    for number, line in enumerate(body):
        if ("t", number) not in needed:
            _fail(line, "its result is neither read nor returned")
    for index in range(unread, operand_count(steps)):
        if ("x", index) not in needed:
            raise MspcError(f"no line of the fused operator reads x{index}")
    return steps


def operand_count(steps: Sequence[BodyLine]) -> int:
    """How many operands the lines read."""
    return 1 + max((index for step in steps for kind, index in step.operands if kind == "x"), default=-1)


def types_of_lines(steps: Sequence[BodyLine], operand_types: Sequence[TensorType]) -> list[TensorType]:
    """The type of every line's result.

    Raises:
        MspcError: the operands do not fit.
    """
    found: list[TensorType] = []
    for step in steps:
        types = tuple((operand_types if kind == "x" else found)[index] for kind, index in step.operands)
        found.append(_result_type(step.op, types))
    return found


@functools.lru_cache(maxsize=4096)
def _result_type(op: Op, types: tuple[TensorType, ...]) -> TensorType:
    """The type of a line's result. Kernels that grow line by line ask it of the same lines again and again."""
    return cast(TensorType, op.infer(*types))


def expanded(
    steps: Sequence[BodyLine], returns: Sequence[int], operand_types: Sequence[TensorType]
) -> tuple[list[BodyLine], list[int]]:
    """(lines, returns) where operators that go along rows are the lines that they declare."""
    if not any(along_rows(step.op) for step in steps):
        return list(steps), list(returns)
    found = types_of_lines(steps, operand_types)
    made: list[BodyLine] = []
    place: list[int] = []
    for step in steps:
        sources = [("x", index) if kind == "x" else ("t", place[index]) for kind, index in step.operands]
        if not along_rows(step.op):
            made.append(BodyLine(step.op, tuple(sources)))
        first = len(made)
        for text in step.op.row_lines:
            axes = step.op.row_axes(*[(operand_types if k == "x" else found)[i] for k, i in step.operands])
            line = read_line(text.replace("AXES", f"keep_dims=true, axis=({', '.join(map(str, axes))})"))
            read = [sources[index] if kind == "x" else ("t", first + index) for kind, index in line.operands]
            made.append(BodyLine(line.op, tuple(read)))
        place.append(len(made) - 1)
    return made, [place[index] for index in returns]
