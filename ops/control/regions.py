"""Operators that run graphs: a choice of two, and the call of one. `loops.py` has those that run one again and again.

A region is a graph of its own: what it reads from outside is handed in with the operands, so that its parameters stand
for operands of the node, and its results for those of the node, which always is a tuple. What a region overwrites among
its parameters (`mutates`) is the memory of the operand, as with any operator that updates a parameter.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from mspc.ir.builder import Builder
from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Graph, Node, Value
from mspc.ir.types import BOOL, TensorType, TupleType, Type
from mspc.ops.op import ArrayBackend, NotDifferentiable, Op


class RegionOp(Op, abstract=True):
    """An operator that runs the regions of its node.

    mutates: operands that a region overwrites. has_side_effect: a region has to run even if nobody reads a result.
    is_collective: ranks run it together, since a region sends.
    """

    mutates: tuple[int, ...] = ()  # type: ignore[misc]  # a field here, which other operators have as a class
    has_side_effect: bool = False  # type: ignore[misc]  # as above
    is_collective: bool = False  # type: ignore[misc]  # as above
    region_names: ClassVar[tuple[str, ...]] = ()
    """What the regions are called in messages, in their order."""
    takes_complex = True
    widens = False
    may_alias = True
    bprop = NotDifferentiable("the pass grad differentiates its regions")
    omitted = (
        "mutates", "has_side_effect", "is_collective", "scanned", "stacked", "reverse", "counted", "micro_batches",
    )  # fmt: skip

    def infer(self, *types: Type) -> Type:
        raise MspcError(f"{self.name}: its type follows from its regions")

    def results_of(self, regions: Sequence[Graph], types: Sequence[Type]) -> TupleType:
        """The type of the node, from its regions and the types of its operands.

        Raises:
            MspcError: operands and parameters do not fit, or results that must be alike are not.
        """
        raise NotImplementedError(self.name)

    def inside(self, number: int, operand: int) -> int | None:
        """The number of the parameter of region `number` that stands for an operand; None where none does."""
        raise NotImplementedError(self.name)

    def places(self, number: int, types: Sequence[Type]) -> list[range]:
        """For operands of these types the numbers of the parameters of region `number` that stand for each."""
        inside = [self.inside(number, operand) for operand in range(len(types))]
        return [range(0) if place is None else range(place, place + 1) for place in inside]

    @property
    def passed_operands(self) -> range:
        """Operands that may be results, whatever the regions do."""
        return range(0)

    def aliased_operands(self, count: int) -> Sequence[int]:
        """See `Op`; `mspc.analysis.aliasing` knows it more closely, from the regions."""
        return range(count)

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        raise NotImplementedError(f"{self.name} runs with the regions of its node")


class If(RegionOp):
    """The results of the first region where operand 0, a Bool of shape (), holds, else those of the second.

    All other operands are the parameters of both.
    """

    region_names = ("then", "else")

    def results_of(self, regions: Sequence[Graph], types: Sequence[Type]) -> TupleType:
        check_count(self, regions)
        check_condition(self, types[0] if types else None)
        for name, region in zip(self.region_names, regions, strict=True):
            check_parameters(self, name, region, types[1:])
        then, otherwise = map(result_types, regions)
        if then != otherwise:
            check_alike(self, "branch", then, otherwise)
        return TupleType(then)

    def inside(self, number: int, operand: int) -> int | None:
        return operand - 1 if operand else None


class Call(RegionOp):
    """The results of the region, whose parameters the operands are, of a tuple its elements one by one.

    What calls of a stage's program hand to each other is one operand so, however many tensors it has; elsewhere no
    operand is a tuple.
    """

    region_names = ("graph",)

    def results_of(self, regions: Sequence[Graph], types: Sequence[Type]) -> TupleType:
        check_count(self, regions)
        check_parameters(self, "graph", regions[0], [own for type in types for own in _spread(type)])
        return TupleType(result_types(regions[0]))

    def inside(self, number: int, operand: int) -> int | None:
        return operand  # without tuples

    def places(self, number: int, types: Sequence[Type]) -> list[range]:
        found: list[range] = []
        begin = 0
        for type in types:
            end = begin + len(_spread(type))
            found.append(range(begin, end))
            begin = end
        return found


def _spread(type: Type) -> tuple[Type, ...]:
    """The types of the parameters that stand for an operand of a call."""
    return type.elements if isinstance(type, TupleType) else (type,)


def spread(node: Node, operands: Sequence[Any]) -> list[Any]:
    """Of what a call is given for each of its operands what its region is given for each of its parameters."""
    found: list[Any] = []
    for value, given in zip(node.inputs, operands, strict=True):
        if isinstance(value.type, TupleType):
            found += given
        else:
            found.append(given)
    return found


def emit_regions(b: Builder, op: RegionOp, inputs: Sequence[Value], regions: Sequence[Graph], name: str = "") -> Node:
    """Append a node that runs regions; what they overwrite and whether they must run is added to the operator.

    Raises:
        MspcError: the regions do not fit the operands, at the builder's source line.
    """
    op = with_effects(op, inputs, regions)
    try:
        type = op.results_of(regions, [value.type for value in inputs])
    except MspcError as error:
        raise MspcError(error.message, notes=error.notes, frames=b.frames, kind=error.kind or TypeError) from None
    node = Node(op, inputs, type, name, "", b.scope, b.frames, b.phase)  # type: ignore[arg-type]  # fields, see RegionOp
    node.forward = b.forward
    node.regions = tuple(regions)
    b.nodes.append(node)
    return node


Effects = tuple[frozenset[int], bool, bool]
"""The parameters that a region overwrites, whether it does anything beside its results, whether ranks meet in it."""


_NONE: Effects = (frozenset(), False, False)


def effects_of(region: Graph) -> Effects:
    """What a region does beside its results."""
    return (
        frozenset(overwritten_parameters(region)),
        any(node.op.has_side_effect for node in region.nodes),
        any(node.op.is_collective for node in region.nodes),
    )


def with_effects(
    op: RegionOp, inputs: Sequence[Value], regions: Sequence[Graph], known: dict[Graph, Effects] | None = None
) -> RegionOp:  # fmt: skip
    """The operator with what these regions do beside their results. known: of regions that several operators run."""
    from dataclasses import replace

    written, effect, sends = set[int](), False, False
    for number, region in enumerate(regions):
        found = known.get(region) if known is not None else None
        if found is None:
            found = effects_of(region)
            if known is not None:
                known[region] = found
        if found == _NONE:
            continue
        overwritten = found[0]
        if overwritten:
            places = op.places(number, [value.type for value in inputs])
            written |= {i for i, inside in enumerate(places) if not overwritten.isdisjoint(inside)}
        effect, sends = effect or found[1], sends or found[2]
    effect, mutates = effect or bool(written), tuple(sorted(written))
    if (op.mutates, op.has_side_effect, op.is_collective) == (mutates, effect, sends):
        return op
    effects: dict[str, Any] = {"mutates": mutates, "has_side_effect": effect, "is_collective": sends}
    return replace(op, **effects)


def type_by_regions(node: Node) -> TupleType:
    """The type of a node that runs graphs, as its operands and graphs make it.

    Raises:
        MspcError: they do not fit, or the node says less of what its graphs do beside their results than they do: it
            would be left out, or run in another order.
    """
    if not isinstance(node.op, RegionOp):
        names = ", ".join(f"@{region.name}" for region in node.regions)
        raise MspcError(f"{node.op.name}: it runs no graphs, and is given {names}")
    found = node.op.results_of(node.regions, [value.type for value in node.inputs])
    told = with_effects(node.op, node.inputs, node.regions)
    if any(isinstance(node.inputs[i].type, TupleType) for i in told.mutates):
        raise MspcError(f"{node.op.name}: its graphs overwrite operands {told.mutates}, of which one is a tuple")
    if not {*told.mutates} <= {*node.op.mutates}:
        wanted = f"its graphs overwrite operands {told.mutates}"
        raise MspcError(f"{node.op.name}: mutates is {node.op.mutates}, but {wanted}")
    if told.has_side_effect and not node.op.has_side_effect:
        raise MspcError(f"{node.op.name}: has_side_effect is false, but its graphs have effects")
    return found


def overwritten_parameters(region: Graph) -> Iterator[int]:
    """The numbers of the parameters that nodes of the region overwrite."""
    numbers: dict[Value, int] = {parameter: i for i, parameter in enumerate(region.parameters)}
    for node in region.nodes:
        for index in node.op.mutates:
            value = node.inputs[index]
            if value in numbers:
                yield numbers[value]


def result_types(region: Graph) -> tuple[TensorType, ...]:
    """The types of what a region returns. Raises MspcError where one is a tuple."""
    found = [value.type for value in region.results]
    tensors = tuple(type for type in found if isinstance(type, TensorType))
    if len(tensors) != len(found):
        raise MspcError(f"@{region.name} returns a tuple among its results; it returns tensors one by one")
    return tensors


def check_count(op: RegionOp, regions: Sequence[Graph]) -> None:
    """Raises MspcError where these are not the operator's regions."""
    if len(regions) != len(op.region_names):
        wanted = " and ".join(op.region_names)
        raise MspcError(f"{op.name}: it has {len(regions)} regions; it takes {len(op.region_names)}: {wanted}")


def check_condition(op: RegionOp, type: Type | None) -> None:
    """Raises MspcError where a condition is no Bool of shape ()."""
    if type != TensorType(BOOL, ()):
        raise MspcError(f"{op.name}: the condition is {type}, not {TensorType(BOOL, ())}")


def check_parameters(op: RegionOp, name: str, region: Graph, types: Sequence[Type]) -> None:
    """Raises MspcError where a region takes others than these."""
    told = [parameter.type for parameter in region.parameters]
    if len(told) != len(types):
        raise MspcError(f"{op.name}: @{region.name} ({name}) takes {len(told)} operands, it is given {len(types)}")
    for parameter, type in zip(region.parameters, types, strict=True):
        if parameter.type != type:
            raise MspcError(
                f"{op.name}: the parameter {parameter.name} of @{region.name} ({name}) is {parameter.type}, "
                f"it is given {type}"
            )


def check_alike(op: RegionOp, what: str, one: Sequence[Type], other: Sequence[Type]) -> None:
    """Raises MspcError where the types of two lists of results differ."""
    if len(one) != len(other):
        raise MspcError(f"{op.name}: one {what} returns {len(one)} tensors, the other {len(other)}")
    for number, (left, right) in enumerate(zip(one, other, strict=True)):
        if left != right:
            raise MspcError(f"{op.name}: result {number} is {left} from one {what} and {right} from the other")
