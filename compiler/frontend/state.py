"""State of one trace: the graph under construction, parameters found so far, errors, and the stages of a plan."""

from __future__ import annotations

import ast
import functools
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from mspc.compiler.frontend.reads import Reads
from mspc.compiler.frontend.source import Sources
from mspc.compiler.frontend.values import Frame, TooManyErrors, describe
from mspc.ir.diagnostics import Location, MspcError, did_you_mean, value_repr
from mspc.ir.graph import OFFLOAD, Builder, Constant, Graph, Node, Parameter, Value
from mspc.ir.types import BOOL, FLOAT32, HALVES, INT64, DType, TensorType, TupleType, dtype_of
from mspc.mindspore_api.common import parameter as session
from mspc.mindspore_api.common.initializers import InitialValue
from mspc.mindspore_api.common.tensor import Tensor
from mspc.mindspore_api.nn.cell_state import Precision
from mspc.ops.bases import operand_dtypes, promoted, promotes_from
from mspc.ops.control.structural import Depend, TupleGetItem, is_constraint
from mspc.ops.op import REGISTRY, Op
from mspc.ops.tensor.reshape import Cast

if TYPE_CHECKING:
    from mspc.plans.files.plan_file import StagePlan

class PlannedStages:
    """Stage plan of one trace. plan: the stages of a plan, or None. scopes: of the cells that were called. cuts:
    whether a cell has cut the batch into micro-batches."""

    def __init__(self, plan: StagePlan | None) -> None:
        self.plan = plan
        self.scopes: dict[str, None] = {}
        self.cuts = False

    @property
    def tries(self) -> bool:
        """Whether a search tries the plan, which may then have more stages than micro-batches."""
        return self.plan is not None and self.plan.tries

    def chunk_of(self, scope: str) -> int | None:
        """Return the chunk of the cell with this scope; None if the plan does not assign one."""
        self.scopes[scope] = None
        return None if self.plan is None else self.plan.chunk_of(scope)

    def micro_batches(self, count: int, place: Location | None) -> int:
        """Return the number of micro-batches for a cell that asks for `count`. Raise MspcError if the plan has another
        number of them."""
        self.cuts = True
        if self.plan is None:
            return count
        if self.plan.tries:
            return self.plan.micro_batches or count
        if count != self.plan.micro_batches:
            wanted = self.plan.micro_batches
            raise MspcError(
                f"PipelineCell: the plan is for {wanted} micro-batches, and micro_size is {count}",
                place, [f"write micro_size={wanted}: the loss is the sum over micro-batches, and so another one"],
                kind=ValueError,
            )  # fmt: skip
        return count

    def check(self, graph: Graph) -> None:
        """Raise MspcError if the traced network lacks the micro-batches or cells that the plan is for."""
        plan = self.plan
        if plan is None or plan.tries or plan.count == 1:
            return
        trained = next((node for node in graph.nodes if node.phase == "update"), None)
        if trained is not None and not self.cuts:
            raise trained.error(
                f"the plan is for {plan.count} stages and {plan.micro_batches} micro-batches, and there are none",
                [f"wrap the network, before the training step: PipelineCell(network, {plan.micro_batches})"],
                RuntimeError,
            )
        from mspc.ir.text.families import each_of_cells  # imported late: only a plan needs it

        known = {name for scope in self.scopes for name in each_of_cells(scope)}
        for name in plan.cells:
            missing = next((each for each in each_of_cells(name) if each not in known), None)
            if missing is not None:
                notes = did_you_mean(missing, known)
                raise MspcError(f"the plan has a stage for {missing}, and there is no such cell", notes=notes)


def is_numeric(value: Any) -> bool:
    """Return whether a value is a number, or nested lists of numbers."""
    if isinstance(value, list | tuple):
        return bool(value) and all(map(is_numeric, value))
    return isinstance(value, bool | int | float | np.generic)


def number_dtype(value: Any, like: DType | None) -> DType:
    """Return the element type of a Python number next to tensors of type `like`: theirs, except that a float turns
    integers into Float32 and an int turns Bool into Int64. Without tensors a float is Float32, an int Int64."""
    if isinstance(value, np.generic) and like is None:
        return dtype_of(value.dtype)
    is_float = isinstance(value, float | np.floating)
    is_bool = isinstance(value, bool | np.bool_)
    if like is None:
        return FLOAT32 if is_float else BOOL if is_bool else INT64
    if is_float:
        return like if like.has_gradient else FLOAT32
    if not is_bool and like == BOOL:
        return INT64
    return like


INLINE_LIMIT = 16
"""Largest number of elements of a constant tensor that is inlined; larger ones become parameters of kind "constant"."""

MAX_DEPTH = 200
"""Greatest depth of nested calls, reached by a recursion that does not end at compile time."""

MAX_ERRORS = 20


class Tracer:
    """State of one trace, with the methods that create graph values, and the interpreter's functions of this trace."""

    call: Callable[..., Any]
    run: Callable[[Frame], Any]
    block: Callable[[Frame, list[ast.stmt]], Any]
    evaluate: Callable[[Frame, ast.expr], Any]
    evaluate_test: Callable[[Frame, ast.expr], Any]
    assign: Callable[[Frame, ast.expr, Any], None]
    either: Callable[..., Any]
    no_gradients = 0
    """Number of enclosing `_no_grad` contexts."""
    in_shard = False
    """Whether the traced code is called by a function made by `shard()`."""

    def __init__(self, name: str, sharded: bool, script_folder: str) -> None:
        self.graph = Graph(name)
        self.builder = Builder(self.graph)
        self.sources = Sources(script_folder)
        self.sharded = sharded
        self.parameters: dict[str, session.Parameter] = {}
        self.constants: dict[str, np.ndarray | InitialValue] = {}
        self.errors: list[MspcError] = []
        self.warnings: list[str] = []
        self.ignored: set[int] = set()
        self.owned: dict[int, Any] = {}
        self.cells: dict[int, Any] = {}
        """Cells whose `construct` was traced, by identity."""
        self.cell_names: dict[int, str] = {}
        self.cell_paths: dict[int, str] = {}
        self.draws: Counter[int] = Counter()
        """Calls of each random primitive, by identity; under 0 those of all random operators without seeds."""
        self.runs, self.differentiated = dict[Hashable, Any](), list[tuple[list[Node], int, Sequence[Value]]]()
        """Calls that a gradient may reuse, and the enclosing gradient requests (see `remembered_calls`)."""
        self.reuses_calls, self.has_reused_calls = True, False
        self.tensor_names: dict[int, str] = {}
        self.rounded: dict[tuple[int, DType], Tensor] = {}
        self.precision: Precision | None = None
        self.to_float: DType | None = None
        self.attributes: dict[tuple[int, str], Any] = {}
        """Values that the program set, by the identity of the object and the name of the attribute."""
        self.attributes_before: dict[tuple[int, str], Any] = {}
        """Values of the same attributes in the script's objects."""
        self.attributes_read: set[tuple[int, str]] = set()
        self.reads = Reads()
        self.guard: Value | None = None
        """A Bool scalar; updates have no effect if it is false."""
        self.guarded: set[Any] = set()
        """Conditions whose branches update parameters and are both computed."""
        self.regions = 0
        """Number of operators with regions so far, from which they are named."""
        self.weak: set[Value] = set()
        """Tensors that act as Python numbers: next to other tensors they take their element type."""
        self.folds, self.stages, self.planned = True, 1, PlannedStages(None)
        """Whether equal cells may become one graph; stages (if several, micro-batches are iterations); their plan."""
        self.parameter_readers: dict[int, Callable[[Parameter], Value]] = {}
        self.names: dict[str, Parameter] = {}
        """The graph's parameters by name, as far as they were looked up; cleared if a parameter is renamed."""
        self._referenced: list[Any] = []
        self.weights: dict[int, Parameter] = {}
        """The graph's parameters, by the identity of the script's."""
        self._tensors: dict[int, tuple[Any, Value]] = {}
        self.leaf_hooks: dict[Value, list[Any]] = {}
        """Hooks registered by the function on inputs, parameters and values that gradients are taken with respect to.
        """
        self.hooked: dict[Value, Node] = {}
        """For each value with hooks, the node that computes it without them."""

    # Place in the program -----------------------------------------------------------------------------------

    def at(self, frame: Frame, node: ast.AST) -> None:
        """Set the source of the nodes emitted next to `node`."""
        b = self.builder
        b.frames = frame.frames(node)
        b.scope = frame.scope
        b.phase = frame.phase
        self.precision, self.to_float = frame.precision, frame.to_float

    def error(
        self, message: str, notes: Iterable[str] = (), kind: type[Exception] | None = None, code: str = ""
    ) -> MspcError:
        """Return an error at the place last given to `at`."""
        return MspcError(message, notes=notes, frames=self.builder.frames, kind=kind or RuntimeError, code=code)

    def note(self, error: MspcError) -> None:
        """Record an error to be reported at the end, once. Raise TooManyErrors after `MAX_ERRORS`."""
        if any(e.message == error.message and e.location == error.location for e in self.errors):
            return
        self.errors.append(error)
        if len(self.errors) >= MAX_ERRORS:
            raise TooManyErrors

    def warn(self, message: str) -> None:
        where = self.builder.frames[0] if self.builder.frames else None
        text = f"{where}: warning: {message}" if where else f"warning: {message}"
        if text not in self.warnings:
            self.warnings.append(text)

    def keep(self, value: Any) -> None:
        """Keep an object alive as long as the trace, which refers to it by identity."""
        self._referenced.append(value)

    def own(self, value: Any) -> Any:
        """Mark a list or dict as created by the traced program, which may change it."""
        self.owned[id(value)] = value
        return value

    # Values -----------------------------------------------------------------------------------------------

    def is_tensor(self, value: Any) -> bool:
        """Return whether `value` is a tensor in the graph (constant tensors of the script included)."""
        return isinstance(value, Value | Tensor | np.ndarray)

    def value(self, value: Any, like: DType | None = None, what: str = "") -> Value:
        """Return `value` as an operand: a tensor, Parameter, array or number.

        like: the element type of the tensors next to a number. The number takes it unless it is a float next to
        integers. what: the operator and its operand, for messages. Raise MspcError if it is something else.
        """
        if isinstance(value, Value):
            return value
        if isinstance(value, session.Parameter):
            weight = self.weight(value)
            read = self.parameter_readers.get(id(value))
            found = weight if read is None else read(weight)
            if self.to_float is None or self.builder.phase == "update" or not found.tensor_type.dtype.is_float:
                return found
            return self.cast(found, self.to_float)
        if isinstance(value, Tensor | np.ndarray):
            return self.constant_tensor(value, self.tensor_names.get(id(value), ""))
        if isinstance(value, bool | int | float | np.generic):
            kind = number_dtype(value, like)
            try:
                return Constant(value, kind)
            except OverflowError:
                raise self.error(f"{value_repr(value)} is no number of {kind}", kind=ValueError) from None
        if isinstance(value, list | tuple) and is_numeric(value):
            array = np.asarray(value)
            kind = array.dtype.kind
            return self.constant_tensor(array.astype("float32" if kind == "f" else array.dtype), "")
        wrong = f"{what} must be a tensor or a number, not {describe(value)}" if what else ""
        raise self.error(wrong or f"{describe(value)} is not a tensor", kind=TypeError, code="E0312")

    def weight(self, weight: session.Parameter) -> Parameter:
        """Return the graph's parameter for one of the script. Create it on first use."""
        found = self.weights.get(id(weight))
        if found is not None:
            return found
        name = weight.name
        if name in self.parameters:
            raise self.error(
                session.repeated_name((p.holder or p.name, p) for p in (self.parameters[name], weight))
                or f"two parameters are called '{name}'",
                ['give each Parameter its own name, for example Parameter(value, "w1")'],
                ValueError,
            )
        other = self._called(name)
        if other is not None:
            other.name = self._free_name(f"{name}_{other.kind}")
            if other.kind == "constant":
                self.constants[other.name] = self.constants.pop(name)
            self.names.clear()
        made = Parameter(name, _tensor_type(weight.dtype, tuple(weight.shape)), "parameter", weight.requires_grad)
        if weight.layerwise_parallel:
            made.attrs["layerwise_parallel"] = True
        if not weight.parallel_optimizer:
            made.attrs["parallel_optimizer"] = False
        if weight.requires_grad and weight.comm_fusion != 1:
            made.attrs["comm_fusion"] = weight.comm_fusion
        made.attrs |= {} if weight.on_host is None else {OFFLOAD: weight.on_host}
        self.weights[id(weight)] = made
        self.reads.parameter(weight)
        self.parameters[name] = weight
        self.graph.parameters.append(made)
        return made

    def _called(self, name: str) -> Parameter | None:
        """Return the graph's parameter with a name, or None."""
        parameters = self.graph.parameters
        for parameter in parameters[len(self.names) :] if len(self.names) <= len(parameters) else parameters:
            self.names[parameter.name] = parameter
        return self.names.get(name)

    def constant_tensor(self, tensor: Any, name: str) -> Value:
        """Return a tensor of the script as a constant. A large one becomes a parameter called `name`."""
        found = self._tensors.get(id(tensor))
        if found is not None:
            return found[1]
        if isinstance(tensor, session.Parameter):
            return self.weight(tensor)
        type = tensor.type if isinstance(tensor, Tensor) else TensorType(dtype_of(tensor.dtype), tensor.shape)
        initial = tensor.initial if isinstance(tensor, Tensor) and type.size > INLINE_LIMIT else None
        array = np.asarray(tensor.array if isinstance(tensor, Tensor) else tensor) if initial is None else None
        made: Value
        if array is not None and array.size <= INLINE_LIMIT:
            made = Constant(array.copy(), type.dtype)
        else:
            made = Parameter(self._free_name(name or "constant"), type, "constant")
            self.constants[made.name] = initial if array is None else array
            self.graph.parameters.append(made)
        self._tensors[id(tensor)] = (tensor, made)
        return made

    def _free_name(self, wanted: str) -> str:
        taken = {p.name for p in self.graph.parameters}
        name, count = wanted, 0
        while name in taken or name in self.parameters:
            count += 1
            name = f"{wanted}_{count}"
        return name

    # Nodes ------------------------------------------------------------------------------------------------

    def emit(self, op: Op, *operands: Any, name: str = "", instance: str = "") -> Any:
        """Append `op`. Numbers become constants, and element types are promoted by the operator's rule.

        Return the node, or a tuple with one node per result.
        """
        return self.emit_on(op, operands, name, instance)[1]

    def emit_on(self, op: Op, operands: Sequence[Any], name: str = "", instance: str = "") -> tuple[Node, Any]:
        """Append `op`. Return (its node, the values that the program sees)."""
        values = self.operands(op, operands)
        if op.mutates:
            values = self.update_operands(op, values)
        node = self.builder.emit(op, *values, name=name, instance=instance)
        policy = self.precision
        widened = policy is not None and policy.widens and op.name in policy.narrow

        def seen(result: Node) -> Value:
            return self.cast(result, FLOAT32) if widened and result.tensor_type.dtype.is_float else result

        if isinstance(node.type, TupleType):
            parts = [self.builder.emit(TupleGetItem(index=i), node) for i in range(len(node.type.elements))]
            return node, tuple(map(seen, parts))
        return node, seen(node)

    def update(self, parameter: session.Parameter, value: Any) -> None:
        """Assign a new value to a Parameter, cast to its element type."""
        kind = parameter.dtype
        _, made = self.emit_on(self.op("Assign"), [parameter, self.cast(self.value(value, kind), kind)])
        made.phase = "update"

    def update_operands(self, op: Op, values: list[Value]) -> list[Value]:
        """Return the operands of an update.

        A parameter read through a plan's layout or a cast is replaced by the parameter itself. Narrower floating-point
        operands are cast to the parameter's type unless the operator takes both. Under a guard, operands are replaced
        by neutral ones if the condition does not hold.
        """
        values = [_written(v) if i in op.mutates else v for i, v in enumerate(values)]
        for i in getattr(op, "scalars", ()):
            if i < len(values) and values[i].shape == (1,):
                values[i] = self.emit(self.op("Reshape", shape=()), values[i])
        variable = values[op.mutates[0]]
        if not getattr(op, "updates_aside", False):  # its result is what counts: statistics may be of no one
            self._require_place(op, variable)
        kind = variable.tensor_type.dtype
        as_is = (*op.mutates, *op.keeps_narrow)
        for i, value in enumerate(values):
            own = value.type.dtype if isinstance(value.type, TensorType) and i not in as_is else kind
            if own.is_float and kind.is_float and own.itemsize < kind.itemsize:
                values[i] = self.cast(value, kind)
        if self.guard is None:
            return values
        if not op.neutral:
            raise self.error(f"{op.name} cannot be under a condition that depends on the contents of a tensor")
        for index, neutral in op.neutral.items():
            value = values[index]
            otherwise = variable if neutral is None else Constant(neutral, value.tensor_type.dtype)
            values[index] = self.emit(self.op("Select"), self.guard, value, otherwise)
        return values

    def _require_place(self, op: Op, variable: Value) -> None:
        """Raise MspcError if the network computes the target of an update: nothing could read the update."""
        while isinstance(variable, Node) and isinstance(variable.op, Op) and (
            variable.op.mutates or isinstance(variable.op, Depend)
        ):  # fmt: skip
            variable = variable.inputs[variable.op.mutates[0] if variable.op.mutates else 0]
        if isinstance(variable, Node):
            raise self.error(
                f"{op.name} overwrites a parameter, and its first operand is a computed value",
                ["a value has no place: give the result a name, as in x = x.add(1) instead of x.add_(1)"], TypeError,
            )  # fmt: skip

    def operands(self, op: Op, operands: Sequence[Any]) -> list[Value]:
        like = getattr(op, "number_type", None)
        for operand in operands[promotes_from(op) :]:
            value = self.value(operand) if isinstance(operand, Tensor | np.ndarray) else operand
            if isinstance(value, Value) and isinstance(value.type, TensorType) and value not in self.weak:
                like = like or value.type.dtype
        exact = getattr(op, "exact_numbers", ()) if like in HALVES else ()
        values = [
            v if isinstance(v, Value) else self.value(v, FLOAT32 if i in exact else like, f"{op.name}: {op.operand(i)}")
            for i, v in enumerate(operands)
        ]
        if self.precision is not None:
            values = self.precise(op, values, self.precision)
        if len(values) < 2 and not getattr(op, "promotes", ""):
            return values
        if not all(isinstance(v.type, TensorType) for v in values):
            return values
        own = [v.tensor_type.dtype for v in values]
        if self.weak and like is not None and getattr(op, "promotes", "") in ("common", "float"):
            weak = [v in self.weak for v in values]
            own = [number_dtype(0.0 if kind.is_float else 0, like) if is_weak else kind
                   for is_weak, kind in zip(weak, own, strict=True)]  # fmt: skip
        kinds = operand_dtypes(op, own)
        return [self.cast(v, kind) for v, kind in zip(values, kinds, strict=True)]

    def precise(self, op: Op, values: list[Value], policy: Precision) -> list[Value]:
        """Cast operands to the element type in which the operator computes under mixed precision."""
        target = policy.dtype if op.name in policy.narrow else FLOAT32 if op.name in policy.wide else None
        if target is None and not op.mutates:
            kinds = {v.type.dtype for v in values if isinstance(v.type, TensorType) and v.type.dtype.is_float}
            target = functools.reduce(promoted, sorted(kinds, key=str)) if len(kinds) > 1 else None
        if target is None:
            return values
        return [
            self.cast(v, target) if isinstance(v.type, TensorType) and v.type.dtype.is_float else v for v in values
        ]

    def cast(self, value: Value, dtype: DType) -> Value:
        if value.tensor_type.dtype == dtype:
            return value
        if isinstance(value, Constant):
            return Constant(value.value.astype(dtype.numpy), dtype)
        return self.emit(self.op("Cast", dst_type=dtype), value)

    def op(self, name: str, **attributes: Any) -> Op:
        """Return a new operator called `name`. Raise MspcError for an unknown one."""
        found = REGISTRY.get(name)
        if found is None:
            raise self.error(f"the operator {name} is not supported", ["`mspc ops` lists the operators that are"])
        return found(**attributes)


def _written(value: Value) -> Value:
    """Return the parameter that `value` reads by a plan (see `parameter_readers`) or through a cast; else `value`."""
    found = value
    while isinstance(found, Node) and (isinstance(found.op, Cast) or is_constraint(found)):
        found = found.inputs[0]
    return found if isinstance(found, Parameter) else value


@functools.lru_cache(maxsize=1024)
def _tensor_type(dtype: DType, shape: tuple[int, ...]) -> TensorType:
    """Return one shared object for equal types, which makes them fast to compare."""
    return TensorType(dtype, shape)
