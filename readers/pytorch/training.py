"""Training of an exported network: its loss, and the step that is compiled."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from typing import Any

from mspc.ir.diagnostics import Location, MspcError, did_you_mean
from mspc.ir.late_dataclass import dataclass
from mspc.ir.types import BFLOAT16, BOOL, FLOAT16, FLOAT32, INT64, DType, TensorType
from mspc.mindspore_api import ops
from mspc.mindspore_api.nn.cell import Cell
from mspc.mindspore_api.nn.wrap import GradAccumulationCell, TrainOneStepCell, _SumOfParts
from mspc.mindspore_api.setting_kind import say_once
from mspc.readers.pytorch.exported_program import (
    CONTROL,
    Argument,
    ExportedGraph,
    ExportedNode,
    ExportedProgram,
    ExportedType,
    NodeResult,
    ProgramInput,
    ProgramOutput,
)
from mspc.readers.pytorch.kinds.aten_table import kind_of
from mspc.readers.pytorch.network import ImportedNetwork
from mspc.readers.pytorch.plans.strategies import LayerPlan
from mspc.readers.pytorch.recipes import ScaledStep, recipe_of
from mspc.readers.pytorch.written_values import differentiated_names, written_names

# Rewrites a program whose batch is computed in parts, so that its loss is that of the whole batch. Each part divides by
# its own count of labels, or its own sum of a mask, so the counts of all parts are added up by a program of their own
# first, which reads no parameter, and every part divides by their mean:
#
# Input:  `loss = cross_entropy_loss(logits, labels)`, or `loss = sum(losses * mask) / clamp(sum(mask), min=1)`
# Output: `count = sum(labels != -100)`; `loss = cross_entropy_loss(logits, labels, reduction=2) / (total / parts)`,
#         or `count = sum(mask)`; `loss = sum(losses * mask) / (clamp(total, min=1) / parts)`
#
# A part of which no label counts adds zero. A sum over rows is multiplied by the number of parts, unless it is divided
# by their number: a part's rows, times other sizes of the summed values. In `numel - sum(mask)` numel is that of all.


MEANS = {*"cross_entropy_loss nll_loss nll_loss_nd nll_loss2d nll_loss_forward nll_loss2d_forward".split()}
"""Losses with class numbers as labels, some of which may be ignored: their mean divides by the others' weights."""
SUMS = {*"sum nansum count_nonzero dot vdot".split()}
"""Kinds that add up their operands' elements."""
SAME = {*"to _to_copy alias clone view reshape squeeze unsqueeze transpose t neg contiguous detach mean".split()}
"""Kinds of one operand that commute with a sum over the parts."""
TERMS, SCALED, DIVISIONS = {"add", "sub", "stack", "cat"}, {"mul", "div"}, {"div", "divide", "true_divide"}
PRODUCTS = {*"mm matmul linear cdist _cdist_forward".split()}
"""Kinds that combine all rows of two matrices."""
MEAN, SUM = 1, 2
"""Reductions of losses."""
_NUMBER = ExportedType(FLOAT32, ())


@dataclass(frozen=True)
class _Ratio:
    """A division by a count. count: the name of the sum, which the program of counts gives. made: nodes of that program
    that the program does not have. chain: nodes from the sum to the denominator."""

    node: ExportedNode
    count: str
    type: ExportedType
    made: tuple[ExportedNode, ...] = ()
    chain: tuple[ExportedNode, ...] = ()


def loss_in_parts(
    program: ExportedProgram, loss: ProgramOutput, parts: int
) -> tuple[ExportedProgram, ExportedProgram | None, list[Location | None]]:
    """Return the programs for so many parts of a batch.

    The first has one more input for each count, [1]: the total over all parts. The second gives each part's counts;
    None if there are none. Last come the lines at which rows are combined in another way, so that the loss remains a
    mean of the parts' losses.
    """
    search = _Search(program, parts)
    terms = list(search.terms(loss.value))
    found = [each for each in terms if isinstance(each, _Ratio)]
    sums = {each.name for each in terms if isinstance(each, ExportedNode)}
    unread = [node.user_line for node in search.other_mixtures(loss.value, found, sums)]
    return _losses(program, found, sums, parts), search.counts(found) if found else None, unread


class _Search:
    """Finds the terms of a program's loss. data: names that depend on inputs of the caller. trained: names that depend
    on parameters. sizes: shapes of inputs. rows: the number of a part's rows. by_row: names whose dimension 0 is rows,
    or rows of rows. divided: names of sums that `terms` has found below a division."""

    def __init__(self, program: ExportedProgram, parts: int) -> None:
        self.program, self.parts = program, parts
        nodes = program.graph.nodes
        self.maker = {name: node for node in nodes for name in node.results}
        self.types = program.graph.types
        self.written = written_names(program.graph)
        self.divided: set[str] = set()
        self.data = _dependent_names(nodes, [each.name for each in program.inputs if each.kind == "user"])
        self.trained = _dependent_names(nodes, [each.name for each in program.inputs if each.trainable])
        users = [each.name for each in program.inputs if each.kind == "user" and self._shape(each.name)]
        self.sizes = [self._shape(name) for name in users]
        self.rows, self.by_row = min([sizes[0] for sizes in self.sizes], default=1), set(users)
        self.by_row.update(name for node in nodes if self._holds_rows(node) for name in node.results)

    def terms(self, value: Argument, is_sum: bool = False, by: Sequence[float] = ()) -> Iterator[_Ratio | ExportedNode]:
        """Yield the ratios, and the nodes that are sums over rows, among the terms of a number. is_sum: it adds up the
        elements of `value`. by: numbers that it is divided by."""
        for node, divisors in self._terms(value, by):
            if node is None:
                continue
            target = _kind(node)
            if (target in MEANS and _argument_of(node, "reduction") == MEAN) or target in DIVISIONS:
                ratio = self._of_labels(node) if target in MEANS else self._of_sums(node, is_sum)
                yield from [ratio] if ratio is not None else []
            elif _is_sum(node):
                inner = list(self.terms(node.arguments[0][1], True, divisors)) if target in SUMS else []
                read = self.data.intersection(node.operands)
                if not inner and read and read <= self.by_row and self._combines_rows(node, read):
                    is_mean = self._is_mean(divisors, [self._shape(name) for name in read])
                    self.divided.update([node.name] if is_mean else [])
                    yield from [node] if is_mean is False else []
                yield from inner

    def _terms(self, value: Argument, by: Sequence[float]) -> Iterator[tuple[ExportedNode | None, Sequence[float]]]:
        """Yield the nodes of which a value is a linear combination, with the numbers that each is divided by. None: a
        value that no node makes."""
        node = self.maker.get(value.name) if isinstance(value, NodeResult) else None
        target, given = ("", []) if node is None else (_kind(node), [v for _, v in node.arguments])
        if target in SAME or (target in SCALED and not self._is_data(given[1])):
            number = given[1] if target in SCALED else None
            if isinstance(number, int | float) and number:
                by = (*by, number if target == "div" else 1 / number)
            yield from self._terms(given[0], by)
        elif target in TERMS:
            for each in given[0] if isinstance(given[0], tuple) else given[:2]:
                yield from self._terms(each, by)
        else:
            yield node, by

    def other_mixtures(self, loss: Argument, ratios: Sequence[_Ratio], sums: Set[str]) -> Iterator[ExportedNode]:
        """Yield the first nodes on the way to a loss that combine rows of a part, but not linearly: the loss of the
        batch is then no mean of the parts' losses. ratios, sums: those that `terms` has found."""
        linear, other = set[str](), set[str]()  # names of values that combine rows
        followed = {node.name for ratio in ratios for node in (ratio.node, *ratio.chain, self.maker.get(ratio.count))
                    if node is not None}  # fmt: skip
        for node in self._needed_nodes({loss.name} if isinstance(loss, NodeResult) else set()):
            read = self.data.intersection(node.operands)
            if not read or read & other:
                other.update(node.results if read else ())
            elif read & linear or self._combines_rows(node, read):
                target, reduction = _kind(node), _argument_of(node, "reduction")
                is_right = target in SAME or reduction == MEAN or _is_sum(node)
                is_right |= target in SCALED and self._is_data(node.arguments[0][1]) and len(read) == 1
                is_right |= target in TERMS and read <= linear
                if _is_sum(node) and not read & linear:
                    is_right = (node.name in sums) != (node.name in self.divided)
                elif target in MEANS and reduction == MEAN:
                    type = self.types.get(getattr(_argument_of(node, "target"), "name", ""))
                    is_right = type is not None and type.dtype.is_float  # shares of classes, of which each row has some
                is_right |= node.name in followed
                (linear if is_right else other).update(node.results)
                yield from [] if is_right else [node]

    def _combines_rows(self, node: ExportedNode, read: Set[str]) -> bool:
        """Return whether a node computes a number, or a value of several rows, from rows. read: its operands that
        depend on the caller's inputs."""
        result = self._shape(node.results[0]) if node.results else ()
        shapes = [self._shape(name) for name in read]
        if _kind(node) in PRODUCTS:
            return len(read) > 1 and max(map(len, shapes)) == 2
        if "batch_norm" in node.target:
            return _argument_of(node, "training") is True
        dim = _argument_of(node, "dim")
        dims = {*dim} if isinstance(dim, tuple) else {dim}
        of_rows = read <= self.by_row and not dims.isdisjoint({0, -max(map(len, shapes))})
        if bool(node.results) and math.prod(result) < max(map(math.prod, shapes)):
            return not result or of_rows
        return of_rows and result in shapes and _kind(node) not in ("slice", "squeeze")

    def counts(self, ratios: Sequence[_Ratio]) -> ExportedProgram:
        """Return the program of the counts, of the nodes that these need alone."""
        graph = self.program.graph
        made = [node for ratio in ratios for node in ratio.made]
        needed = {name for node in made for name in node.operands}
        nodes = self._needed_nodes(needed | {ratio.count for ratio in ratios})
        read = {name for node in (*nodes, *made) for name in node.operands}
        inputs = [each for each in self.program.inputs if each.kind in ("user", "value") or each.name in read]
        fixed = [each if each.kind in ("user", "value") else replace(each, kind="constant") for each in inputs]
        outputs = tuple(ProgramOutput("user", NodeResult(ratio.count), str(i)) for i, ratio in enumerate(ratios))
        types = tuple((name, type) for name, type in graph.inputs if any(name == each.name for each in inputs))
        new = ExportedGraph((*nodes, *made), types, tuple(NodeResult(ratio.count) for ratio in ratios))
        return replace(self.program, graph=new, inputs=tuple(fixed), outputs=outputs)

    def _holds_rows(self, node: ExportedNode) -> bool:
        """Return whether dimension 0 of the result is that of all operands that depend on the caller's inputs."""
        read, result = self.data.intersection(node.operands), self._shape(node.results[0]) if node.results else ()
        if not read or not result or not read <= self.by_row:
            return False
        given: dict[str, Any] = dict(node.arguments)
        shapes = [self._shape(name) for name in read]
        rank, several = max(map(len, (result, *shapes))), [given.get(name) for name in ("dim", "dim0", "dim1")]
        dims = {dim for each in several for dim in (each if isinstance(each, tuple) else (each,))}
        if dims & {0, -rank} or given.get("dims", (0,))[0] != 0:
            return False
        return result[0] == shapes[0][0] or (not result[0] % self.rows and math.prod(result) == math.prod(shapes[0]))

    def _is_mean(self, divisors: Sequence[float], summed: Sequence[tuple[int, ...]]) -> bool | None:
        """Return whether a sum is divided by the number of rows, by the shapes of its operands. None: one of the
        divisors may be that number, or another one that is a multiple of it."""
        known = {self.rows * n for shape in (*self.sizes, *summed) for n in _products(shape[1:])}
        known.update(n for shape in summed if not shape[0] % self.rows for n in _products(shape))
        found = [round(abs(number)) for number in divisors if self._counts_rows(number)]
        is_known = any(number in known and number not in (1, 2) for number in found)  # those are factors, too
        return is_known or (None if found else False)

    def _counts_rows(self, number: Argument) -> bool:
        """Return whether a number is a multiple of the rows of a part."""
        times = abs(number) / self.rows if isinstance(number, int | float) else 0
        return times > 0.5 and math.isclose(times, round(times), rel_tol=1e-6)

    def _shape(self, name: str) -> tuple[int, ...]:
        type = self.types.get(name)
        return tuple(size for size in type.shape if isinstance(size, int)) if type is not None else ()

    def _of_labels(self, node: ExportedNode) -> _Ratio | None:
        """Return the mean of losses with class numbers."""
        target, weight, ignored = (_argument_of(node, name) for name in ("target", "weight", "ignore_index"))
        type = self.types.get(target.name) if isinstance(target, NodeResult) else None
        if _argument_of(node, "reduction") != MEAN or type is None or not type.dtype.is_integer:
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
        """Return a sum over a function of another sum."""
        above, below = _argument_of(node, "self"), _argument_of(node, "other")
        if not self._is_number(below) or not (is_sum or self._adds_up(above)):
            return None
        chain: list[ExportedNode] = []
        while isinstance(below, NodeResult):
            maker = self.maker.get(below.name)
            if maker is None or len(maker.results) != 1 or not self._is_fixed([below]):
                return None
            type = self.types[below.name]
            if _kind(maker) in SUMS and type is not None:
                steps = [self._of_all_parts(each, maker) for each in reversed(chain)]
                known = tuple(each for each in steps if each is not None)
                return _Ratio(node, below.name, type, (), known) if len(known) == len(steps) else None
            chain.append(maker)
            names = self.data.intersection(maker.operands)
            below = NodeResult(next(iter(names))) if len(names) == 1 else None
            if maker.target in CONTROL or not self._is_number(below):
                return None
        return None

    def _of_all_parts(self, node: ExportedNode, total: ExportedNode) -> ExportedNode | None:
        """Return a node that computes a denominator from a sum, with the number of elements of all parts for that of
        one. None if another of its numbers may count rows."""
        numbers = {name: value for name, value in node.arguments if self._counts_rows(value)}
        if _kind(node) not in (*TERMS, "rsub", *SCALED) or not numbers:
            return node
        elements = max(math.prod(self._shape(name)) for name in total.operands)
        if _kind(node) in SCALED or any(value != elements for value in numbers.values()):
            return None
        scaled = {name: value * self.parts for name, value in numbers.items() if isinstance(value, int | float)}
        return replace(node, arguments=tuple((name, scaled.get(name, value)) for name, value in node.arguments))

    def _adds_up(self, value: Argument) -> bool:
        """Return whether a number is a sum over the rows of a part."""
        terms = [node for node, _ in self._terms(value, ())]
        sums = [node.name for node in terms if node is not None and _is_sum(node) and self.data & {*node.operands}]
        self.divided.update(sums)
        return 0 < len(terms) == len(sums)

    def _is_fixed(self, values: Iterable[NodeResult]) -> bool:
        """Return whether values depend on no parameter, and on nothing that is overwritten."""
        names = {value.name for value in values}
        names.update(name for node in self._needed_nodes(names) for name in node.operands)
        return not names & (self.written | self.trained)

    def _needed_nodes(self, names: set[str]) -> list[ExportedNode]:
        """Return the nodes that compute names, in order."""
        needed, found = set(names), list[ExportedNode]()
        for node in reversed(self.program.graph.nodes):
            if not needed.isdisjoint(node.results):
                found.append(node)
                needed.update(node.operands)
        return found[::-1]

    def _is_data(self, value: Argument) -> bool:
        return isinstance(value, NodeResult) and value.name in self.data

    def _is_number(self, value: Argument) -> bool:
        type = self.types.get(value.name) if isinstance(value, NodeResult) else None
        return type is not None and not type.shape


def _losses(program: ExportedProgram, ratios: Sequence[_Ratio], sums: Set[str], parts: int) -> ExportedProgram:
    """Return the program with ratios that divide by the mean of all parts' counts, which are inputs, and sums over rows
    times the number of parts. sums: names of nodes."""
    by_node = {ratio.node.name: (number, ratio) for number, ratio in enumerate(ratios)}
    nodes: list[ExportedNode] = []
    inputs: list[ProgramInput] = []
    for node in program.graph.nodes:
        if node.name in sums:
            given: Mapping[str, Argument] = {"self": NodeResult(f"{node.name}_part"), "other": float(parts)}
            nodes.append(replace(node, results=(f"{node.name}_part", *node.results[1:])))
            nodes.append(_made(node, "aten.mul.Scalar", given, node.results[0], node.types[0]))
            continue
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
    if _kind(node) not in MEANS:
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
    return replace(like, name=result, target=target, arguments=tuple(arguments.items()), results=(result,),
                   types=(type,), given_by_name=0)  # fmt: skip


def _renamed(node: ExportedNode, names: Mapping[str, str], result: str) -> ExportedNode:
    def renamed(value: Argument) -> Argument:
        if isinstance(value, NodeResult):
            return NodeResult(names.get(value.name, value.name))
        return tuple(map(renamed, value)) if isinstance(value, tuple) else value

    return replace(node, name=result, results=(result,), arguments=tuple((n, renamed(v)) for n, v in node.arguments))


def _argument_of(node: ExportedNode, name: str) -> Argument:
    """Return an argument of a call, or its default; None if there is none."""
    kind = kind_of(node.target)
    defaults = () if kind is None else ((each.name, each.default) for each in kind.arguments)
    return (dict(defaults) | dict(node.arguments)).get(name)


def _products(sizes: Sequence[int]) -> set[int]:
    """Return the products of any of the sizes."""
    found = {1}
    for size in sizes:
        found |= {size * each for each in found}
    return found


def _is_sum(node: ExportedNode) -> bool:
    return _kind(node) in SUMS or ("reduction", SUM) in node.arguments


def _kind(node: ExportedNode) -> str:
    """Return the name of a kind of ATen, also of one that writes into its first argument; "" if it rounds a quotient,
    and for other kinds."""
    library, _, name = node.target.partition(".")
    return name.partition(".")[0].rstrip("_") if library == "aten" and not name.endswith("_mode") else ""


def _dependent_names(nodes: Sequence[ExportedNode], names: Iterable[str]) -> set[str]:
    """Return the names that are computed from others."""
    found = set(names)
    for node in nodes:
        if not found.isdisjoint(node.operands):
            found.update(node.results)
    return found


FULL = ("", "float32", "tf32")
"""Names of precisions in which all is Float32; of the last one products of a GPU round their operands."""
HALVES: Mapping[str, DType] = {"bfloat16": BFLOAT16, "float16": FLOAT16, "float8": BFLOAT16}
"""Element types of products beside Float32; with `float8` that of those outside of linear layers."""
IGNORED = -100
"""The label of a row that has no class."""
LOSS = "loss"
"""The name of the loss among a module's results."""


@dataclass(frozen=True)
class Training:
    """How a program is trained.

    loss: `cross_entropy`, `mse`, or the path of a result (`loss`, `0`); "" for the one that is called loss, or the
    first if that is a number. optimizer: as `recipe_of` reads it; "" for none. With neither the program is
    computed as it is. precision: of `HALVES`: kinds compute in it as under autocast, from weights in Float32;
    losses are scaled for float16. accumulate: parts of a step's batch, each of the rows that the program
    was exported for, whose gradients are added up. plan: of layers, or None.
    """

    loss: str = ""
    optimizer: str = ""
    precision: str = ""
    accumulate: int = 1
    plan: LayerPlan | None = None


@dataclass(frozen=True)
class CompiledStep:
    """A cell, and the types of the tensors that it is called with."""

    network: Cell
    inputs: tuple[TensorType, ...]


def class_loss(logits: Any, labels: Any, reduction: str = "mean") -> Any:
    """Return the mean cross entropy with class numbers.

    logits: [n, classes], [n, rows, classes] as language models have them, or [n, classes, height, width, ...].
    labels: Int64, without the dimension of the classes; IGNORED for none.
    """
    if len(logits.shape) == 3:
        logits, labels = ops.reshape(logits, (-1, logits.shape[-1])), ops.reshape(labels, (-1,))
    return ops.cross_entropy(logits, labels, None, IGNORED, reduction)


CLASSES = "cross_entropy"
LOSSES: Mapping[str, Callable[[Any, Any], Any]] = {CLASSES: class_loss, "mse": ops.mse_loss}
"""Losses of a result and labels, which are one more input."""


class InParts(Cell):
    """The mean of a network's losses over parts of the rows, one after the other.

    counts: gives the denominators of each part, by a tuple or one alone, if the losses have some: they are added up
    over the parts first, and the network takes the totals as its last inputs.
    """

    def __init__(self, network: Cell, parts: int, names: Sequence[str], counts: Cell | None = None) -> None:
        super().__init__(auto_prefix=False)
        self.summed = GradAccumulationCell(network, parts)
        self.counts = counts
        self.added = _SumOfParts()
        self.parts = parts
        object.__setattr__(self, "argument_names", tuple(names))

    def construct(self, *inputs: Any) -> Any:
        totals = ()
        if self.counts is not None:
            found = self.added(self.counts, self.parts, *inputs)
            several = found if isinstance(found, tuple) else (found,)
            totals = tuple([ops.broadcast_to(each, (self.parts,)) for each in several])
        return self.summed(*inputs, *totals) / self.parts


class LabelCount(Cell):
    """How many of the labels, which are the last input, are classes."""

    def construct(self, *inputs: Any) -> Any:
        return ops.ReduceSum()(ops.cast(ops.NotEqual()(inputs[-1], IGNORED), FLOAT32))


class WithLabels(Cell):
    """The loss of a network's result; the last input are the labels. parts: of a batch, for class numbers: then the
    loss is their sum over the mean of the parts' numbers of labels, and the number of all, [1], is one more input."""

    def __init__(self, network: ImportedNetwork, loss: str, parts: int = 0) -> None:
        super().__init__(auto_prefix=False)
        self.network = network
        self.loss = LOSSES[loss]
        self.parts = parts
        names = network.argument_names
        own = next(name for name in ("labels", "targets", f"labels_{len(names)}") if name not in names)
        object.__setattr__(self, "argument_names", (*names, own))

    def construct(self, *inputs: Any) -> Any:
        if not self.parts:
            return self.loss(self.network(*inputs[:-1]), inputs[-1])
        return class_loss(self.network(*inputs[:-2]), inputs[-2], "sum") / (ops.reshape(inputs[-1], ()) / self.parts)


def compiled_as(program: ExportedProgram, training: Training) -> CompiledStep:
    """Return the network to compile for a program with numbers for sizes.

    Raise MspcError if the loss or the optimizer is none, the program has no loss, or it has unknown kinds.
    """
    half = half_of(training.precision)
    if not training.loss and not training.optimizer:
        if training.accumulate != 1:
            raise MspcError("--accumulate adds up gradients, and nothing is trained", notes=["give an --optimizer"])
        network = ImportedNetwork(program, None, half, training.plan)
        return CompiledStep(network, network.input_types)
    if training.accumulate < 1:
        raise MspcError(
            f"--accumulate is {training.accumulate}; it is the number of parts of a step's batch, at least 1"
        )
    if training.loss in LOSSES:
        result, type = _result(program)
        network = ImportedNetwork(program, result.target or None, half, training.plan)
        labels = _labels(program, type, training.loss)
        trained = CompiledStep(WithLabels(network, training.loss), (*network.input_types, labels))
        counts: Cell | None = LabelCount() if training.loss == CLASSES else None
        part: Cell = trained.network if counts is None else WithLabels(network, CLASSES, training.accumulate)
    else:
        loss = _loss(program, training.loss)
        network = ImportedNetwork(program, loss.target or None, half, training.plan)
        trained = CompiledStep(network, network.input_types)
        if training.accumulate != 1:
            network, counts = _counted_networks(program, loss, training, half)
            part = network
    if training.accumulate != 1:
        names = trained.network.argument_names
        for type, name in zip(trained.inputs, names, strict=True):
            if not type.shape:
                raise MspcError(f"{program.name}: input {name} has no rows that could be parts of a batch")
        types = tuple(
            type.with_shape((type.shape[0] * training.accumulate, *type.shape[1:])) for type in trained.inputs
        )
        trained = CompiledStep(InParts(part, training.accumulate, names, counts), types)
    if not training.optimizer:
        return trained
    parameters = trained.network.trainable_params()
    try:
        optimizer = recipe_of(training.optimizer).optimizer(parameters, _differentiated(network))
    except MspcError as error:  # checks of layers name a line of the script, which there is none of
        raise MspcError(f"--optimizer {training.optimizer}: {error.message}", notes=error.notes) from None
    step = (ScaledStep if half == FLOAT16 else TrainOneStepCell)(trained.network, optimizer)
    object.__setattr__(step, "argument_names", trained.network.argument_names)
    return CompiledStep(step, trained.inputs)


def _differentiated(network: ImportedNetwork) -> set[int]:
    """Return the ids of parameters that have a gradient of the loss."""
    results = [each.value.name for each in network.results if isinstance(each.value, NodeResult)]
    reached = differentiated_names(network.program.graph, results)
    return {id(tensor) for name, tensor in network.held.items() if name in reached}


def half_of(name: str) -> DType | None:
    """Return the element type of products. Raise MspcError if it is none that a program can be trained in."""
    if name in FULL:
        return None
    if name in HALVES:
        return HALVES[name]
    names = [*FULL[1:], *HALVES]
    notes = did_you_mean(name, names)
    raise MspcError(f"there is no precision {name!r:.60}; there are {', '.join(names)}", notes=notes)


def _counted_networks(
    program: ExportedProgram, loss: ProgramOutput, training: Training, half: DType | None
) -> tuple[ImportedNetwork, Cell | None]:
    """Return the network of the loss of one part, and the one of its counts, if the loss has some."""
    losses, counts, unread = loss_in_parts(program, loss, training.accumulate)
    for place in unread:
        where = f"{place}: " if place is not None else ""
        text = (
            f"{where}rows are combined here, and what follows is neither their sum nor their mean; with --accumulate "
            f"{training.accumulate} the loss of a step is the mean of the parts' losses, not that of the whole batch. "
            "Sums, means and a sum divided by a sum over inputs, added to the loss, are accumulated exactly"
        )
        say_once(f"parts {place}", text)
    network = ImportedNetwork(losses, loss.target or None, half, training.plan)
    return network, None if counts is None else ImportedNetwork(counts, None, half)


def _user_results(program: ExportedProgram) -> list[tuple[ProgramOutput, ExportedType]]:
    """Return the results that are tensors, with their types."""
    users = [each for each in program.outputs if each.kind in ("user", LOSS)]
    types = program.graph.types
    found = [(each, types.get(each.value.name)) for each in users if isinstance(each.value, NodeResult)]
    return [(each, type) for each, type in found if type is not None]


def _loss(program: ExportedProgram, path: str) -> ProgramOutput:
    """Return the result that is the loss."""
    users = _user_results(program)
    for each, type in users:
        if each.target == path if path else each.target == LOSS or each.kind == LOSS:
            if type.shape or not type.dtype.is_float:
                shape = ", ".join(map(str, type.shape))
                raise MspcError(f"{program.name}: its result {each.target!r:.60} is {type.dtype}[{shape}], and no loss")
            return each
    if not path and users and users[0][1].dtype.is_float and not users[0][1].shape:
        return users[0][0]
    paths = [each.target or "one tensor" for each, _ in users]
    notes = [
        *did_you_mean(path, [*paths, *LOSSES]), f"it returns {', '.join(paths)}",
        f"--loss is the path of one of these, or {' or '.join(LOSSES)}, with labels as one more input",
    ]  # fmt: skip
    what = f"has no result {path!r:.60} to be the loss" if path else "returns no loss"
    raise MspcError(f"{program.name} {what}", notes=notes)


def _result(program: ExportedProgram) -> tuple[ProgramOutput, ExportedType]:
    """Return the result that a loss is computed of: the one called logits, else the first."""
    users = [(each, type) for each, type in _user_results(program) if type.dtype.is_float and type.shape]
    if not users:
        raise MspcError(f"{program.name} returns nothing that a loss could be computed of")
    return next((each for each in users if each[0].target == "logits"), users[0])


def _labels(program: ExportedProgram, type: ExportedType, loss: str) -> TensorType:
    shape = tuple(size for size in type.shape if isinstance(size, int))
    if loss != "cross_entropy":
        return TensorType(type.dtype, shape)
    if len(shape) < 2:
        raise MspcError(f"{program.name}: cross_entropy needs results of 2 dimensions or more, not {list(shape)}")
    return TensorType(INT64, shape[:-1] if len(shape) <= 3 else (shape[0], *shape[2:]))
