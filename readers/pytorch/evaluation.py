"""Evaluation of an exported program's nodes over mspc's operators, with autocast and loops."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, cast

import ml_dtypes

from mspc.ir.diagnostics import Frames, MspcError
from mspc.ir.late_dataclass import dataclass
from mspc.ir.types import FLOAT32, HALVES, DType, TensorType
from mspc.mindspore_api import ops
from mspc.mindspore_api.common.parameter import Parameter
from mspc.mindspore_api.common.tensor import Tensor
from mspc.mindspore_api.errors import ApiRuntimeError
from mspc.mindspore_api.nn.cell import Cell
from mspc.mindspore_api.nn.cell_state import Precision
from mspc.readers.pytorch.equal_layers import EqualLayers, equal_layers
from mspc.readers.pytorch.exported_program import (
    ASSOCIATIVE,
    CONDITION,
    CONTROL,
    LOOPS,
    MAP,
    WHILE,
    Argument,
    ExportedGraph,
    ExportedNode,
    ExportedProgram,
    ExportedType,
    NodeResult,
    ProgramOutput,
    SymbolicSize,
    branches,
    frames_of,
    inlined,
    names_in,
    of_node,
    scope_of,
)
from mspc.readers.pytorch.kinds.aten_table import kind_of, kinds
from mspc.readers.pytorch.kinds.creation import overwritten
from mspc.readers.pytorch.kinds.kind import Function, Kind
from mspc.readers.pytorch.kinds.shapes import expanded, reshaped
from mspc.readers.pytorch.known_values import LIKE, NOT_READ, KnownTensor, is_known, known_result
from mspc.readers.pytorch.plans.strategies import LayerPlan
from mspc.readers.pytorch.written_values import (
    APART,
    SPLITS,
    NamedValue,
    Storage,
    returned,
    shares,
    split_dimension,
    written_names,
)

# Under `torch.autocast` some kinds compute in half precision, some in Float32, all others in the widest type of their
# operands. A whole program may be trained so, or blocks of it.


NARROW = frozenset((
    "linear", "matmul", "mm", "bmm", "mv", "addmm", "addmv", "addbmm", "baddbmm", "addr", "einsum", "tensordot",
    "bilinear", "conv1d", "conv2d", "conv3d", "convolution", "conv_transpose1d", "conv_transpose2d",
    "conv_transpose3d", "prelu", "scaled_dot_product_attention", "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_flash_attention", "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention", "grouped_mm_fallback", "_grouped_mm", "lstm", "gru", "rnn_tanh", "rnn_relu",
    "lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell",
))  # fmt: skip
"""Kinds that compute in half precision: products, which take most of a step's time and add up in Float32."""
WIDE = frozenset((
    "acos", "asin", "cosh", "erfinv", "exp", "expm1", "log", "log10", "log2", "log1p", "reciprocal", "rsqrt", "sinh",
    "tan", "pow", "softplus", "layer_norm", "native_layer_norm", "group_norm", "native_group_norm", "rms_norm",
    "cosine_similarity", "cosine_embedding_loss", "nll_loss", "nll_loss2d", "nll_loss_nd", "nll_loss_forward",
    "nll_loss2d_forward", "cross_entropy_loss", "hinge_embedding_loss", "kl_div", "poisson_nll_loss", "l1_loss",
    "smooth_l1_loss",
    "huber_loss", "mse_loss", "margin_ranking_loss", "multilabel_margin_loss", "soft_margin_loss",
    "triplet_margin_loss", "multi_margin_loss", "binary_cross_entropy", "binary_cross_entropy_with_logits", "dist",
    "pdist", "cdist", "_cdist_forward", "renorm", "logsumexp", "logcumsumexp", "prod", "softmax", "_softmax",
    "_safe_softmax", "log_softmax", "_log_softmax", "cumprod", "cumsum", "sum", "norm", "linalg_norm",
    "linalg_vector_norm", "linalg_matrix_norm", "linalg_inv", "inverse", "linalg_det", "linalg_slogdet", "linalg_qr",
    "linalg_cholesky", "linalg_solve", "linalg_solve_triangular", "grid_sampler", "grid_sampler_2d", "fft_fft",
    "fft_fft2", "fft_fftn", "fft_ifft", "fft_ifftn", "fft_irfft", "fft_irfft2", "fft_rfft", "fft_rfft2",
))  # fmt: skip
"""Kinds that compute in Float32 whatever they read."""
BY_BATCH = frozenset((
    "batch_norm", "_native_batch_norm_legit", "_native_batch_norm_legit_functional",
    "_native_batch_norm_legit_no_training", "instance_norm",
))  # fmt: skip
"""Kinds with statistics and weights in Float32, and a first result in the type of the normalised operand."""
BLOCK = "higher_order.wrap_with_autocast"
AS_THEY_ARE = Precision(FLOAT32)
"""Operators compute in the types of their operands."""

Call = Callable[[Callable[..., Any], Sequence[Any]], Any]
TypeOf = Callable[[Any], TensorType | None]


@dataclass(frozen=True)
class Autocast:
    """How kinds compute. dtype: the half, None if they compute in the types of their operands. is_exported: a block of
    the program says so, whose values have the types that were exported."""

    dtype: DType | None
    is_exported: bool = False

    def operands(self, name: str, given: Sequence[Any], call: Call, type_of: TypeOf) -> list[Any]:
        """Return the operands of a kind in the types of autocast."""
        if self.dtype is None:
            return list(given)
        if name in NARROW:
            return [_in_type(value, self.dtype, (FLOAT32, *HALVES), call, type_of) for value in given]
        if name in WIDE:
            return [_in_type(value, FLOAT32, HALVES, call, type_of) for value in given]
        floats = [type for type in map(type_of, _flat(given)) if type is not None and type.dtype.is_float]
        shaped = {type.dtype for type in floats if type.shape}
        if not shaped.intersection(HALVES):
            return list(given)
        wide = shaped.difference(HALVES)
        dtype = FLOAT32 if len(shaped) > 1 else next(iter(shaped))
        if wide:
            dtype = max(wide, key=lambda each: each.itemsize)
        if len({type.dtype for type in floats}) > 1:
            given = [_in_type(value, dtype, (FLOAT32, *HALVES), call, type_of) for value in given]
        return [_within_range(value, dtype) for value in given]

    def results(self, name: str, given: Sequence[Any], found: list[Any], call: Call, type_of: TypeOf) -> list[Any]:
        """Return the results of a kind that computed with the operands of `operands`."""
        if self.dtype is None or name not in BY_BATCH:
            return found
        first = type_of(given[0])
        return found if first is None else [_in_type(found[0], first.dtype, (FLOAT32,), call, type_of), *found[1:]]


def name_of(target: str) -> str:
    """Return the name of a kind without its library and its overload, and without the sign that it writes."""
    name = target.split(".")[1] if "." in target else target
    return name.removesuffix("_") if not name.endswith("__") else name


def inside(node: ExportedNode, around: Autocast | None) -> Autocast | None:
    """Return the autocast of a graph inside of a node: that around it, or the one of an autocast block. The arguments
    of autocast are the device, the element type, whether it is on, and whether casts are kept."""
    if node.target != BLOCK:
        return around
    values = [value for _, value in node.arguments]
    settings = values[: next((i for i, value in enumerate(values) if isinstance(value, ExportedGraph)), 0)]
    if len(settings) < 3 or settings[2] is not True:
        return Autocast(None, True)
    return Autocast(settings[1], True) if isinstance(settings[1], DType) else around


def _flat(given: Sequence[Any]) -> list[Any]:
    found: list[Any] = []
    for value in given:
        if isinstance(value, (tuple, list)):
            found += _flat(value)
        else:
            found.append(value)
    return found


def _within_range(value: Any, dtype: DType) -> Any:
    """Return a number that was the largest of Float32, as masks are filled with, as the largest of another type."""
    if not isinstance(value, float) or not math.isfinite(value):
        return value
    largest = float(ml_dtypes.finfo(dtype.numpy).max)
    return min(max(value, -largest), largest)


def _in_type(value: Any, dtype: DType, of: Sequence[DType], call: Call, type_of: TypeOf) -> Any:
    """Return a tensor of one of the types `of` in another one; of a list its tensors; anything else unchanged."""
    if isinstance(value, (tuple, list)):
        return tuple([_in_type(each, dtype, of, call, type_of) for each in value])
    type = type_of(value)
    if type is None or type.dtype == dtype or type.dtype not in of:
        return value
    return call(ops.cast, [value, dtype])


# `while_loop` has graphs of the condition and of an iteration, carried values, and values that every iteration reads.
# `scan` has a graph of an iteration, carried values, tensors of which each iteration reads a row, and values that every
# iteration reads; its results are the last carried values, and the rows made by all iterations. `map` is that without
# carried values. Few iterations are unrolled; many are a loop of mspc's.


FEW = 16
"""Rows up to which every turn is nodes of its own."""

Turned = Callable[[Any, ExportedGraph, Sequence[Any]], list[Any]]
"""Returns the results of a graph for operands, by an evaluator."""


class InnerGraph(Cell):
    """A graph of a program as the callee of a loop. compute: returns its results for an evaluator and operands."""

    is_imported = True
    plan = None

    def __init__(self, compute: Callable[[Any, Sequence[Any]], Any]) -> None:
        super().__init__(auto_prefix=False)
        object.__setattr__(self, "compute", compute)

    def construct(self, *inputs: Any) -> Any:
        """Never read: the front end calls `evaluate`."""
        raise ApiRuntimeError("a graph of a program is computed by a compile")

    def evaluate(self, evaluator: Any, args: Sequence[Any], named: Mapping[str, Any]) -> Any:
        """Return the graph's results."""
        return self.compute(evaluator, args)


def looped(target: str, given: Sequence[Any], call: Call, turned: Turned) -> list[Any]:
    """Return the results of a loop. Raise MspcError if its operands are none of it."""
    graphs = [each for each in given if isinstance(each, ExportedGraph)]
    operands: list[Any] = [each for each in given if not isinstance(each, ExportedGraph)]
    lists = all(isinstance(each, (tuple, list)) for each in operands)
    if not lists or (len(graphs), len(operands)) != ((2, 2) if target == WHILE else (1, 2 + (target != MAP))):
        raise MspcError("it has not the graphs and the operands of a loop")
    if target == WHILE:
        return _while(graphs[0], graphs[1], operands[0], operands[1], call, turned)
    carried, rows, shared = ((), *operands) if target == MAP else operands
    return _scanned(graphs[0], carried, rows, shared, call, turned)


def _while(
    condition: ExportedGraph, body: ExportedGraph, carried: Sequence[Any], shared: Sequence[Any], call: Call,
    turned: Turned,
) -> list[Any]:  # fmt: skip
    def holds(evaluator: Any, args: Sequence[Any]) -> Any:
        return turned(evaluator, condition, [*args[0], *shared])[0]

    def turn(evaluator: Any, args: Sequence[Any]) -> Any:
        return tuple(turned(evaluator, body, [*args[0], *shared]))

    return list(call(ops.WhileLoop(), [InnerGraph(holds), InnerGraph(turn), tuple(carried)]))


def _scanned(
    body: ExportedGraph, carried: Sequence[Any], rows: Sequence[Any], shared: Sequence[Any], call: Call,
    turned: Turned,
) -> list[Any]:  # fmt: skip
    count, kept = rows[0].shape[0], len(carried)

    def turn(evaluator: Any, args: Sequence[Any]) -> Any:
        state, place = args
        own = [place] if len(rows) == 1 else [evaluator.call(ops.Gather(), [table, place, 0]) for table in rows]
        found = turned(evaluator, body, [*state[:kept], *own, *shared])
        return (*found[:kept], *state[kept:]), tuple(found[kept:])

    state = tuple(carried) or (call(ops.arange, [0, 1, 1]),)  # a loop carries something
    table = rows[0] if len(rows) == 1 else call(ops.arange, [0, count, 1])
    state, made = call(ops.Scan(), [InnerGraph(turn), state, table, None, count <= FEW])
    ahead = list(state[:kept])
    return ahead + [call(ops.stack, [tuple([each[k] for each in made]), 0]) for k in range(len(made[0]))]


# `associative_scan` has a graph that combines two runs of rows, the rows, and values that every call reads.


ADD, MULTIPLY = "aten.add.Tensor", "aten.mul.Tensor"
SCANS = {
    ADD: "CumSum", MULTIPLY: "CumProd", "aten.logaddexp.default": "CumulativeLogsumexp",
    "aten.maximum.default": "Cummax", "aten.minimum.default": "Cummin",
}  # fmt: skip


def associative(given: Sequence[Any], call: Call, type_of: TypeOf) -> list[Any]:
    """Return the results of an associative scan. Raise MspcError if its operands are none of it."""
    if len(given) != 3 or not isinstance(given[0], ExportedGraph) or not all(isinstance(x, tuple) for x in given[1:]):
        raise MspcError("it has not the graph and the operands of an associative scan")
    body, rows, _ = given
    found = [_own_scan(body, rows, number, call, type_of) for number in range(len(rows))]
    if any(each is None for each in found):
        way = "export the network with combine_mode='generic', and run_decompositions({}) on the exported program"
        raise MspcError("its function is no sum, product, extremum, logaddexp or linear recurrence", notes=[way])
    return found


def _own_scan(body: ExportedGraph, rows: Sequence[Any], number: int, call: Call, type_of: TypeOf) -> Any:
    """Return a result of an associative scan if an operator computes it, or None."""
    names = [name for name, _ in body.inputs]
    left, right = names[: len(rows)], names[len(rows) : 2 * len(rows)]
    made = {node.results[0]: node for node in body.nodes if node.results}

    def operands(name: str) -> tuple[str, set[str]]:
        node = made.get(name)
        read = names_in(tuple(value for _, value in node.arguments)) if node else []
        return (node.target, set(read)) if node and len(node.arguments) == len(read) == 2 else ("", set())

    results = [(names_in((output,)) or [""])[0] for output in body.outputs]
    target, read = operands(results[number])
    own, before = right[number], left[number]
    if target in SCANS and read == {own, before}:
        scan = getattr(ops, SCANS[target])
        return call(scan(0), [rows[number]])[0] if "Cumm" in SCANS[target] else call(scan(), [rows[number], 0])
    types = [type_of(row) for row in rows]
    for place, (share, earlier) in enumerate(zip(right, left, strict=True)):
        products = [name for name in read - {own} if operands(name) == (MULTIPLY, {share, before})]
        is_product = operands(results[place]) == (MULTIPLY, {share, earlier})
        if target == ADD and own in read and products and is_product and all(t and t.dtype.is_float for t in types):
            shares, shape = rows[place], tuple(rows[number].shape)
            shares = shares if tuple(shares.shape) == shape else call(ops.broadcast_to, [shares, shape])
            return call(ops.LinearRecurrence(), [shares, rows[number]])
    return None


# The front end's part is the `Evaluator`, which makes nodes of the graph. This part knows names, views and overwritten
# values.


class Evaluator(Protocol):
    """The front end's services for a program that is walked."""

    def at(self, frames: Frames, scope: str, precision: Precision | None, reason: str = "") -> None:
        """Set the lines, the module, the precision (None: the cell's) and the reason of collectives of the next
        calls."""

    def call(self, function: Function, operands: Sequence[Any], repeats: bool = False) -> Any:
        """Return the value of a call. repeats: an earlier call with operands of the same types may be copied, as no
        gradient is taken of it. Raises MspcError."""

    def held(self, tensor: Tensor, name: str) -> Any:
        """Return a tensor of the program as a value; `name` is that of a constant."""

    def planned(self, name: str, value: Any) -> Any:
        """Return a value of the program as a plan has it, if there is one."""

    def type_of(self, value: Any) -> TensorType | None:
        """Return the type of a tensor; None for all else."""

    def layers(
        self, carried: tuple[Any, ...], layer: Callable[[Sequence[Any]], tuple[Any, ...]],
        members: Sequence[Sequence[Parameter]], count: int,
    ) -> tuple[Any, ...] | None:  # fmt: skip
        """Return the values after `count` equal layers as a loop; None, with nothing made, if they must be inlined."""


def evaluated(
    evaluator: Evaluator, program: ExportedProgram, held: Mapping[str, Tensor], given: Sequence[Any],
    results: Sequence[ProgramOutput], constants: dict[str, Tensor], half: DType | None = None,
    plan: LayerPlan | None = None,
) -> Any:  # fmt: skip
    """Return the results of a program.

    held: its parameters, buffers and constants by the names of their values. given: the tensors that it is called with.
    results: the outputs to return. constants: known numbers, by the names of their values: each is one constant however
    often the program is walked. half: the element type of kinds under autocast; results are Float32 all the same. plan:
    of its layers.
    Parameters that it overwrites are updated.

    Raise MspcError if a node cannot be computed, with the kind and the module, at the line of the module's source.
    """
    walk = _Walk(evaluator, constants, None if half is None else Autocast(half))
    walk.folds = not program.is_step
    walk.layers = equal_layers(program.graph, held, written_names(program.graph), plan) if walk.folds else {}
    walk.held = held
    tensors = iter(given)
    for each in program.inputs:
        if each.kind == "value":
            walk.values[each.name] = _alone(each.value)
        else:
            value = next(tensors) if each.kind == "user" else evaluator.held(held[each.name], each.qualified)
            trains = each.kind == "user" or getattr(held[each.name], "requires_grad", False)
            walk.values[each.name] = _alone(value, trains)
    walk.run(program.graph)
    _update(walk, program, held)
    found = tuple(walk.result(output.value) for output in results)
    return found[0] if len(found) == 1 else found


def _update(walk: _Walk, program: ExportedProgram, held: Mapping[str, Tensor]) -> None:
    """Give parameters and buffers that the program has overwritten their new values."""
    new: dict[str, Any] = {}
    for each in program.inputs:
        if each.name in held and walk.values[each.name].storage.version:
            new[each.name] = walk.values[each.name].read(walk.evaluator.call)
    names = {each.qualified: each.name for each in program.inputs}
    for output in program.outputs:
        name = output.target if output.target in held else names.get(output.target, "")
        if output.kind in ("buffer_mutation", "parameter_mutation") and name in held:
            new[name] = walk.argument(output.value)
    for name, value in new.items():
        parameter = held[name]
        if isinstance(parameter, Parameter):
            type = walk.evaluator.type_of(value)
            if type is not None and type.dtype != parameter.dtype:
                value = walk.evaluator.call(ops.cast, [value, parameter.dtype])
            walk.evaluator.call(ops.assign, [parameter, value])


class _Walk:
    """The values so far by their names."""

    def __init__(
        self, evaluator: Evaluator, constants: dict[str, Tensor], autocast: Autocast | None = None,
        is_differentiated: bool = True,
    ) -> None:  # fmt: skip
        self.evaluator = evaluator
        self.autocast = autocast
        self.is_differentiated = is_differentiated
        self.folds = True
        """Whether nodes of known numbers become constants."""
        self.layers: Mapping[int, EqualLayers] = {}
        """Equal layers of the graph, by their first nodes."""
        self.held: Mapping[str, Tensor] = {}
        """Parameters, buffers and constants by name."""
        self.scopes: Mapping[str, str] = {}
        """Other names of modules."""
        self.halved: set[str] = set()
        """Names of values that were exported in Float32, and that are halves."""
        self.values: dict[str, NamedValue] = {}
        self.known: dict[str, KnownTensor] = {}
        self.delayed: dict[str, ExportedNode] = {}
        """Nodes of known results, which are made when somebody reads them."""
        self._constants = constants
        self._alike: dict[tuple[Any, ...], KnownTensor | None] = {}
        """Known results of calls with plain arguments, by these."""
        self._names: dict[int, str] = {}
        """The names of constants, by their numbers in `known`."""

    def run(self, graph: ExportedGraph) -> None:
        written = written_names(graph)
        place = 0
        while place < len(graph.nodes):
            found = self.layers.get(place)
            if found is not None and self._run_layers(found):
                place += found.size
                continue
            self._run_nodes(graph.nodes[place : place + 1], written)
            place += 1

    def _run_nodes(self, nodes: Sequence[ExportedNode], written: set[str]) -> None:
        for node in nodes:
            is_made = not self.folds or written.intersection(node.results)
            found = None if is_made else self._known_result(node)
            if found is not None:
                self.known[node.results[0]] = found
                self.delayed[node.results[0]] = node
            else:
                self._made(node)

    def _run_layers(self, layers: EqualLayers) -> bool:
        """Run equal layers as a loop. Return False, with nothing made, if they must be inlined."""
        inner = self

        def layer(given: Sequence[Any]) -> tuple[Any, ...]:
            nonlocal inner
            inner = self._walk_of_layer(layers, given)
            inner._run_nodes(layers.nodes, set())
            return tuple([inner.named(name).read(self.evaluator.call) for _, name, _ in layers.carried])

        self.evaluator.at(layers.frames, "", None)
        carried = tuple([self.named(first).read(self.evaluator.call) for first, _, _ in layers.carried])
        members = [[cast(Parameter, self.held[name]) for name in names] for names in layers.members.values()]
        found = self.evaluator.layers(carried, layer, members, layers.count)
        if found is None:
            return False
        for (_, inside, after), value in zip(layers.carried, found, strict=True):
            self.values[after] = _alone(value, self.is_differentiated)
            self.halved.update([after] if inside in inner.halved else [])
        return True

    def _walk_of_layer(self, layers: EqualLayers, given: Sequence[Any]) -> _Walk:
        """Return the walk of the first of equal layers, before its first node."""
        inner = _Walk(self.evaluator, self._constants, self.autocast, self.is_differentiated)
        names = {first for first, _, _ in layers.carried}
        inner.values = dict(self.values)
        inner.values |= {first: _alone(value) for (first, _, _), value in zip(layers.carried, given, strict=True)}
        inner.known = {name: known for name, known in self.known.items() if name not in names}
        inner.delayed, inner.halved, inner.scopes = dict(self.delayed), set(self.halved), layers.scopes
        inner._names = self._names
        return inner

    def _made(self, node: ExportedNode) -> None:
        self._at_node(node)
        try:
            self._run(node)
        except MspcError as error:
            raise of_node(error, node) from None

    def _at_node(self, node: ExportedNode) -> None:
        """Attribute the next calls to this node."""
        precision = AS_THEY_ARE if self.autocast is not None and self.autocast.is_exported else None
        scope = scope_of(node)
        self.evaluator.at(frames_of(node), self.scopes.get(scope, scope), precision, node.reason)

    def _known_result(self, node: ExportedNode) -> KnownTensor | None:
        if len(node.results) != 1 or node.types[0] is None:
            return None
        like = node.target.removeprefix("aten.") in LIKE
        given = {name: self._as_known(value) for name, value in node.arguments if name not in NOT_READ}
        if like:
            given = dict(list(given.items())[1:])
        if not all(map(is_known, given.values())):
            return None
        key = (node.target, str(node.types[0]), *((name, repr(value)) for name, value in given.items()))
        if any(map(_has_numbers, given.values())):
            return known_result(node.target, given, node.types[0])
        if key not in self._alike:  # layers that are alike count the same rows
            self._alike[key] = known_result(node.target, given, node.types[0])
        return self._alike[key]

    def _as_known(self, value: Argument) -> Any:
        """Return a known tensor in place of its name."""
        if isinstance(value, NodeResult):
            return self.known.get(value.name, value)
        return tuple(map(self._as_known, value)) if isinstance(value, tuple) else value

    def named(self, name: str) -> NamedValue:
        """Return the value of a name, which may have to be made first."""
        if name not in self.values:
            known = self.known[name]
            if known.varies:
                self.values[name] = _alone(self.evaluator.call(expanded, [self._constant(name, known), known.shape]))
            else:
                self._made(self.delayed[name])
        return self.values[name]

    def _constant(self, name: str, known: KnownTensor) -> Any:
        """Return numbers without repetitions as one constant for all readers."""
        name = self._names.setdefault(id(known.base), name)
        return self.evaluator.held(self._constants.setdefault(name, Tensor(known.base)), name)

    def argument(self, value: Argument) -> Any:
        """Return an operand: the value of a name, a number, or a list of them."""
        if isinstance(value, NodeResult):
            return self.named(value.name).read(self.evaluator.call)
        if isinstance(value, tuple):
            return tuple([self.argument(each) for each in value])
        if isinstance(value, SymbolicSize):
            raise MspcError(f"the size {value} has no value")
        return value

    def _run(self, node: ExportedNode) -> None:
        if node.target in CONTROL:
            runs = {CONDITION: self._run_branch, **dict.fromkeys(LOOPS, self._run_loop)}
            runs.get(node.target, self._inline)(node)
            return
        kind = kind_of(node.target)
        assert kind is not None, "the kinds were looked at before"
        operands = kind.bound(self._operands(node, kind))
        if kind.is_counted:
            operands.append(tuple([() if type is None else tuple(type.shape) for type in node.types]))
        self._at_node(node)  # again: operands may have been made
        values = self._kind_results(node, kind, operands)
        if kind.writes:
            self._write(node, kind, values)
        if not node.results:
            return
        if len(values) < len(node.results):
            raise MspcError(f"it gives {len(values)} values here, and {len(node.results)} were exported")
        each = zip(node.results, values[: len(node.results)], node.types, strict=True)
        typed = [self._in_exported_type(name, value, type) for name, value, type in each]
        typed = [self.evaluator.planned(name, value) for name, value in zip(node.results, typed, strict=True)]
        self.values.update(zip(node.results, self._views_of_first(node, kind, operands, typed), strict=True))

    def _kind_results(self, node: ExportedNode, kind: Kind, operands: list[Any]) -> list[Any]:
        """Return the results of a kind, in the element types of autocast."""
        call, type_of, autocast, name = self.evaluator.call, self.evaluator.type_of, self.autocast, name_of(node.target)
        given = operands if autocast is None else autocast.operands(name, operands, call, type_of)
        is_number = not kind.is_counted and _takes_dimensions(node, kind) and _is_number(given[0], type_of)
        read = self._as_vectors(given) if is_number else given
        found = self.evaluator.call(kind.target, read, not self.folds)
        values = list(found) if isinstance(found, (tuple, list)) else [found]
        if is_number:
            values = self._as_numbers(node, values, given[0])
        return values if autocast is None else autocast.results(name, operands, values, call, type_of)

    def _as_vectors(self, given: Sequence[Any]) -> list[Any]:
        """Return operands in which numbers are vectors of one element: a number has dimension 0 in PyTorch."""
        call, type_of = self.evaluator.call, self.evaluator.type_of
        return [call(reshaped, [each, (1,)]) if _is_number(each, type_of) else each for each in given]

    def _as_numbers(self, node: ExportedNode, values: Sequence[Any], first: Any) -> list[Any]:
        """Return results, and a new value of the first operand, in the shapes that were exported."""
        call, type_of = self.evaluator.call, self.evaluator.type_of
        shapes = [None if type is None else type.shape for type in node.types]
        shapes += [()] * (len(values) - len(shapes))
        return [
            value if shape is None or type_of(value) is None else call(reshaped, [value, shape])
            for value, shape in zip(values, shapes, strict=True)
        ]

    def _views_of_first(
        self, node: ExportedNode, kind: Kind, operands: list[Any], values: list[Any]
    ) -> list[NamedValue]:
        """Return the results, as views of the first argument if they share its elements."""
        first = returned(node, kind)
        base = None if first is None else self.values.get(first.name)
        if base is not None and kind.name in SPLITS:
            dim = split_dimension(kind.name, operands, len(operands[0].shape))
            return base.parts(kind.name, dim, values, [1 if SPLITS[kind.name] else v.shape[dim] for v in values])
        found = [_alone(value, self.is_differentiated) for value in values]
        if base is not None and kind.writes:
            found[0] = base
        elif base is not None and values[0] is operands[0] and shares(kind, operands, base.is_in_order):
            found[0] = base
        elif base is not None and shares(kind, operands, base.is_in_order):
            found[0] = base.view(kind, operands[1:], values[0])
        return found

    def _operands(self, node: ExportedNode, kind: Kind) -> dict[str, Any]:
        given: dict[str, Any] = dict(node.arguments)
        if not node.operands and any(each.name == "dtype" for each in kind.arguments) and given.get("dtype") is None:
            given["dtype"] = node.types[0].dtype if node.types and node.types[0] else None  # by torch.set_default_dtype
        if kind.known is None:
            return {name: value if name in kind.unread else self.argument(value) for name, value in given.items()}
        found: dict[str, Any] = {}
        for name, value in kind.known({name: self._as_known(value) for name, value in given.items()}).items():
            original = given.get(name)
            if not isinstance(value, KnownTensor):
                found[name] = self.argument(value)
            elif isinstance(original, NodeResult) and self.known.get(original.name) is not value:
                found[name] = self._constant(f"{original.name}_{name}", value)
            else:
                found[name] = self.argument(original)
        return found

    def _write(self, node: ExportedNode, kind: Kind, values: list[Any]) -> None:
        given = dict(node.arguments)
        for name, value in zip(kind.writes, values[-len(kind.writes) :], strict=True):
            target = given.get(name)
            pairs = zip(target, value, strict=True) if isinstance(target, tuple) else [(target, value)]
            for each, new in pairs:
                if new is not None and isinstance(each, NodeResult):
                    self._write_one(each, new)

    def _write_one(self, target: NodeResult, value: Any) -> None:
        named = self.named(target.name)
        type = self.evaluator.type_of(named.read(self.evaluator.call))
        if type is not None and self.evaluator.type_of(value) != type:
            value = self.evaluator.call(overwritten, [named.read(self.evaluator.call), value])
        named.write(self.evaluator.call, value, self.is_differentiated)

    def _in_exported_type(self, name: str, value: Any, type: ExportedType | None) -> Any:
        """Return a result in the exported element type, or in the half of autocast. Raise MspcError if it has another
        shape."""
        found = self.evaluator.type_of(value)
        if type is None or found is None:
            return value
        if found.shape != type.shape:
            raise MspcError(f"its result has shape {found.shape} here, and {type.shape} was exported")
        if self.autocast is not None and not self.autocast.is_exported:
            if type.dtype == FLOAT32 and found.dtype in HALVES:
                self.halved.add(name)
                return value
        return value if found.dtype == type.dtype else self.evaluator.call(ops.cast, [value, type.dtype])

    def result(self, value: Argument) -> Any:
        """Return a result of the program, in the element type that was exported."""
        found = self.argument(value)
        if isinstance(value, NodeResult) and value.name in self.halved:
            return self.evaluator.call(ops.cast, [found, FLOAT32])
        return found

    def _inline(self, node: ExportedNode) -> None:
        graph, operands, differentiated = inlined(node)
        inner = self._inner_walk(
            graph, operands, inside(node, self.autocast), differentiated and self.is_differentiated
        )
        for name, output in zip(node.results, graph.outputs, strict=True):
            value = inner.argument(output)
            if isinstance(output, NodeResult) and self.evaluator.type_of(value) is not None:
                self.values[name] = inner.named(output.name)
            else:
                self.values[name] = _alone(value)
        if not differentiated:
            self._stop(node.results, [self.named(each.name) for each in operands if isinstance(each, NodeResult)])

    def _stop(self, results: Sequence[str], given: Sequence[NamedValue]) -> None:
        """Stop gradients through the results of a graph; its operands stay, overwritten or not."""
        call = self.evaluator.call
        made: set[Storage] = set()
        for name in results:
            found = self.values[name]
            value = found.read(call)
            if self.evaluator.type_of(value) is None or any(found is each for each in given):
                continue
            if any(found.storage is each.storage for each in given):
                self.values[name] = found.view(kinds()[APART], (), call(ops.stop_gradient, [value]))
            elif found.storage not in made:
                made.add(found.storage)
                found.storage.replace(call(ops.stop_gradient, [found.storage.whole(call)]))

    def _run_branch(self, node: ExportedNode) -> None:
        """Run the graph whose condition is known to hold; if only the run knows it, both, and select the elements of
        one: neither changes anything else."""
        condition, graphs, operands = branches(node)
        answer = self.argument(condition)
        if self.evaluator.type_of(answer) is None:
            values = self._graph_results(graphs[0] if answer else graphs[1], operands, self.autocast)
        else:
            both = [self._graph_results(graph, operands, self.autocast) for graph in graphs]
            self._at_node(node)
            values = [self.evaluator.call(ops.where, [answer, *pair]) for pair in zip(*both, strict=True)]
        self.values.update(zip(node.results, map(_alone, values), strict=True))

    def _run_loop(self, node: ExportedNode) -> None:
        """Run graphs repeatedly: while a condition holds, or for every row."""

        def turned(evaluator: Evaluator, graph: ExportedGraph, given: Sequence[Any]) -> list[Any]:
            inner = _Walk(evaluator, {}, self.autocast)
            inner.values = {name: _alone(value) for (name, _), value in zip(graph.inputs, given, strict=True)}
            inner.run(graph)
            return [inner.result(output) for output in graph.outputs]

        given = [value if isinstance(value, ExportedGraph) else self.argument(value) for _, value in node.arguments]
        self._at_node(node)
        if node.target == ASSOCIATIVE:
            values = associative(given, self.evaluator.call, self.evaluator.type_of)
        else:
            values = looped(node.target, given, self.evaluator.call, turned)
        self.values.update(zip(node.results, map(_alone, values), strict=True))

    def _graph_results(
        self, graph: ExportedGraph, operands: Sequence[Argument], autocast: Autocast | None
    ) -> list[Any]:
        inner = self._inner_walk(graph, operands, autocast, self.is_differentiated)
        return [inner.argument(output) for output in graph.outputs]

    def _inner_walk(
        self, graph: ExportedGraph, operands: Sequence[Argument], autocast: Autocast | None, is_differentiated: bool
    ) -> _Walk:  # fmt: skip
        """Return the walk of a graph with these operands, at its end."""
        inner = _Walk(self.evaluator, {}, autocast, is_differentiated)
        for (name, _), operand in zip(graph.inputs, operands, strict=True):
            if isinstance(operand, NodeResult) and operand.name in self.halved:
                inner.values[name] = self._exported_half(operand.name, autocast)
                inner.halved.update([name] if inner.values[name] is self.values[operand.name] else [])
            elif isinstance(operand, NodeResult):
                inner.values[name] = self.named(operand.name)
            else:
                inner.values[name] = _alone(self.argument(operand))
        inner.run(graph)
        return inner

    def _exported_half(self, name: str, autocast: Autocast | None) -> NamedValue:
        """Return a half for an inner graph, whose block may compute in the types that were exported."""
        found = self.named(name)
        if autocast is None or not autocast.is_exported:
            return found
        return _alone(self.evaluator.call(ops.cast, [found.read(self.evaluator.call), FLOAT32]))


def _alone(value: Any, is_differentiated: bool = True) -> NamedValue:
    """Return a value that shares its elements with no other."""
    return NamedValue(Storage(value, is_differentiated), value)


_OF_DIMENSIONS = frozenset(("dim", "dims", "dim1", "start_dim"))
"""Names of arguments that are dimensions."""
_OF_NUMBERS = frozenset(("unsqueeze", "stack", "diag_embed", "_chunk_cat", "cat", "permute_copy"))
"""Kinds that take a dimension of their results, or none of a number."""


def _takes_dimensions(node: ExportedNode, kind: Kind) -> bool:
    """Return whether a kind takes dimensions of its first operand, and none of its results."""
    if kind.put is not None or not kind.arguments or name_of(node.target) in _OF_NUMBERS:
        return False
    return any(argument.name in _OF_DIMENSIONS and argument.is_read for argument in kind.arguments)


def _is_number(value: Any, type_of: TypeOf) -> bool:
    type = type_of(value)
    return type is not None and type.shape == ()


def _has_numbers(value: Any) -> bool:
    return isinstance(value, KnownTensor) or (isinstance(value, tuple) and any(map(_has_numbers, value)))
