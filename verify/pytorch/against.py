"""Compares one device with PyTorch: every operator on the operands that it had, every gradient rule, and all gradients
as PyTorch's own differentiation of the forward graph has them; updates beside their formulas, and the training steps
that all networks share beside PyTorch's own."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import field
from typing import Any

import numpy as np

from mspc.ir.graph import Constant, Graph, Node, Value
from mspc.ir.late_dataclass import dataclass
from mspc.ops.control.regions import MakeStack, TurnCount
from mspc.ops.control.structural import Depend, MakeTuple, StopGradient, TupleGetItem
from mspc.ops.op import Op
from mspc.runtime.backend import NumPyBackend
from mspc.runtime.comm.local import LocalComm, World
from mspc.verify.difference import TOLERANCES, ComparedValue, Noise, coarsest, compare, epsilon_of
from mspc.verify.float64_graph import Doubled, Held, Judged, NotInFloat64, name_of, needed, passes_no_gradient, widened
from mspc.verify.pytorch.counterparts import load_torch
from mspc.verify.pytorch.reference import TorchJudge, value_at
from mspc.verify.pytorch.regions import Pair, region_results
from mspc.verify.training_steps.reference import judged_apart
from mspc.verify.verification import VerifiedProgram, one_device

Array = Any
Tensor = Any
GRADIENTS = 1e-6
"""How far gradients in Float64 may be apart, relative to the largest element: some kernels compute in Float32."""
ZERO = 1e-12
"""What counts as zero beside the largest of the gradients that are compared."""


@dataclass
class Against:
    """What was compared. first: the first operator that differs. judged, without: operators of the graph with a
    counterpart, and those that have none, by their names. backward: those of the backward graph that have none: what
    they compute is what gradients are made of. unjudged: parameters whose gradients come through what has none.
    unasked: trained parameters that outputs depend on, and whose gradients the program does not compute."""

    version: str
    rows: list[ComparedValue] = field(default_factory=list[ComparedValue])
    first: Node | None = None
    judged: Counter[str] = field(default_factory=Counter[str])
    without: Counter[str] = field(default_factory=Counter[str])
    backward: Counter[str] = field(default_factory=Counter[str])
    unjudged: list[str] = field(default_factory=list[str])
    unasked: list[str] = field(default_factory=list[str])

    def add(self, row: ComparedValue, node: Node) -> None:
        """Record the worst row of each kind and name, and the first node that differs."""
        if not row.same and self.first is None:
            self.first = node
        for index, other in enumerate(self.rows):
            if (other.kind, other.name) == (row.kind, row.name):
                self.rows[index] = max(row, other, key=lambda r: (not r.same, r.difference))
                return
        self.rows.append(row)


def against_torch(program: VerifiedProgram) -> Against:
    """A step of one device beside PyTorch.

    Raises:
        MspcError: PyTorch is not installed. NodeFailure: a kernel failed.
    """
    torch = load_torch()
    judge, found = TorchJudge(torch), Against(str(torch.__version__))
    one, doubled = program.reference.graph, program.reference.doubled
    device, _, _ = one_device(program, one)
    names = [p.name for p in one.parameters if p.kind == "input"]
    values = program.weights | dict(zip(names, device.feeds[0][0], strict=True))

    def main(comm: LocalComm) -> None:
        backend = NumPyBackend(comm, step=1)
        _values(judge, one, values, backend, found)
        _Gradients(judge, doubled, values, backend, found).compare()

    World(1).run(main)
    if any(node.op.mutates for node in one.nodes):
        found.rows += judged_apart()
    return found


def _values(judge: TorchJudge, graph: Graph, given: dict[str, Array], backend: NumPyBackend, found: Against) -> None:
    """Every operator on the operands that it has on one device, also inside of loops and branches."""
    least = coarsest(graph)

    def run(each: Graph, operands: Sequence[Pair]) -> list[Pair]:
        values: dict[Value, Any] = {p: pair.own for p, pair in zip(each.parameters, operands, strict=True)}
        for node in each.nodes:
            inputs = [value_at(values, value) for value in node.inputs]
            if node.regions:
                pairs = region_results(node, list(map(Pair, inputs)), run, backend, judge.torch)
                values[node] = tuple(pair.own for pair in pairs)
            else:
                values[node] = _judged(judge, node, inputs, backend, least, found)
        return [Pair(value_at(values, value)) for value in each.results]

    with np.errstate(all="ignore"):
        run(graph, [Pair(np.array(given[p.name])) for p in graph.parameters])


def _judged(
    judge: TorchJudge, node: Node, operands: list[Array], backend: NumPyBackend, least: float, found: Against
) -> Any:
    """The result of an operator, after it has been compared."""
    op: Any = node.op
    if _is_structural(op):
        return op.kernel(backend)(*operands)
    tensors = [judge.tensor(operand) for operand in operands]
    result = op.kernel(backend)(*operands)
    parts = result if isinstance(result, tuple) else (result,)
    if op.mutates:
        _updated(judge, node, tensors, operands, least, found)
        return result
    theirs = judge.call(op, tensors, parts)
    if theirs is None:
        (found.backward if node.phase == "backward" else found.without)[op.name] += 1
        return result
    found.judged[op.name] += 1
    for part, tensor in zip(parts, theirs, strict=True):
        if tensor is not None:
            expected = judge.array(tensor, part)
            found.add(compare("operator", op.name, expected, part, least, _rounding(operands, part)), node)
    return result


def _updated(
    judge: TorchJudge, node: Node, tensors: Sequence[Tensor], operands: Sequence[Array], least: float, found: Against
) -> None:
    """Rows for what an update left in its operands. tensors: the operands as they were before."""
    op = node.op
    values = judge.updated(op, tensors)
    if values is None:
        (found.backward if node.phase == "backward" else found.without)[op.name] += 1
        return
    found.judged[op.name] += 1
    for index, tensor in zip(op.mutates, values, strict=True):
        expected = judge.array(tensor, operands[index])
        before = judge.array(tensors[index], operands[index])
        noise = _rounding([*operands, expected], operands[index])
        found.add(compare("update", op.name, expected, operands[index], least, noise, before), node)


def _is_structural(op: Any) -> bool:
    """Whether an operator computes nothing."""
    return op.constrains or isinstance(op, Depend | MakeStack | MakeTuple | StopGradient | TupleGetItem | TurnCount)


def _rounding(operands: Sequence[Array], result: Array) -> Noise:
    """How far rounding may move a result: as many terms as it sums, each as large as its operands."""
    dtype = {name.lower(): name for name in TOLERANCES}.get(np.asarray(result).dtype.name)
    floats = [np.asarray(x) for x in operands if np.asarray(x).dtype.name.lower() in map(str.lower, TOLERANCES)]
    if dtype is None or not floats:
        return Noise()
    sizes = [float(np.max(np.abs(x.astype(np.float64)), initial=0.0, where=np.isfinite(x))) for x in floats]
    terms = max(1.0, max(x.size for x in floats) / max(1, np.asarray(result).size))
    amount = epsilon_of(dtype) * math.sqrt(terms) * math.prod(max(1.0, size) for size in sizes)
    return Noise(amount, amount)


class _Gradients:
    """Compares gradients in Float64: of every operator of the forward graph, and of the complete graph."""

    def __init__(
        self, judge: TorchJudge, doubled: Doubled, values: dict[str, Array], backend: NumPyBackend, found: Against
    ) -> None:
        self.judge, self.doubled, self.backend, self.found = judge, doubled, backend, found
        self.parameters = {p: widened(values[p.name]) for p in doubled.graph.parameters}
        self.forward = [node for node in doubled.graph.nodes if node.phase == "forward"]

    def compare(self) -> None:
        wanted = [g for judged in self.doubled.judged for g in judged.gradients.values()]
        try:
            self.values = self.doubled.run(self.backend, self.parameters, [*self.forward, *wanted])
        except NotInFloat64:
            self.found.unjudged += [name_of(p) for judged in self.doubled.judged for p in judged.gradients]
            return
        for node in self.forward:
            if isinstance(node.op, Op) and not node.regions and not _is_structural(node.op) and not node.op.mutates:
                self._rule(node, node.op)
        for judged in self.doubled.judged:
            self._parameter_gradients(judged)

    def _rule(self, node: Node, op: Op) -> None:
        """A row for an operator's gradients on the operands that it has."""
        operands = [value_at(self.values, value) for value in node.inputs]
        result = self.values[node]
        parts = result if isinstance(result, tuple) else (result,)
        fixed = {i for i, value in enumerate(node.inputs) if isinstance(value, Constant)}  # nobody asks for theirs
        pairs = self.judge.rule(op, operands, parts, self.backend, fixed)
        largest = max((_size(expected) for expected, _ in pairs), default=0.0)
        # Where an operator is flat, 1 less its result's square may be nothing but rounding.
        zero = max(ZERO * largest, epsilon_of("Float64"))
        for expected, mine in pairs:
            self.found.add(compare("rule", op.name, expected, mine, GRADIENTS, Noise(zero, zero)), node)

    def _parameter_gradients(self, judged: Judged) -> None:
        """A row for every value whose gradient is asked for: PyTorch differentiates the forward graph, mspc's own graph
        has the gradients."""
        tensors: dict[Value, Any] = {}
        reached: dict[Value, frozenset[Value]] = {}
        blocked: frozenset[Value] = frozenset()
        for parameter, array in self.parameters.items():
            trained = parameter.kind == "parameter" and parameter.trainable and array.dtype.kind == "f"
            tensors[parameter] = self.judge.tensor(array).requires_grad_(trained or parameter in judged.gradients)
            reached[parameter] = frozenset({parameter} & judged.gradients.keys())
        for node in needed(self.doubled.graph, [*judged.outputs, *judged.sens]):
            operands = [self.judge.tensor(v.value) if isinstance(v, Constant) else tensors[v] for v in node.inputs]
            reached[node] = frozenset[Value]().union(*(reached.get(v, frozenset()) for v in node.inputs))
            if node.regions:
                tensors[node], is_complete = self._region(node, operands)
                blocked |= frozenset() if is_complete else reached[node]
                continue
            result = self._followed(node, operands, self.values[node])
            if result is None:
                result = self._constant(self.values[node])
                if not passes_no_gradient(node) and not isinstance(node.op, MakeStack):
                    blocked |= reached[node]
                reached[node] = frozenset()
            if node in judged.gradients:
                result, reached[node] = result.detach().requires_grad_(True), frozenset({node})
            tensors[node] = result
        self._compare(judged, tensors, blocked)

    def _constant(self, own: Any) -> Any:
        """Return constants of PyTorch, without gradients."""
        return tuple(map(self.judge.tensor, own)) if isinstance(own, tuple) else self.judge.tensor(own)

    def _region(self, node: Node, operands: Sequence[Any]) -> tuple[tuple[Any, ...], bool]:
        """Return PyTorch's results of a node that runs regions, and whether it differentiates everything inside."""
        is_complete = True

        def run(graph: Graph, given: Sequence[Pair]) -> list[Pair]:
            nonlocal is_complete
            pairs: dict[Value, Pair] = dict(zip(graph.parameters, given, strict=True))

            def at(value: Value) -> Pair:
                if isinstance(value, Constant):
                    return Pair(value.value, self.judge.tensor(value.value))
                return pairs[value]

            for inner in graph.nodes:
                read = [at(value) for value in inner.inputs]
                if inner.regions:
                    found = region_results(inner, read, run, self.backend, self.judge.torch)
                    pairs[inner] = Pair(tuple(pair.own for pair in found), tuple(pair.theirs for pair in found))
                    continue
                own = self.plain(inner).kernel(self.backend)(*(pair.own for pair in read))
                theirs = self._followed(inner, [pair.theirs for pair in read], own)
                if theirs is None:
                    moves = any(getattr(pair.theirs, "requires_grad", False) for pair in read)
                    is_complete = is_complete and (not moves or passes_no_gradient(inner))
                    theirs = self._constant(own)
                pairs[inner] = Pair(own, theirs)
            return [at(value) for value in graph.results]

        own = [value_at(self.values, value) for value in node.inputs]
        found = region_results(node, list(map(Pair, own, operands)), run, self.backend, self.judge.torch)
        return tuple(pair.theirs for pair in found), is_complete

    def plain(self, node: Node) -> Any:
        """The operator of a node in a region, whatever finite differences hold."""
        return node.op.plain if isinstance(node.op, Held) else node.op

    def _followed(self, node: Node, operands: Sequence[Any], own: Any) -> Any:
        """Return PyTorch's result of a node, or None if it has no differentiable counterpart. own: mspc's result."""
        op = self.plain(node)
        if isinstance(op, MakeTuple):
            return tuple(operands)
        if isinstance(op, MakeStack):
            return self.judge.torch.stack(list(operands))
        if isinstance(op, TupleGetItem):
            return operands[0][op.index]
        if isinstance(op, TurnCount):
            return None
        if _is_structural(op):
            return operands[0].detach() if isinstance(op, StopGradient) else operands[0]
        parts = own if isinstance(own, tuple) else (own,)
        found = None if op.mutates else self.judge.call(op, operands, parts)
        if found is None or not _is_differentiated(operands, found):
            return None
        complete = tuple(self.judge.tensor(part) if t is None else t for t, part in zip(found, parts, strict=True))
        return complete if isinstance(own, tuple) else complete[0]

    def _compare(self, judged: Judged, tensors: dict[Value, Any], blocked: frozenset[Value]) -> None:
        total = self.judge.tensor(np.zeros(()))
        for i, output in enumerate(judged.outputs):
            value = self.judge.tensor(output.value) if isinstance(output, Constant) else tensors[output]
            sens = self.judge.tensor(value_at(self.values, judged.sens[i])) if judged.sens else 1.0
            total = total + (value * sens).sum()
        wanted = [p for p in judged.gradients if p not in blocked]
        self.found.unjudged += [name_of(p) for p in judged.gradients if p in blocked]
        asked = {value for each in self.doubled.judged for value in each.gradients}
        others = [p for p in self.parameters if p not in asked and tensors[p].requires_grad]
        found: Sequence[Any] = [None] * (len(wanted) + len(others))
        if found and total.requires_grad:
            found = self.judge.torch.autograd.grad(total, [tensors[p] for p in (*wanted, *others)], allow_unused=True)
        for parameter, tensor in zip(others, found[len(wanted) :], strict=True):
            if tensor is not None and bool(tensor.any()) and parameter.name not in self.found.unasked:
                self.found.unasked.append(parameter.name)
        mine = {p: np.asarray(value_at(self.values, judged.gradients[p])) for p in wanted}
        scale = max(map(_size, mine.values()), default=0.0)
        for parameter, tensor in zip(wanted, found, strict=False):
            own = mine[parameter]
            expected = np.zeros_like(own) if tensor is None else self.judge.array(tensor, own)
            row = compare("gradient", name_of(parameter), expected, own, GRADIENTS, Noise(ZERO * scale, ZERO * scale))
            self.found.rows.append(row)


def _is_differentiated(operands: Iterable[Any], results: Iterable[Any]) -> bool:
    """Whether PyTorch differentiates what it makes of some operands; it does not for some functions, as Bessel's."""
    floats = [each for each in results if each is not None and each.is_floating_point()]
    given = (each for operand in operands for each in (operand if isinstance(operand, tuple) else (operand,)))
    return not floats or any(each.requires_grad for each in floats) or not any(each.requires_grad for each in given)


def _size(array: Array) -> float:
    return float(np.max(np.abs(array), initial=0.0))
