"""Compares one device with PyTorch: every operator on the operands that it had, every gradient rule, and all gradients
as PyTorch's own differentiation of the forward graph has them; updates beside their formulas.
"""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import field
from functools import partial
from typing import Any

import numpy as np

from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Builder, Constant, Graph, Node, Parameter, Value
from mspc.ir.late_dataclass import dataclass
from mspc.ir.types import TensorType, dtype_of
from mspc.ops.control.regions import MakeStack, TurnCount
from mspc.ops.control.structural import Depend, MakeTuple, StopGradient, TupleGetItem
from mspc.ops.op import NotDifferentiable, Op
from mspc.runtime.backend import NumPyBackend
from mspc.runtime.comm.local import LocalComm, World
from mspc.runtime.faults.record import PLACE_WORDS
from mspc.runtime.regions.region import Regions
from mspc.verify.difference import TOLERANCES, ComparedValue, Noise, coarsest, compare, epsilon_of
from mspc.verify.finite_differences import (
    Doubled,
    Held,
    Judged,
    NotInFloat64,
    name_of,
    needed,
    passes_no_gradient,
    value_at,
    widened,
)
from mspc.verify.pytorch.counterparts import (
    COUNTERPARTS_OF_DRAWS,
    counterparts,
    first_of_ties,
    load_torch,
    update_formulas,
)
from mspc.verify.verification import VerifiedProgram, one_device

Array = Any
Tensor = Any
REFUSED = (RuntimeError, NotImplementedError, TypeError, IndexError, ValueError)
"""Exceptions that PyTorch raises for operands that it does not take."""


def _wide(tensor: Tensor) -> Tensor:
    """Return a tensor of 8 or 16 bits in Float32: NumPy and some operators of PyTorch have none of these types."""
    return tensor.float() if tensor.is_floating_point() and tensor.itemsize < 4 else tensor


class TorchJudge:
    """PyTorch as a judge of single operators. torch: the library."""

    def __init__(self, torch: Any) -> None:
        self.torch = torch
        self.table = counterparts(torch)
        self.draws = COUNTERPARTS_OF_DRAWS
        self.updates = update_formulas(torch)

    def tensor(self, array: Array) -> Tensor:
        """Return a copy of an array."""
        array = np.asarray(array)
        if array.dtype.name == "bfloat16":
            return self.torch.tensor(array.astype(np.float32)).to(self.torch.bfloat16)
        return self.torch.tensor(np.ascontiguousarray(array).reshape(array.shape))

    def array(self, tensor: Tensor, like: Array) -> Array:
        """Return the tensor's elements, of the element type of another array."""
        tensor = tensor.detach().resolve_conj()
        return _wide(tensor).numpy().astype(np.asarray(like).dtype)

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
        random, in Float64; nothing without a counterpart, nor of Float8, to which PyTorch rounds gradients."""
        tensors = [self.tensor(operand) for operand in operands]
        for index, tensor in enumerate(tensors):
            tensor.requires_grad_(tensor.is_floating_point() and index not in fixed)
        found = self.call(op, tensors, results)
        judged = [i for i, t in enumerate(found or ()) if t is not None and t.requires_grad and t.itemsize > 1]
        if found is None or not judged or isinstance(op.bprop, NotDifferentiable):
            return []
        generator = np.random.default_rng(len(operands))
        weights = {i: generator.uniform(0.5, 1.5, np.shape(results[i])) for i in judged}
        total = sum((_wide(found[i]) * self.torch.tensor(w)).sum() for i, w in weights.items())
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
    """Return the gradients that an operator's own rule makes of the weights of its results."""
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


GRADIENTS = 1e-6
"""How far gradients in Float64 may be apart, relative to the largest element: some kernels compute in Float32."""
ZERO = 1e-12
"""Sizes that count as zero beside the largest compared gradient."""


@dataclass
class Against:
    """The comparison with PyTorch. first: the first operator that differs. judged, without: operators with and without
    a counterpart, by name. backward: operators without one in the backward graph, which the gradients judge. unjudged:
    parameters whose gradients pass through loops, branches or operators without a counterpart. unasked: trained
    parameters that outputs depend on, but whose gradients the program does not compute."""

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
    """Compare a step of one device with PyTorch's. Raise MspcError if PyTorch is not installed, NodeFailure if a kernel
    failed."""
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

    with first_of_ties(torch):
        World(1).run(main)
    return found


def _values(judge: TorchJudge, graph: Graph, given: dict[str, Array], backend: NumPyBackend, found: Against) -> None:
    """Compare every operator on the operands that it has on one device, also inside of loops and branches."""
    least, regions = coarsest(graph), Regions(graph, backend, [0] * PLACE_WORDS, compiles=False)

    def inside(each: Graph, index: int, kernel: Callable[..., Any], *operands: Any) -> Any:
        node = each.nodes[index]
        return kernel(*operands) if node.regions else _judged(judge, node, kernel, operands, least, found)

    values: dict[Value, Any] = {p: np.array(given[p.name]) for p in graph.parameters}
    with np.errstate(all="ignore"):
        for index, node in enumerate(graph.nodes):
            op: Any = node.op
            kernel = regions.kernel(node) if node.regions else op.kernel(backend)
            for region in regions.prepared:
                region.hook(inside)
            values[node] = inside(graph, index, kernel, *(value_at(values, value) for value in node.inputs))


def _judged(
    judge: TorchJudge, node: Node, kernel: Callable[..., Any], operands: Sequence[Array], least: float, found: Against
) -> Any:
    """Return the result of an operator, after it has been compared."""
    op: Any = node.op
    if _is_structural(op):
        return kernel(*operands)
    tensors = [judge.tensor(operand) for operand in operands]
    result = kernel(*operands)
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
            found.add(compare("operator", op.name, expected, part, least, partial(_rounding, operands, part)), node)
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
        noise = partial(_rounding, [*operands, expected], operands[index])
        found.add(compare("update", op.name, expected, operands[index], least, noise, before), node)


def _is_structural(op: Any) -> bool:
    """Return whether an operator computes nothing."""
    return op.constrains or isinstance(op, Depend | MakeStack | MakeTuple | StopGradient | TupleGetItem | TurnCount)


def _has_rule(node: Node, op: Any) -> bool:
    return isinstance(op, Op) and not (node.regions or op.mutates or _is_structural(op))


def _rounding(operands: Sequence[Array], result: Array) -> Noise:
    """Return how far rounding may move a result: as many terms as it sums, each as large as its operands."""
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
        read = {value for node in doubled.graph.nodes for value in node.inputs}
        self.parameters = {p: widened(values[p.name]) for p in doubled.graph.parameters if p in read}
        self.forward = [node for node in doubled.graph.nodes if node.phase == "forward"]
        self.seen: set[Node] = set()
        """Operators in regions whose rules have been compared: each is in the first iteration that runs it."""

    def compare(self) -> None:
        wanted = [g for judged in self.doubled.judged for g in judged.gradients.values()]
        try:
            self.values = self.doubled.run(self.backend, self.parameters, [*self.forward, *wanted], self._inside)
        except NotInFloat64:
            self.found.unjudged += [name_of(p) for judged in self.doubled.judged for p in judged.gradients]
            return
        for node in self.forward:
            if _has_rule(node, node.op):
                operands = [value_at(self.values, value) for value in node.inputs]
                self._rule(node, node.op, operands, self.values[node])
        for judged in self.doubled.judged:
            self._parameter_gradients(judged)

    def _inside(self, graph: Graph, index: int, kernel: Callable[..., Any], *operands: Any) -> Any:
        """Run an operator of a region, and compare its rule once."""
        node = graph.nodes[index]
        op = self.plain(node)
        if node.phase != "forward" or node in self.seen or not _has_rule(node, op):
            return kernel(*operands)
        self.seen.add(node)
        before = list(map(np.array, operands))
        result = kernel(*operands)
        self._rule(node, op, before, result)
        return result

    def _rule(self, node: Node, op: Op, operands: Sequence[Array], result: Any) -> None:
        """Add a row for an operator's gradients on the operands that it has."""
        parts = result if isinstance(result, tuple) else (result,)
        fixed = {i for i, value in enumerate(node.inputs) if isinstance(value, Constant)}  # nobody asks for theirs
        pairs = self.judge.rule(op, operands, parts, self.backend, fixed)
        noise = _noise_of(expected for expected, _ in pairs)
        for expected, mine in pairs:
            self.found.add(compare("rule", op.name, expected, mine, GRADIENTS, noise), node)

    def _parameter_gradients(self, judged: Judged) -> None:
        """Add a row for every value whose gradient is asked for: PyTorch differentiates the forward graph, mspc's own
        graph has the gradients."""
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
        return type(own)(map(self._constant, own)) if isinstance(own, tuple | list) else self.judge.tensor(own)

    def plain(self, node: Node) -> Any:
        """Return the operator of a node in a region, whatever finite differences hold."""
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
        noise = _noise_of(mine.values())
        for parameter, tensor in zip(wanted, found, strict=False):
            own = mine[parameter]
            expected = np.zeros_like(own) if tensor is None else self.judge.array(tensor, own)
            self.found.rows.append(compare("gradient", name_of(parameter), expected, own, GRADIENTS, noise))


def _noise_of(gradients: Iterable[Array]) -> Callable[[], Noise]:
    """Return the noise of gradients that are compared together: through a flat operator, as 1 less its result's square,
    they may be nothing but rounding."""
    zero = max(ZERO * max(map(_size, gradients), default=0.0), epsilon_of("Float64"))
    return partial(Noise, zero, zero)


def _is_differentiated(operands: Iterable[Any], results: Iterable[Any]) -> bool:
    """Return whether PyTorch differentiates these results; it does not for some functions, as Bessel's."""
    floats = [each for each in results if each is not None and each.is_floating_point()]
    given = (each for operand in operands for each in (operand if isinstance(operand, tuple) else (operand,)))
    return not floats or any(each.requires_grad for each in floats) or not any(each.requires_grad for each in given)


def _size(array: Array) -> float:
    return float(np.max(np.abs(array), initial=0.0))
