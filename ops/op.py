"""`Op`, the base class of every operator: one class has its rule, types, gradient, kernel and samples.

An operator is a frozen dataclass; its fields are its attributes in Python, in the printed text and for the parser.
Subclassing registers it under its class name. An operator's class overrides only the facts in which it differs, such as
`cuda = "{0} * {0}"`. This layer never imports passes, compiler or runtime.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self, cast, dataclass_transform

from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Value
from mspc.ir.late_dataclass import dataclass, finish_subclass
from mspc.ir.layout import Axes, Layout
from mspc.ir.types import DType, TensorType, TupleType, Type
from mspc.ops.cpu.blocks import widening, widening_into
from mspc.ops.device import Array, Device, Launch
from mspc.ops.index_map import IndexMap
from mspc.ops.memory_order import MemoryOrder, Reordered
from mspc.ops.operator_arguments import split_call
from mspc.ops.registry import Operators, load_all
from mspc.sharding.rules import Rule, parse_rule

if TYPE_CHECKING:
    from mspc.ir.graph import Builder


class Sharding:
    """How an operator is sharded, and the consequences for its results.

    Class attributes: reduction: how results combine when a reduced factor is sharded. linear_in: inputs in each of
        which it is linear with the others fixed: a partial sum in one may pass through. additive: the result is a sum
        or a concatenation of the inputs: partial sums over the same axes pass. operandwise: the result combines one
        idempotent `reduction` (all, any, max, min) per operand: every operand may be sharded differently, and the
        result is partial over all their axes. follows_neighbours: it only moves data; without a strategy it is sharded
        like adjacent operators. exchanged: operands whose rows are exchanged on demand instead of gathered: a copy that
        the rule requires is not shared with another reader. bordered: see `Op.moved_bytes`. distributions: operands
        whose rows sum to 1, which get no gradient. refuses_indices: see `Op.refused_indices`. is_several: it represents
        several operators in every mode, which `decompose` returns. is_collective: ranks run it together: a
        `Collective`. constrains: the result is operand 0, and the strategy is its required sharding; removed once that
        is decided. requests: names of attached attributes
        (`add_prim_attr`) that `decompose` implements; see `Op.asks`. joins: how the results for groups of its operands
        combine to the result for all of them, for any grouping: by "sum", "prod", "max", "min", "all", "any", or
        concatenated along `axis` ("beside"); "" if they do not. For one operand the result is that operand, unless it
        is operandwise or "beside". strategy_of: operands whose dimensions the entries of an in_strategy shard, -1 for
        the result; () for all operands. sums_of_rows: for operators that `over_all_ranks` changes, results that are
        sums over a rank's own rows and are added up later.
    """

    reduction: ClassVar[str] = "sum"
    linear_in: ClassVar[tuple[int, ...]] = ()
    additive: ClassVar[bool] = False
    operandwise: ClassVar[bool] = False
    follows_neighbours: ClassVar[bool] = False
    exchanged: ClassVar[tuple[int, ...]] = ()
    bordered: ClassVar[int | None] = None
    distributions: ClassVar[tuple[int, ...]] = ()
    refuses_indices: ClassVar[bool] = False
    is_several: ClassVar[bool] = False
    is_collective: ClassVar[bool] = False
    constrains: ClassVar[bool] = False
    requests: ClassVar[tuple[str, ...]] = ()
    joins: ClassVar[str] = ""
    strategy_of: ClassVar[tuple[int, ...]] = ()
    sums_of_rows: ClassVar[tuple[int, ...]] = ()


class MemoryEffects:
    """Effects of an operator on the memory of its operands and results.

    Class attributes: has_side_effect: must run even if nothing reads the result (it updates, dumps, or other ranks wait
        for it). mutates: indices of the inputs (parameters) that the operator overwrites. updates_aside: it runs for
        its result, in the forward graph, and also overwrites them, such as running statistics. keeps_narrow: indices of
        inputs that may be narrower than the overwritten operand; all others are widened. copied: indices of overwritten
        inputs whose new value `launch` also writes elsewhere: its last argument, {index: Copy}. neutral: for an
        operator that updates parameters, values of operands with which it changes nothing, by the operand's index; None
        is the parameter's own value. Empty if there are none. in_place: `kernel_into` may write to an operand of the
        result's type. in_place_of: for an `in_place` operator, the operands to which it may write, if not all. is_view:
        the result aliases operand 0, its elements in the same order, at most reshaped: nothing has to run. A tuple
        aliases its elements. reshapes: a view whose result is any reshape of operand 0. may_alias: `compute` on NumPy
        may return an operand or a view of one, as slices do; implied by `is_view`. All other results, except those of
        updates, are arrays that overlap no operand. moves: every element of a result is an element of an operand, for
        any element type: a cast may be moved before or after it. selects: it reads only those elements of operand 0
        that are in its result, as a gather does.
    """

    has_side_effect: ClassVar[bool] = False
    mutates: ClassVar[tuple[int, ...]] = ()
    updates_aside: ClassVar[bool] = False
    keeps_narrow: ClassVar[tuple[int, ...]] = ()
    copied: ClassVar[tuple[int, ...]] = ()
    neutral: ClassVar[Mapping[int, float | None]] = {}
    in_place: ClassVar[bool] = False
    in_place_of: ClassVar[tuple[int, ...]] = ()
    is_view: ClassVar[bool] = False
    reshapes: ClassVar[bool] = False
    may_alias: ClassVar[bool] = False
    moves: ClassVar[bool] = False
    selects: ClassVar[bool] = False


class KernelTraits:
    """How an operator is computed and tested.

    Class attributes: integers: operands that must be integers; `float_only` and `one_type` apply to the others.
        float_only: operands must be floating point, or complex for an operator that supports it. one_type: operands
        must have one element type. result_dtypes: element types of the results, None for `result_dtype`; () if all have
        that. fills: `kernel` returns a function that also takes `out`, which is `kernel_into`. any_types: `kernel_into`
        takes operands and results of any, possibly different, element types. widens: kernels get Float16 and BFloat16
        converted to Float32; False if data are moved, or it handles them itself. takes_complex: it supports complex
        numbers. takes_bool: it supports Bool. seeds: names of the two fields that seed a random operator; both 0 if not
        chosen. runs_on_host: its kernel only takes NumPy arrays: it prints, writes a file, or is the script's own. On a
        GPU the step waits for it. waits: its kernel waits for elements of its arrays, so that it cannot be part of a
        CUDA graph. host_reads: operands that the host has to read to launch it on a GPU; see `Device.host_query`. cuda:
        C++ expression of one element of the result, for elementwise operators: `{0}`, `{1}` are the operands' elements,
        widened to `computing_type`; `T` is the computing type of operand 0, `R` that of the result; `{i}` is the index
        of the element, `{s}` that of the step. "" if there is none. row_lines: for operators along rows, the equivalent
        lines of a fused operator (`ops/fused/body.py`), the last of which is the result: `x0` is operand 0, and `AXES`
        is replaced by the attributes of reductions. See `Op.row_axes`. takes_all_bits: rounding an operand may change
        the result completely, as with equality. wants_channels_last: it is faster on images with channels last; passes
        convert them (`Op.reordered`). work: key of the rates of its `operations` in machines. traffic: key of the rates
        of its memory traffic, if machines have separate ones. samples: inputs for the generated tests.
    """

    integers: ClassVar[tuple[int, ...]] = ()
    float_only: ClassVar[bool] = False
    one_type: ClassVar[bool] = False
    result_dtypes: ClassVar[tuple[DType | None, ...]] = ()
    fills: ClassVar[bool] = False
    any_types: ClassVar[bool] = False
    widens: ClassVar[bool] = True
    takes_complex: ClassVar[bool] = False
    takes_bool: ClassVar[bool] = True
    seeds: ClassVar[tuple[str, ...]] = ()
    runs_on_host: ClassVar[bool] = False
    waits: ClassVar[bool] = False
    host_reads: ClassVar[tuple[int, ...]] = ()
    cuda: ClassVar[str] = ""
    row_lines: ClassVar[tuple[str, ...]] = ()
    takes_all_bits: ClassVar[bool] = False
    wants_channels_last: ClassVar[bool] = False
    work: ClassVar[str] = "products"
    traffic: ClassVar[str] = ""
    samples: ClassVar[Sequence[Any]] = ()


class Script:
    """How scripts call an operator, and its text form.

    Class attributes: arguments: names of the constructor's parameters for users, in order, if they differ from the
        fields: "name", or "name=field" for a field of another name. The other fields are keyword arguments. settings:
        fields that a call takes in addition to tensors, in order, and the readers of their values. optional_settings:
        number of the last of them that are optional. settings_at: number of tensors before them, None for all.
        operand_names: of a `call` with more than inputs. sequences: fields that users may pass only as a list, or only
        as a tuple, with that type; checked at the call. checks_where_called: fields passed by a user are checked by
        `infer`, not by the constructor. omitted: names of fields that the text omits if they have their default.
    """

    arguments: ClassVar[tuple[str, ...]] = ()
    settings: ClassVar[tuple[tuple[str, Callable[[str, str, Any], Any]], ...]] = ()
    optional_settings: ClassVar[int] = 0
    settings_at: ClassVar[int | None] = None
    operand_names: ClassVar[tuple[str, ...]] = ()
    sequences: ClassVar[Mapping[str, type]] = {}
    checks_where_called: ClassVar[bool] = False
    omitted: ClassVar[tuple[str, ...]] = ()


@dataclass(frozen=True, slots=True)
class UnevenWork:
    """Work of ranks inside an operator in addition to even shares. busiest: the work of the busiest rank divided by the
    mean over all ranks. operations: floating-point operations of matmuls that it does more than the mean. mesh, axes:
    `moved_bytes` are exchanged along these axes of it. rounds: exchanges that follow one another."""

    busiest: float = 1.0
    operations: float = 0.0
    mesh: tuple[int, ...] = ()
    axes: Axes = ()
    rounds: int = 0


EVEN = UnevenWork()


class OtherForms:
    """Other forms of an operator, which compute the same with another rule, so that a search has more choices. The work
    inside a form may differ between ranks."""

    def other_form(self, types: Sequence[TensorType], ranks: int) -> Self | None:
        """Return the form with another rule, for operands of these global types, by which `ranks` ranks may shard it,
        too; None if there is none."""
        return None

    def in_form(self, layouts: Sequence[Layout]) -> Self:
        """Return the form whose rule permits operands in these layouts."""
        return self

    def like_forward(self, forward: object) -> Self:
        """Return a gradient's operator in the form of the one that it differentiates."""
        return self

    def uneven(self, types: Sequence[TensorType], layouts: Sequence[Layout]) -> UnevenWork:
        """Return the work of ranks in addition to even shares, for operands of these types (global) and layouts."""
        return EVEN

REGISTRY: Operators[type[Op]] = Operators()
"""Every operator class by the name that the text form uses; filled by subclassing, never by hand."""


Gradients = Sequence[Value | None]
"""Gradients of an operator's operands, None for operands without one."""


class ArrayBackend(Protocol):
    """For kernels: `xp` is NumPy or CuPy, `comm` this rank's communicator, `step` counts the runs; see also
    `mspc.ops.random.words.number_of_run`."""

    xp: Any
    comm: Any
    step: int


@dataclass(frozen=True, slots=True)
class RankPlacement:
    """The rank on which an operator runs, and the global types and layouts of its values, for `localize`."""

    rank: int
    in_types: tuple[TensorType, ...]
    in_layouts: tuple[Layout, ...]
    out_types: tuple[TensorType, ...]
    out_layouts: tuple[Layout, ...]


@dataclass(frozen=True, slots=True)
class RequestedSharding:
    """Sharding that a user requests of one operator, for `decompose`. in_strategy, out_strategy: as passed to
    `shard()`, one tuple or NamedLayout per tensor; None if not requested. attrs: attributes attached by
    `add_prim_attr`. ranks: number of ranks."""

    in_strategy: tuple[Any, ...] | None
    out_strategy: tuple[Any, ...] | None
    attrs: Mapping[str, Any]
    ranks: int = 1


@dataclass(frozen=True)
class Sample:
    """Inputs for the generated tests of an operator.

    shapes: of the tensor inputs. fields: attributes of the operator. dtypes: of the inputs, default all Float64.
    low, high: range of the random values. gradient: whether the derivative is checked against finite differences here.
    """

    shapes: tuple[tuple[int, ...], ...]
    fields: Mapping[str, Any]
    dtypes: tuple[str, ...] = ()
    low: float = -2.0
    high: float = 2.0
    gradient: bool = True


def sample(*shapes: tuple[int, ...], dtypes: Sequence[str] = (), low: float = -2.0, high: float = 2.0,
           gradient: bool = True, **attributes: Any) -> Sample:  # fmt: skip
    """Return a Sample in one line: `sample((4, 8), (8, 16), transpose_b=False)`."""
    return Sample(tuple(shapes), attributes, tuple(dtypes), low, high, gradient)


class NotDifferentiable:
    """Replacement of `bprop` with the reason why there is no gradient."""

    def __init__(self, reason: str) -> None:
        self.reason = reason


@dataclass_transform(frozen_default=True)
@dataclass(frozen=True)
class Op(Sharding, MemoryEffects, KernelTraits, Script, OtherForms):
    """An operator with its attributes.

    The class attributes that a subclass declares are documented in the groups that it inherits.
    """

    def __init_subclass__(cls, abstract: bool = False, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for method, wrapped in (("kernel", widening), ("kernel_into", widening_into)):
            if method in cls.__dict__:
                setattr(cls, method, wrapped(cls.__dict__[method]))
        finish_subclass(cls)
        if not abstract:
            REGISTRY.enter(cls.__name__, cls)

    @property
    def name(self) -> str:
        return type(self).__name__

    def attributes(self) -> dict[str, Any]:
        """Return field names and values in the order of their declaration, as the text form prints them."""
        found = {name: getattr(self, name) for name in _field_names(type(self))}
        for name in self.omitted:
            if name in found and found[name] == getattr(type(self), name):
                del found[name]
        return found

    # To be declared by a subclass -------------------------------------------------------------------------------

    def call(self, *args: Any) -> tuple[Op, tuple[Any, ...]]:
        """Return (operator with its attributes complete, tensor operands) of a user's call.

        MindSpore passes some attributes when the operator is called, as in `reduce(x, axis)`: these are `settings`.
        """
        if not self.settings:
            return self, args
        readers, inputs = dict(self.settings), _operand_names(type(self)) or ()
        count = len(inputs)
        if len(args) == count and self.optional_settings == len(readers):
            return self, args
        at = count if self.settings_at is None else self.settings_at
        end = at + len(readers)
        if at < count and len(args) != count + len(readers):
            takes = ", ".join((*inputs[:at], *readers, *inputs[at:]))
            text = f"{self.name} takes {count + len(readers)} arguments ({takes}), not {len(args)}"
            raise MspcError(text, kind=TypeError)
        ordered = (*args[:at], *args[end:], *args[at:end])
        tensors, found = split_call(self.name, ordered, count, tuple(readers), self.optional_settings)
        return replace(self, **{key: readers[key](self.name, key, value) for key, value in found.items()}), tensors

    def rule(self, *types: TensorType) -> str | Rule:
        """Return the factor rule for inputs of these types."""
        raise NotImplementedError(f"{self.name} has no sharding rule")

    def result_dtype(self, *types: TensorType) -> DType:
        """Return the element type of the result; the first input's unless overridden."""
        return types[0].dtype

    def infer(self, *types: TensorType) -> Type:
        """Return the type of the result, from the rule unless overridden. Raise MspcError if the types do not fit; the
        caller adds the user's line."""
        shapes = self.parsed_rule(*types).output_shapes()
        self.check(*types)
        dtypes = self.result_dtypes or (None,) * len(shapes)
        made = [TensorType(d or self.result_dtype(*types), shape) for d, shape in zip(dtypes, shapes, strict=True)]
        return made[0] if len(made) == 1 else TupleType(tuple(made))

    def check(self, *types: TensorType) -> None:
        """Raise MspcError if the operands' element types do not fit."""
        others = [operand for i, operand in enumerate(types) if i not in self.integers]
        for index in self.integers:
            require_integer(self.name, index, types[index])
        if self.float_only:
            require_float(self.name, *others)
        if self.one_type:
            require_same(self.name, *others)

    bprop: ClassVar[Any] = NotDifferentiable("the operator states no gradient")
    """`bprop(self, b, *inputs, out, dout) -> sequence`: emits nodes through the builder `b` and returns the gradient
    of every input, None if there is none. `dout` has the type of `out`; for a tuple it is a list of values, with
    None for results that nobody differentiates."""

    def uniform(self) -> int | float | None:
        """Return the number that all elements of the result are, for any operands; None if they differ."""
        return None

    def compute(self, xp: Any, *inputs: Any) -> Any:
        """Return the result of arrays of the module `xp`, NumPy or CuPy: an array, or a tuple of arrays. Never write to
        inputs, except to those named in `mutates`. An operator has this, `run` or `kernel`."""
        raise NotImplementedError(f"{self.name} has no kernel")

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        """Do `compute`; override it for an operator that asks for the rank or the step."""
        if type(self).compute is Op.compute and type(self).kernel is not Op.kernel:
            return self.kernel(be)(*inputs)
        return self.compute(be.xp, *inputs)

    @widening
    def kernel(self, be: ArrayBackend) -> Callable[..., Any]:
        """Return the kernel bound to a backend; override it to return a bare array function without a call in
        between."""
        return functools.partial(self.compute, be.xp) if type(self).run is Op.run else functools.partial(self.run, be)

    def kernel_into(self, be: ArrayBackend) -> Callable[..., Any] | None:
        """Return a kernel `function(*inputs, out=out)` that writes its result to `out` and returns it, or None. `out`
        is a contiguous array, or a tuple of arrays for a tuple result. It does not overlap an input, but may be an
        input itself if the operator works `in_place`."""
        return self.kernel(be) if self.fills else None

    @property
    def draws(self) -> bool:
        """Whether the result depends on the number of the step."""
        return bool(self.seeds)

    def launch(self, device: Device, out: Any, *inputs: Array) -> Launch | None:
        """Return the launch of the operator on GPU arrays with fixed addresses; None to run it through `compute` with
        CuPy. `out` is an array or a tuple of arrays. An operand in `mutates` is written in place. Only with `in_place`
        may an operand be passed as `out`."""
        return None

    def check_operands(self, *operands: Array) -> None:
        """Raise MspcError if the operands' values, NumPy arrays, are not valid for the operator. `compute` calls it on
        CPUs, and so does compiled code that replaces the operator."""

    def as_broadcast(self, *types: TensorType) -> tuple[Op, tuple[tuple[int, ...], ...]] | None:
        """Return an elementwise operator that does the same, and the shapes of its operands, aligned by their last
        dimensions; None if it has no such form. With it an operator may be a line of a fused one."""
        return None

    def index_map(self, *types: TensorType) -> IndexMap | None:
        """Return the source of each element of the result in operands of these types, for an operator with one result
        that moves elements and computes none; None if it cannot be described. With it an operator may be a line of a
        fused one."""
        return None

    def single_result(self, number: int, *types: TensorType) -> Op | None:
        """Return an operator that makes only result `number` from the same operands, for an operator with several
        results, or None."""
        return None

    def summed_over(self, axes: Sequence[int], *types: TensorType) -> Op | None:
        """Return an operator that makes the result summed over these non-negative axes, with size 1 kept, at no more
        cost, or None."""
        return None

    def row_axes(self, *types: TensorType) -> tuple[int, ...]:
        """Return the axes of operand 0, counted from 0, that make up its rows, for an operator with `row_lines` or
        `as_rows`."""
        return ()

    def as_rows(self, b: Builder, *inputs: Value) -> Sequence[Value]:
        """Emit reductions of rows and elementwise operators that do the same, and return their results. Used if an
        operator with several results is to be joined with its neighbours."""
        raise NotImplementedError(f"{self.name} is not several operators along rows")

    def as_reductions(self, b: Builder, *inputs: Value) -> Sequence[Value]:
        """Emit reductions and elementwise operators that do the same, and return their results, for operands whose rows
        are not contiguous in memory. An operator with `as_rows` has this, too."""
        return self.as_rows(b, *inputs)

    def reordered(self, types: Sequence[TensorType], orders: Sequence[MemoryOrder]) -> Reordered | None:
        """Return how the operator works on operands of these types stored in these orders, at least one of which
        differs from its shape's order (but see `wants_channels_last`); None if it needs the orders of the shapes."""
        if not self.reshapes or len(types) != 1:
            return None
        found = orders[0].view(cast(TensorType, self.infer(*types)).shape)
        return None if found is None else Reordered(None, (orders[0],), (found,))

    def made_in(self, order: MemoryOrder, types: Sequence[TensorType]) -> Reordered | None:
        """Return the operator whose result is stored in this order, if making it from operands of these types costs no
        more than the order of its shape; None: a result in another order has to be moved."""
        return None

    def as_lines(self, b: Builder, *inputs: Value) -> Sequence[Value] | None:
        """Emit equivalent elementwise operators, row operators, and reductions that are not read, and return the
        results: on a CPU with a compiler they become one loop. None to use its own kernel, or `as_rows`."""
        return None

    def localize(self, placement: RankPlacement) -> Op:
        """Return the operator as one rank runs it on its slices; override it if an attribute holds global sizes."""
        return self

    def decompose(self, b: Builder, asked: RequestedSharding, inputs: Sequence[Value]) -> Sequence[Value] | None:
        """Emit the operators that carry out a strategy which this one cannot have as one operator, and return its
        results, of the types that `infer` gives; None: the operator takes the strategy as it is.

        Called for all ranks at once, before gradients are taken: the backward operators are then those of the parts,
        each sharded by its own rule, while the gradient of this operator would need dimensions that the strategy shards
        to be gathered. Emitted nodes may get strategies of their own (`Node.in_strategy`); the results keep types and
        order. Raise MspcError if the strategy does not fit the operator; the caller adds the user's line."""
        return None

    def exchanged_bytes(self, held: float, made: float) -> float:
        """Return the bytes of rows of an operand in `exchanged` that reach a rank. held: bytes of its slice of the
        operand in its layout. made: bytes of its slice of the result."""
        return math.inf

    def asks(self, asked: RequestedSharding, ranks: int) -> bool:
        """Whether `decompose` is called on this number of ranks: if `requests` names attributes, only if one is
        attached."""
        return not self.requests or any(asked.attrs.get(name) not in (None, False) for name in self.requests)

    def expand(self, b: Builder, placement: RankPlacement, inputs: Sequence[Value]) -> Value | None:
        """Emit the several operators that this one is on a rank and return their result; None: `localize` says it.

        `inputs` are the rank's slices, already with their local types.
        """
        return None

    def strategy_mistake(self, asked: RequestedSharding) -> str:
        """Return why a user cannot ask this of the operator, for any operands; "" if there is no objection."""
        return ""

    def sharding_mistake(self, types: Sequence[TensorType], operand: int, dimension: int, shards: int) -> str:
        """Return why a dimension cannot have `shards` shards, if the rule's factors do not tell a user enough."""
        return ""

    def strategy_dims(self, rule: Rule) -> tuple[tuple[tuple[int, ...], ...], ...]:
        """Return the factors that the entries of an in_strategy shard: the inputs' dimensions, unless MindSpore's
        strategy of this operator is for another tensor (OneHot's first entry shards the output)."""
        return tuple(rule.outputs[0] if i < 0 else rule.inputs[i] for i in self.strategy_of) or rule.inputs

    def layout_dims(self, rule: Rule) -> tuple[tuple[tuple[int, ...], ...], ...]:
        """Return the same for an in_strategy made of Layouts."""
        return self.strategy_dims(rule)

    def aliased_operands(self, count: int) -> Sequence[int]:
        """Return those of `count` operands that a result may alias: overwritten operands, and those of which it may
        return a view."""
        if self.mutates:
            return () if self.updates_aside else self.mutates
        return range(count) if self.is_view or self.may_alias else ()

    def index_limits(self, *types: TensorType) -> Mapping[int, int]:
        """Return the exclusive upper bounds of operands with indices, by operand number."""
        return {}

    def refused_indices(self, *types: TensorType) -> Mapping[int, int]:
        """Return those of `index_limits` for which an index outside of [-limit, limit) is an error, with the limits of
        all ranks."""
        total = getattr(self, "total", 0)
        return {i: total or limit for i, limit in self.index_limits(*types).items()} if self.refuses_indices else {}

    def operations(self, types: Sequence[TensorType]) -> float:
        """Return the floating-point operations of its matmuls for operands of these types; 0 for a memory-bound
        operator."""
        return 0.0

    def elements_between(self, types: Sequence[TensorType]) -> int:
        """Return the elements of the largest intermediate tensor that equivalent operators would need and that it
        avoids."""
        return 0

    def touched_bytes(self, types: Sequence[TensorType], results: Sequence[TensorType]) -> int | None:
        """Return the bytes that it reads and writes if it accesses only parts of its operands, such as indexed rows;
        None if `moves` and `selects` tell."""
        return None

    def moved_bytes(self, types: Sequence[TensorType], layouts: Sequence[Layout]) -> float:
        """Return the bytes that a rank sends inside of the operator for operands of these types (global) and layouts:
        those of `expand` in addition to a change of layout. `bordered` operators that send the same of one value send
        it once."""
        return 0.0

    def over_all_ranks(self, ranks: tuple[int, ...]) -> Op:
        """Return the operator for a batch that consists of the rows of all `ranks`, although the graph is each rank's
        own: for statements about a global batch."""
        return self

    # Derived ----------------------------------------------------------------------------------------------------

    def parsed_rule(self, *types: TensorType) -> Rule:
        """Return `rule` with its factors' sizes. Raise MspcError if the operands do not fit."""
        names = _operand_names(type(self))
        if names is not None and len(types) != len(names):
            counted = f"{len(names)} tensor{'s' * (len(names) != 1)}"
            raise MspcError(f"{self.name} takes {counted}, not {len(types)}", kind=TypeError, code="E0301")
        for index, operand in enumerate(cast(tuple[Type, ...], types)):  # a tuple here is the user's mistake
            if not isinstance(operand, TensorType):
                raise MspcError(f"{self.name}: input {index} is {operand}, not a tensor", kind=TypeError, code="E0312")
        rule = self.rule(*types)
        return rule if isinstance(rule, Rule) else parse_rule(rule, [t.shape for t in types], self.name, self.reduction)

    def operand(self, index: int) -> str:
        """Return the name of an operand for messages, as in `rule`."""
        names = _operand_names(type(self))
        return names[index] if names is not None and index < len(names) else f"input {index}"

    def gradient(self, b: Builder, inputs: Sequence[Value], out: Value, dout: Any) -> Sequence[Value | None]:
        """Call `bprop`. Raise MspcError for an operator that cannot be differentiated."""
        if isinstance(self.bprop, NotDifferentiable):
            raise MspcError(f"{self.name} has no gradient: {self.bprop.reason}", code="E0310")
        grads = self.bprop(b, *inputs, out, dout)
        assert len(grads) == len(inputs), f"{self.name}.bprop returned {len(grads)} of {len(inputs)} gradients"
        return grads


@functools.cache
def _field_names(cls: type[Op]) -> tuple[str, ...]:
    return tuple(f.name for f in fields(cls))  # type: ignore[arg-type]  # __init_subclass__ makes it a dataclass


@functools.cache
def _operand_names(cls: type[Op]) -> tuple[str, ...] | None:
    """Return the names of the operands of `rule`, None for any number."""
    parameters = list(inspect.signature(cls.rule).parameters.values())[1:]
    varies = any(p.kind is inspect.Parameter.VAR_POSITIONAL for p in parameters)
    return None if varies else tuple(p.name for p in parameters)


def require_float(name: str, *types: TensorType) -> None:
    """Raise MspcError unless all operands are floating-point tensors; complex ones only for operators that support
    them."""
    for index, operand in enumerate(types):
        if not (operand.dtype.is_float or operand.dtype.is_complex):
            raise MspcError(
                f"{name}: input {index} is {operand.dtype}, not a floating-point tensor",
                notes=["cast it first, for example with x.astype(mindspore.float32)"],
                kind=TypeError, code="E0304",
            )


def require_same(name: str, *types: TensorType) -> None:
    """Raise MspcError if operands differ in element type."""
    for index, operand in enumerate(types[1:], 1):
        if operand.dtype != types[0].dtype:
            raise MspcError(
                f"{name}: input 0 is {types[0].dtype} and input {index} is {operand.dtype}",
                notes=["cast one of them, for example with x.astype(mindspore.float32)"],
                kind=TypeError, code="E0304",
            )


def require_integer(name: str, index: int, operand: TensorType) -> None:
    """Raise MspcError unless an operand is an integer tensor."""
    if not operand.dtype.is_integer:
        raise MspcError(
            f"{name}: input {index} is {operand.dtype}, not an integer tensor", kind=TypeError, code="E0304"
        )


def has_kernel(op: Op | type[Op]) -> bool:
    """Whether an operator computes something itself; others are replaced before they run."""
    kind = op if isinstance(op, type) else type(op)
    return any(getattr(kind, hook) is not getattr(Op, hook) for hook in ("compute", "run", "kernel"))


def has_gpu_kernel(op: Op | type[Op]) -> bool:
    """Whether an operator has a GPU launch or nothing to do; else it runs through CuPy. For some attributes, shapes and
    element types there may be no launch nevertheless."""
    kind = op if isinstance(op, type) else type(op)
    return bool(op.cuda) or kind.launch is not Op.launch or op.is_view


def load_operators() -> Operators[type[Op]]:
    """Import every operator module and return the registry."""
    load_all()
    return REGISTRY
