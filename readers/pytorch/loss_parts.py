"""Rewrites a program whose batch is computed in parts, so that ratios of sums in its loss are those of the whole batch.

A mean over the labels that count is not the mean of the parts' means, since each part divides by its own count. So the
counts of all parts are added up by a program of their own first, which reads no parameter, and every part divides by
their mean:

Input:  `loss = cross_entropy_loss(logits, labels)`, or `loss = sum(losses * mask) / clamp(sum(mask), min=1)`
Output: `count = sum(labels != -100)`; `loss = cross_entropy_loss(logits, labels, reduction=2) / (total / parts)`,
        or `count = sum(mask)`; `loss = sum(losses * mask) / (clamp(total, min=1) / parts)`

The mean of these losses over the parts is the loss of the whole batch. A part of which no label counts adds zero.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from mspc.ir.late_dataclass import dataclass
from mspc.ir.location import Location
from mspc.ir.types import BOOL, FLOAT32
from mspc.readers.pytorch.control import CONTROL
from mspc.readers.pytorch.kinds.table import kind_of
from mspc.readers.pytorch.program import (
    Argument,
    ExportedGraph,
    ExportedNode,
    ExportedProgram,
    ExportedType,
    NodeResult,
    ProgramInput,
    ProgramOutput,
)
from mspc.readers.pytorch.unknown_kinds import all_nodes
from mspc.readers.pytorch.written_values import names_in, written_names

MEANS = frozenset({
    "aten.cross_entropy_loss.default", "aten.nll_loss.default", "aten.nll_loss_nd.default", "aten.nll_loss2d.default",
    "aten.nll_loss_forward.default", "aten.nll_loss2d_forward.default",
})  # fmt: skip
"""Losses with class numbers as labels, some of which may be ignored: their mean divides by the others' weights."""
SUMS = frozenset({
    "aten.sum.default", "aten.sum.dim_IntList", "aten.nansum.default", "aten.count_nonzero.default",
    "aten.dot.default", "aten.vdot.default",
})  # fmt: skip
"""Kinds that add up their operands' elements."""
SAME = frozenset({
    "aten.to.dtype", "aten._to_copy.default", "aten.alias.default", "aten.clone.default", "aten.view.default",
    "aten.reshape.default", "aten.squeeze.default", "aten.neg.default", "aten.contiguous.default",
})  # fmt: skip
"""Kinds of one operand that commute with a sum over the parts."""
SCALED = frozenset({"aten.mul.Tensor", "aten.mul.Scalar", "aten.div.Tensor", "aten.div.Scalar"})
TERMS = frozenset({"aten.add.Tensor", "aten.sub.Tensor", "aten.add.Scalar", "aten.sub.Scalar"})
DIVISIONS = frozenset({"aten.div.Tensor", "aten.divide.Tensor", "aten.true_divide.Tensor"})
MEAN, SUM = 1, 2
"""Reductions of losses."""
_NUMBER = ExportedType(FLOAT32, ())


@dataclass(frozen=True)
class LossInParts:
    """A program for the parts of a batch.

    losses: the program with one more input for each count, [1]: the total over all parts. counts: the program that
    gives each part's counts; None if there are none. unread: lines of ratios whose counts are not followed, so that the
    loss remains a mean of the parts' ratios.
    """

    losses: ExportedProgram
    counts: ExportedProgram | None
    unread: tuple[Location | None, ...]


@dataclass(frozen=True)
class _Ratio:
    """A division by a count. count: the name of the sum, which the program of counts gives. made: nodes of that program
    that the program does not have. chain: nodes from the sum to the denominator."""

    node: ExportedNode
    count: str
    type: ExportedType
    made: tuple[ExportedNode, ...] = ()
    chain: tuple[ExportedNode, ...] = ()


def loss_in_parts(program: ExportedProgram, loss: ProgramOutput, parts: int) -> LossInParts:
    """Return the programs of the losses and the counts of so many parts of a batch."""
    search = _Search(program)
    found = list(search.ratios(loss.value))
    known = {ratio.node.name for ratio in found}
    unread = [node.user_line for node in all_nodes(program.graph) if node.name not in known and search.divides(node)]
    if not found:
        return LossInParts(program, None, tuple(unread))
    return LossInParts(_losses(program, found, parts), search.counts(found), tuple(unread))


class _Search:
    """Finds the ratios of a program's loss. data: names that depend on inputs of the caller. trained: names that depend
    on parameters."""

    def __init__(self, program: ExportedProgram) -> None:
        self.program = program
        nodes = program.graph.nodes
        self.maker = {name: node for node in nodes for name in node.results}
        self.types = dict(program.graph.inputs)
        self.types |= {name: type for node in nodes for name, type in zip(node.results, node.types, strict=True)}
        self.written = written_names(program.graph)
        self.data = _dependent(nodes, [each.name for each in program.inputs if each.kind == "user"])
        self.trained = _dependent(nodes, [each.name for each in program.inputs if each.trainable])

    def ratios(self, value: Argument, is_sum: bool = False) -> Iterator[_Ratio]:
        """Yield the ratios among the terms of a number. is_sum: it adds up what `value` has."""
        node = self.maker.get(value.name) if isinstance(value, NodeResult) else None
        if node is None:
            return
        target, given = _plain(node.target), list(dict(node.arguments).values())
        if target in SAME or (target in SCALED and not self._is_data(given[1])):
            yield from self.ratios(given[0], is_sum)
        elif target in TERMS:
            for each in given[:2]:
                yield from self.ratios(each, is_sum)
        elif target in ("aten.sum.default", "aten.sum.dim_IntList"):
            yield from self.ratios(given[0], True)
        elif target in MEANS or target in DIVISIONS:
            ratio = self._of_labels(node) if target in MEANS else self._of_sums(node, is_sum)
            yield from [ratio] if ratio is not None else []

    def divides(self, node: ExportedNode) -> bool:
        """Whether a node divides by a number that each part counts for itself."""
        if node.target in MEANS:
            target = _given(node, "target")
            type = self.types.get(target.name) if isinstance(target, NodeResult) else None
            return _given(node, "reduction") == MEAN and (type is None or type.dtype.is_integer)
        other = _given(node, "other") if node.target in DIVISIONS else None
        return self._is_data(other) and self._is_number(other)

    def counts(self, ratios: Sequence[_Ratio]) -> ExportedProgram:
        """Return the program of the counts, of the nodes that these need alone."""
        graph = self.program.graph
        made = [node for ratio in ratios for node in ratio.made]
        needed = {name for node in made for _, value in node.arguments for name in names_in(value)}
        nodes = self._needed(needed | {ratio.count for ratio in ratios})
        read = {name for node in (*nodes, *made) for _, value in node.arguments for name in names_in(value)}
        inputs = [each for each in self.program.inputs if each.kind in ("user", "value") or each.name in read]
        fixed = [each if each.kind in ("user", "value") else replace(each, kind="constant") for each in inputs]
        outputs = tuple(ProgramOutput("user", NodeResult(ratio.count), str(i)) for i, ratio in enumerate(ratios))
        types = tuple((name, type) for name, type in graph.inputs if any(name == each.name for each in inputs))
        new = ExportedGraph((*nodes, *made), types, tuple(NodeResult(ratio.count) for ratio in ratios))
        return replace(self.program, graph=new, inputs=tuple(fixed), outputs=outputs)

    def _of_labels(self, node: ExportedNode) -> _Ratio | None:
        """The mean of losses with class numbers."""
        target, weight, ignored = (_given(node, name) for name in ("target", "weight", "ignore_index"))
        type = self.types.get(target.name) if isinstance(target, NodeResult) else None
        if _given(node, "reduction") != MEAN or type is None or not type.dtype.is_integer:
            return None
        if not self._is_fixed([value for value in (target, weight) if isinstance(value, NodeResult)]):
            return None
        name = f"{node.results[0]}_counts"
        bools, floats = replace(type, dtype=BOOL), replace(type, dtype=FLOAT32)
        made = [_made(node, "aten.ne.Scalar", {"self": target, "other": ignored}, f"{name}_is", bools)]
        last = NodeResult(f"{name}_is")
        if weight is not None:
            place = {"condition": last, "self": target, "other": 0}
            made += [
                _made(node, "aten.where.ScalarOther", place, f"{name}_class", type),
                _made(node, "aten.index.Tensor", {"self": weight, "indices": (NodeResult(f"{name}_class"),)},
                      f"{name}_weight", floats),
                _made(node, "aten.mul.Tensor", {"self": NodeResult(f"{name}_weight"), "other": last}, f"{name}_each",
                      floats),
            ]  # fmt: skip
            last = NodeResult(f"{name}_each")
        made.append(_made(node, "aten.sum.default", {"self": last, "dtype": FLOAT32}, name, _NUMBER))
        return _Ratio(node, name, _NUMBER, tuple(made))

    def _of_sums(self, node: ExportedNode, is_sum: bool) -> _Ratio | None:
        """A sum over a function of another sum."""
        above, below = _given(node, "self"), _given(node, "other")
        if not self._is_number(below) or not (is_sum or self._adds_up(above)):
            return None
        chain: list[ExportedNode] = []
        while isinstance(below, NodeResult):
            maker = self.maker.get(below.name)
            if maker is None or len(maker.results) != 1 or not self._is_fixed([below]):
                return None
            type = self.types[below.name]
            if _plain(maker.target) in SUMS and type is not None:
                return _Ratio(node, below.name, type, (), tuple(chain[::-1]))
            chain.append(maker)
            names = {name for _, value in maker.arguments for name in names_in(value)} & self.data
            below = NodeResult(next(iter(names))) if len(names) == 1 else None
            if maker.target in CONTROL or not self._is_number(below):
                return None
        return None

    def _adds_up(self, value: Argument) -> bool:
        """Whether a number is a sum over the rows of a part."""
        node = self.maker.get(value.name) if isinstance(value, NodeResult) else None
        if node is None:
            return False
        target, given = _plain(node.target), list(dict(node.arguments).values())
        if target in SAME or (target in SCALED and not self._is_data(given[1])):
            return self._adds_up(given[0])
        if target in ("aten.add.Tensor", "aten.sub.Tensor"):
            return all(map(self._adds_up, given[:2]))
        return target in SUMS or any(name == "reduction" and value == SUM for name, value in node.arguments)

    def _is_fixed(self, values: Iterable[NodeResult]) -> bool:
        """Whether values depend on no parameter, and on nothing that is overwritten."""
        needed = {name for value in values for name in (value.name, *self._names_behind(value.name))}
        return not needed & (self.written | self.trained)

    def _names_behind(self, name: str) -> set[str]:
        return {name for node in self._needed({name}) for _, value in node.arguments for name in names_in(value)}

    def _needed(self, names: set[str]) -> list[ExportedNode]:
        """The nodes that names are computed by, in order."""
        needed, found = set(names), list[ExportedNode]()
        for node in reversed(self.program.graph.nodes):
            if not needed.isdisjoint(node.results):
                found.append(node)
                needed |= {name for _, value in node.arguments for name in names_in(value)}
        return found[::-1]

    def _is_data(self, value: Argument) -> bool:
        return isinstance(value, NodeResult) and value.name in self.data

    def _is_number(self, value: Argument) -> bool:
        type = self.types.get(value.name) if isinstance(value, NodeResult) else None
        return type is not None and not type.shape


def _losses(program: ExportedProgram, ratios: Sequence[_Ratio], parts: int) -> ExportedProgram:
    """The program whose ratios divide by the mean of all parts' counts, which are inputs."""
    by_node = {ratio.node.name: (number, ratio) for number, ratio in enumerate(ratios)}
    nodes: list[ExportedNode] = []
    inputs: list[ProgramInput] = []
    for node in program.graph.nodes:
        if node.name not in by_node:
            nodes.append(node)
            continue
        number, ratio = by_node[node.name]
        name = f"{node.results[0]}_total"
        inputs.append(ProgramInput("user", name, f"count_{number}", replace(ratio.type, shape=(1,))))
        nodes.append(_made(node, "aten.view.default", {"self": NodeResult(name), "size": ()}, f"{name}_number",
                           ratio.type))  # fmt: skip
        renamed = {ratio.count: f"{name}_number"}
        for each in ratio.chain:
            nodes.append(_renamed(each, renamed, f"{name}_{len(renamed)}"))
            renamed[each.results[0]] = nodes[-1].results[0]
        last = NodeResult(nodes[-1].results[0])
        nodes.append(_made(node, "aten.div.Scalar", {"self": last, "other": float(parts)}, f"{name}_mean", _NUMBER))
        nodes += _divided(node, NodeResult(f"{name}_mean"))
    types = tuple((each.name, each.type) for each in inputs)
    graph = replace(program.graph, nodes=tuple(nodes), inputs=(*program.graph.inputs, *types))
    return replace(program, graph=graph, inputs=(*program.inputs, *inputs))


def _divided(node: ExportedNode, mean: NodeResult) -> list[ExportedNode]:
    """A ratio with another denominator."""
    if node.target not in MEANS:
        return [replace(node, arguments=tuple((n, mean if n == "other" else v) for n, v in node.arguments))]
    arguments = {**dict(node.arguments), "reduction": SUM}
    kind = kind_of(node.target)
    assert kind is not None
    ordered = tuple((each.name, arguments[each.name]) for each in kind.arguments if each.name in arguments)
    total = f"{node.results[0]}_sum"
    summed = replace(node, arguments=ordered, results=(total, *node.results[1:]))
    type = node.types[0]
    return [summed, _made(node, "aten.div.Tensor", {"self": NodeResult(total), "other": mean}, node.results[0], type)]


def _made(
    like: ExportedNode, target: str, arguments: Mapping[str, Argument], result: str, type: ExportedType | None
) -> ExportedNode:
    """A node at the line of another one."""
    return replace(like, name=result, target=target, arguments=tuple(arguments.items()), results=(result,),
                   types=(type,), given_by_name=0)  # fmt: skip


def _renamed(node: ExportedNode, names: Mapping[str, str], result: str) -> ExportedNode:
    def renamed(value: Argument) -> Argument:
        if isinstance(value, NodeResult):
            return NodeResult(names.get(value.name, value.name))
        return tuple(map(renamed, value)) if isinstance(value, tuple) else value

    return replace(node, name=result, results=(result,), arguments=tuple((n, renamed(v)) for n, v in node.arguments))


def _given(node: ExportedNode, name: str) -> Argument:
    """An argument of a call, or its default."""
    kind = kind_of(node.target)
    assert kind is not None
    return dict(node.arguments).get(name, next(each.default for each in kind.arguments if each.name == name))


def _plain(target: str) -> str:
    """The kind that computes the same without writing into its first argument."""
    return target.replace("_.", ".") if not target.startswith("_") else target


def _dependent(nodes: Sequence[ExportedNode], names: Iterable[str]) -> set[str]:
    """The names that are computed of others."""
    found = set(names)
    for node in nodes:
        if any(not found.isdisjoint(names_in(value)) for _, value in node.arguments):
            found.update(node.results)
    return found
