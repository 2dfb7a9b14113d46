"""Parameters that are several weights one after another become separate ones, each of which is cut by itself.

A gate and the gated values, or query, key and value, may be one parameter of twice or three times the rows: one
product is split into parts. A slice of the parameter is no slice of every part, and ranks that cut it
would have to gather its result. As parameters of their own the parts are cut alike, and nothing is gathered.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from mspc.checkpoint.stored_tensors import Checkpoint, TensorPieces
from mspc.ir.late_dataclass import dataclass
from mspc.ir.types import TensorType
from mspc.readers.pytorch.exported_program import (
    Argument,
    ExportedNode,
    ExportedProgram,
    ExportedType,
    NodeResult,
    ProgramInput,
    ProgramPart,
    names_in,
)

PRODUCTS: Mapping[str, tuple[str, str, int]] = {
    "aten.linear.default": ("weight", "bias", -2), "aten.mm.default": ("mat2", "", -1),
    "aten.addmm.default": ("mat2", "self", -1), "aten._grouped_mm.default": ("mat2", "", -1),
    "transformers.grouped_mm_fallback.default": ("weight", "", -1),
}  # fmt: skip
"""Matmuls with a weight: the names of the weight and of the bias, and the weight's dimension of the results."""
TURNS = ("aten.transpose.int", "aten.t.default")
SPLITS = ("aten.chunk.default", "aten.split.Tensor", "aten.split_with_sizes.default", "aten.split.sizes")


@dataclass
class PartsOfWeights(Checkpoint):
    """A program's weights, of which some parameters are parts. whole: all weights."""

    whole: Any = None
    parts: Any = None

    def read(self, name: str, slices: Sequence[slice] | None = None) -> Any:
        """Return a tensor or a part of it, as a checkpoint gives it."""
        part = self.parts.get(name)
        if part is None:
            return self.whole.read(name, slices)
        shape = self.whole.tensors[part.whole].type.shape
        filled = [slice(0, n) for n in shape] if slices is None else list(slices)
        if slices is None:
            filled[part.dim] = slice(None)
        return self.whole.read(part.whole, part.of(filled, len(shape)))


@dataclass(frozen=True)
class _Found:
    """A product with a packed weight. turn: the node that transposes it, if one does. bias: that of all parts."""

    weight: ProgramInput
    dim: int
    turn: ExportedNode | None
    product: ExportedNode
    bias: ProgramInput | None
    split: ExportedNode


def unpacked(program: ExportedProgram, names: Collection[str]) -> tuple[ExportedProgram, dict[str, ProgramPart]]:
    """Return the program with the parts of these parameters as parameters of their own, and those by their names. A
    parameter stays if another node than one matmul reads it, or the matmul's result is not split into equal parts."""
    users: dict[str, list[ExportedNode]] = {}
    for node in program.graph.nodes:
        for name in dict.fromkeys(node.operands):
            users.setdefault(name, []).append(node)
    returned = set(names_in(program.graph.outputs))
    inputs = {each.name: each for each in program.inputs}
    tied = {*program.same, *program.same.values()}
    found = [
        packed
        for each in program.inputs
        if each.kind == "parameter" and each.qualified in names and each.qualified not in tied
        if (packed := _packed(each, users, returned, inputs)) is not None
    ]
    parts: dict[str, ProgramPart] = {}
    for packed in found:
        program = _program_in_parts(program, packed, parts)
    if parts:
        program = replace(program, weights=_weights_in_parts(program, parts), parts=dict(parts))
    return program, parts


def _packed(
    weight: ProgramInput, users: Mapping[str, list[ExportedNode]], returned: Collection[str],
    inputs: Mapping[str, ProgramInput],
) -> _Found | None:  # fmt: skip
    node = _only(users, weight.name)
    turn = node if node is not None and node.target in TURNS else None
    name = turn.results[0] if turn is not None else weight.name
    product = _only(users, name)
    if product is None or product.target not in PRODUCTS or weight.type is None:
        return None
    operand, added, dim = PRODUCTS[product.target]
    given = dict(product.arguments)
    split = _only(users, product.results[0])
    if given.get(operand) != NodeResult(name) or split is None or split.target not in SPLITS:
        return None
    rank = len(weight.type.shape)
    dims = {value % rank for _, value in turn.arguments if isinstance(value, int)} if turn is not None else set[int]()
    if dims not in (set(), {rank - 2, rank - 1}):
        return None
    place = rank + (dim if turn is None else -3 - dim)
    bias = inputs.get(value.name) if isinstance(value := given.get(added), NodeResult) else None
    if given.get(added) is not None and (
        bias is None or bias.kind != "parameter" or bias.type is None or len(bias.type.shape) != 1
        or len(users[bias.name]) != 1
    ):  # fmt: skip
        return None
    sizes = {type.shape[-1] for type in split.types if type is not None and type.shape}
    count = len(split.results)
    along, last = dict(split.arguments).get("dim", 0), product.types[0]
    if last is None or not isinstance(along, int) or along % len(last.shape) != len(last.shape) - 1:
        return None
    if count < 2 or len(sizes) != 1 or {*sizes} != {_divided(weight.type.shape[place], count)}:
        return None
    if {*product.results, *split.results} & set(returned) or (turn is not None and set(turn.results) & set(returned)):
        return None
    return _Found(weight, place, turn, product, bias, split)


def _divided(size: Any, count: int) -> Any:
    return size // count if isinstance(size, int) and size % count == 0 else None


def _only(users: Mapping[str, list[ExportedNode]], name: str) -> ExportedNode | None:
    found = users.get(name, [])
    return found[0] if len(found) == 1 else None


def _program_in_parts(program: ExportedProgram, packed: _Found, parts: dict[str, ProgramPart]) -> ExportedProgram:
    """Return the program with the parts of one parameter."""
    count = len(packed.split.results)
    cut = {packed.weight.name: packed.dim} | ({packed.bias.name: 0} if packed.bias is not None else {})
    inputs: list[ProgramInput] = []
    for each in program.inputs:
        if each.name not in cut:
            inputs.append(each)
            continue
        dim = cut[each.name]
        assert each.type is not None
        type = _cut(each.type, dim, count)
        for number in range(count):
            size = type.shape[dim]
            assert isinstance(size, int)
            name = f"{each.qualified}[{number}]"
            parts[name] = ProgramPart(each.qualified, dim, number * size, (number + 1) * size)
            inputs.append(replace(each, name=_named(each.name, number), qualified=name, type=type))
    nodes: list[ExportedNode] = []
    for node in program.graph.nodes:
        if node is packed.turn or node is packed.product:
            nodes += [_part_of(node, number, packed) for number in range(count)]
        elif node is not packed.split:
            nodes.append(node)
    graph = replace(program.graph, nodes=tuple(nodes), inputs=tuple((each.name, each.type) for each in inputs))
    return replace(program, graph=graph, inputs=tuple(inputs))


def _part_of(node: ExportedNode, number: int, packed: _Found) -> ExportedNode:
    """Return a node that computes with one part."""
    count = len(packed.split.results)
    turned = {packed.weight.name, *(packed.turn.results if packed.turn is not None else ())}
    turned |= {packed.bias.name} if packed.bias is not None else set()

    def own(value: Argument) -> Argument:
        is_own = isinstance(value, NodeResult) and value.name in turned
        return NodeResult(_named(value.name, number)) if is_own else value

    arguments = tuple((key, own(value)) for key, value in node.arguments)
    if node is packed.product:
        return replace(
            node, name=_named(node.name, number), arguments=arguments, results=(packed.split.results[number],),
            types=(packed.split.types[number],),
        )  # fmt: skip
    type = node.types[0]
    dim = 2 * len(packed.weight.type.shape) - 3 - packed.dim if packed.weight.type is not None else 0
    return replace(
        node, name=_named(node.name, number), arguments=arguments,
        results=tuple(_named(each, number) for each in node.results),
        types=(None if type is None else _cut(type, dim, count),),
    )  # fmt: skip


def _named(name: str, number: int) -> str:
    return f"{name}__part{number}"


def _cut(type: ExportedType, dim: int, count: int) -> ExportedType:
    sizes = list(type.shape)
    sizes[dim] = _divided(sizes[dim], count)
    return replace(type, shape=tuple(sizes))


def _weights_in_parts(program: ExportedProgram, parts: Mapping[str, ProgramPart]) -> Checkpoint:
    """Return the weights with the parts of those that are there."""
    weights = program.weights
    tensors = dict(weights.tensors)
    for name, part in parts.items():
        if part.whole in weights.tensors:
            shape = list(weights.tensors[part.whole].type.shape)
            shape[part.dim] = part.end - part.begin
            tensors[name] = TensorPieces(TensorType(weights.tensors[part.whole].type.dtype, tuple(shape)), ())
            tensors.pop(part.whole, None)
    return PartsOfWeights(weights.name, weights.files, tensors, whole=weights, parts=parts)
