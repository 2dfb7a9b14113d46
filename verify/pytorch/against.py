"""Compares one device with PyTorch: every operator on the operands that it had, every gradient rule, and all gradients
as PyTorch's own differentiation of the forward graph has them; updates beside their formulas.
"""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import field
from typing import Any, NamedTuple

import numpy as np

from mspc.ir.builder import Builder
from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Constant, Graph, Node, Parameter, Value
from mspc.ir.late_dataclass import dataclass
from mspc.ir.types import StackType, TensorType, dtype_of
from mspc.ops.control.regions import If, Loop, MakeStack, TurnCount, While, spread
from mspc.ops.control.structural import CALL, Depend, MakeTuple, StopGradient, TupleGetItem
from mspc.ops.op import NotDifferentiable, Op
from mspc.runtime.backend import NumPyBackend
from mspc.runtime.comm.local import LocalComm, World
from mspc.verify.difference import TOLERANCES, ComparedValue, Noise, coarsest, compare, epsilon_of
from mspc.verify.finite_differences import (
    Doubled,
    Held,
    Judged,
    NotInFloat64,
    name_of,
    needed,
    passes_no_gradient,
    widened,
)
from mspc.verify.pytorch.counterparts import counterparts, counterparts_of_draws, load_torch, update_formulas
from mspc.verify.verification import VerifiedProgram, one_device

Array = Any
Tensor = Any
REFUSED = (RuntimeError, NotImplementedError, TypeError, IndexError, ValueError)
"""Exceptions that PyTorch raises for operands that it does not take."""


class TorchJudge:
    """PyTorch as a judge of single operators. torch: the library."""

    def __init__(self, torch: Any) -> None:
        self.torch = torch
        self.table = counterparts(torch)
        self.draws = counterparts_of_draws(torch)
        self.updates = update_formulas(torch)

    def tensor(self, array: Array) -> Tensor:
        """A copy of an array."""
        array = np.asarray(array)
        if array.dtype.name == "bfloat16":
            return self.torch.tensor(array.astype(np.float32)).to(self.torch.bfloat16)
        return self.torch.tensor(np.ascontiguousarray(array).reshape(array.shape))

    def array(self, tensor: Tensor, like: Array) -> Array:
        """The tensor's elements, of the element type of another array."""
        tensor = tensor.detach().resolve_conj()
        wide = tensor.to(self.torch.float32) if tensor.dtype == self.torch.bfloat16 else tensor
        return wide.numpy().astype(np.asarray(like).dtype)

    def call(self, op: Any, operands: Sequence[Tensor], results: Sequence[Array]) -> tuple[Tensor | None, ...] | None:
        """Compute the operator in PyTorch; None for results that are not judged, None without a counterpart. results:
        mspc's."""
        if op.name in self.draws:
            operands = ([self.tensor(result) for result in results], *operands)
        function = self.draws.get(op.name) or self.table.get(op.name)
        if function is None:
            return None
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # about later changes in PyTorch
                found = function(op, *operands)
        except REFUSED:
            return None
        if found is None:
            return None
        return tuple(found) if isinstance(found, tuple | list) else (found,)

    def updated(self, op: Op, operands: Sequence[Tensor]) -> tuple[Tensor, ...] | None:
        """Return the operands that an update overwrites as they are afterwards, or None without a formula."""
        formula = self.updates.get(op.name)
        return None if formula is None else formula(op, *operands)

    def rule(
        self, op: Op, operands: Sequence[Array], results: Sequence[Array], backend: NumPyBackend,
        fixed: Collection[int] = (),
    ) -> list[tuple[Array, Array]]:  # fmt: skip
        """Return (PyTorch's, own) gradient of every operand that has one and is not `fixed`, for results weighted at
        random, in Float64; nothing without a counterpart."""
        tensors = [self.tensor(operand) for operand in operands]
        for index, tensor in enumerate(tensors):
            tensor.requires_grad_(tensor.is_floating_point() and index not in fixed)
        found = self.call(op, tensors, results)
        judged = [i for i, t in enumerate(found or ()) if t is not None and t.requires_grad]
        if found is None or not judged or isinstance(op.bprop, NotDifferentiable):
            return []
        generator = np.random.default_rng(len(operands))
        weights = {i: generator.uniform(0.5, 1.5, np.shape(results[i])) for i in judged}
        total = sum((found[i] * self.torch.tensor(w)).sum() for i, w in weights.items())
        wanted = [i for i, tensor in enumerate(tensors) if tensor.requires_grad]
        try:
            theirs = self.torch.autograd.grad(total, [tensors[i] for i in wanted], allow_unused=True)
            mine = _gradients(op, operands, len(results), weights, backend)
        except (*REFUSED, MspcError):  # one of the two does not differentiate it
            return []
        pairs = [(theirs[at], mine[i], operands[i]) for at, i in enumerate(wanted) if i not in op.distributions]
        zeros = [np.zeros_like(operand) for _, _, operand in pairs]
        return [
            (zero if tensor is None else self.array(tensor, zero), zero if gradient is None else gradient)
            for (tensor, gradient, _), zero in zip(pairs, zeros, strict=True)
        ]


def _gradients(
    op: Op, operands: Sequence[Array], count: int, weights: Mapping[int, Array], backend: NumPyBackend
) -> list[Array | None]:
    """The gradients that an operator's own rule makes of the weights of its results."""
    graph = Graph("rule")
    b = Builder(graph)
    inputs = [Parameter(f"x{i}", _type_of(operand)) for i, operand in enumerate(operands)]
    out = b.emit(op, *inputs)
    given = {i: Parameter(f"d{i}", _type_of(weight)) for i, weight in weights.items()}
    douts = [given.get(i) for i in range(count)]
    single = isinstance(out.type, TensorType)
    found = op.gradient(b, inputs, out, douts[0] if single else douts)
    values: dict[Value, Array] = dict(zip(inputs, map(np.array, operands), strict=True))
    values |= {given[i]: weight for i, weight in weights.items()}
    for node in graph.nodes:
        values[node] = node.op.kernel(backend)(*[value_at(values, v) for v in node.inputs])
    return [None if value is None else value_at(values, value) for value in found]


def _type_of(array: Array) -> TensorType:
    return TensorType(dtype_of(np.asarray(array).dtype), np.shape(array))


def value_at(values: Mapping[Value, Array], value: Value) -> Array:
    """The value of a node, a parameter or a constant."""
    return value.value if isinstance(value, Constant) else values[value]


# Runs loops, branches and calls value by value, once as mspc has the values and once as PyTorch does.


class Pair(NamedTuple):
    """A value. own: an array, or a list with an entry for every iteration. theirs: the same of PyTorch's tensors; None
    if only mspc's values are wanted."""

    own: Any
    theirs: Any = None

    def entry(self, iteration: int) -> Pair:
        return Pair(self.own[iteration], None if self.theirs is None else self.theirs[iteration])


Run = Callable[[Graph, Sequence[Pair]], list[Pair]]


def region_results(node: Node, operands: Sequence[Pair], run: Run, backend: NumPyBackend, torch: Any) -> list[Pair]:
    """The results of a node that runs regions.

    Args:
        run: gives the results of a region. backend: gets the iterations and calls that random numbers depend on.
    """
    turns, calls = backend.turns, backend.calls
    if CALL in node.attrs:
        backend.calls = (*calls, int(node.attrs[CALL]))
    try:
        if isinstance(node.op, Loop):
            return _iterations(node, node.op, operands, run, backend, torch)
        if isinstance(node.op, If):
            return run(node.regions[0 if operands[0].own else 1], operands[1:])
        return run(node.regions[0], spread(node, operands))
    finally:
        backend.turns, backend.calls = turns, calls


def _iterations(
    node: Node, op: Loop, operands: Sequence[Pair], run: Run, backend: NumPyBackend, torch: Any
) -> list[Pair]:
    first, body, around = op.first, node.regions[-1], backend.turns
    begin, end = first + op.carried, first + op.carried + op.scanned
    carried = [Pair(_copied(pair.own), pair.theirs) for pair in operands[first:begin]]
    known = op.known_turns([value.type for value in node.inputs])
    count = known if known >= 0 else int(operands[0].own) if first else -1
    stacks: list[dict[int, Pair]] = [{} for _ in range(op.stacked)]
    done = 0
    while done < count or count < 0:
        number = count - 1 - done if op.reverse else done
        backend.turns = (*around, number)
        read = [*carried, *(pair.entry(number) for pair in operands[begin:end]), *operands[end:]]
        if isinstance(op, While) and not run(node.regions[0], read)[0].own:
            break
        results = run(body, [*[Pair(np.int64(number), torch.tensor(number))] * op.leading, *read])
        carried = [Pair(_copied(pair.own), pair.theirs) for pair in results[: op.carried]]
        for stack, entry in zip(stacks, results[op.carried :], strict=True):
            stack[number] = Pair(_copied(entry.own), entry.theirs)
        done += 1
    told = [Pair(np.array(done), torch.tensor(done))] if isinstance(op, While) and op.tells_turns else []
    entries = [[stack[number] for number in range(done)] for stack in stacks]
    types = [value.type for value in body.results[op.carried :]]
    return [*carried, *told, *(
        _stacked(each, known >= 0 and not isinstance(type, StackType), torch)
        for each, type in zip(entries, types, strict=True)
    )]  # fmt: skip


def _stacked(entries: Sequence[Pair], is_tensor: bool, torch: Any) -> Pair:
    own, theirs = [pair.own for pair in entries], [pair.theirs for pair in entries]
    if any(each is None for each in theirs):
        return Pair(np.stack(own) if is_tensor and own else own)
    return Pair(np.stack(own), torch.stack(theirs)) if is_tensor and own else Pair(own, theirs)


def _copied(own: Any) -> Any:
    return list(map(_copied, own)) if isinstance(own, list) else np.array(own)


GRADIENTS = 1e-6
"""How far gradients in Float64 may be apart, relative to the largest element: some kernels compute in Float32."""
ZERO = 1e-12
"""Sizes that count as zero beside the largest compared gradient."""


@dataclass
class Against:
    """The comparison with PyTorch. first: the first operator that differs. judged, without: operators with and without
    a counterpart, by name. backward: operators without one in the backward graph, which the gradients judge. unjudged:
    parameters whose gradients pass through operators without a counterpart. unasked: trained parameters that outputs
    depend on, but whose gradients the program does not compute."""

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
    """Return rows for the operands of an update. tensors: the operands as they were before."""
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
        # If an operator is flat, 1 less its result's square may be nothing but rounding.
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
    """Whether PyTorch differentiates these results; it does not for some functions, as Bessel's."""
    floats = [each for each in results if each is not None and each.is_floating_point()]
    given = (each for operand in operands for each in (operand if isinstance(operand, tuple) else (operand,)))
    return not floats or any(each.requires_grad for each in floats) or not any(each.requires_grad for each in given)


def _size(array: Array) -> float:
    return float(np.max(np.abs(array), initial=0.0))
