"""Operators that run graphs: branches, calls and loops."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, ClassVar, NamedTuple, TypeGuard

import numpy as np

from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Builder, Constant, Graph, Node, Parameter, Value, free_name
from mspc.ir.types import BOOL, INT64, StackType, TensorType, TupleType, Type
from mspc.ops.op import NotDifferentiable, Op


class RegionOp(Op, abstract=True):
    """An operator that runs the regions of its node.

    mutates: operands that a region overwrites. has_side_effect: a region has to run even if nobody reads a result.
    is_collective: ranks run it together, since a region sends.
    """

    mutates: tuple[int, ...] = ()  # type: ignore[misc]  # a field here, which other operators have as a class
    has_side_effect: bool = False  # type: ignore[misc]  # as above
    is_collective: bool = False  # type: ignore[misc]  # as above
    region_names: ClassVar[tuple[str, ...]] = ()
    """Names of the regions in messages, in their order."""
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
        """Return the type of the node, from its regions and the types of its operands. Raise MspcError if operands and
        parameters do not fit, or results that must be equal are not."""
        raise NotImplementedError(self.name)

    def inside(self, number: int, operand: int) -> int | None:
        """Return the index of the parameter of region `number` for an operand; None if there is none."""
        raise NotImplementedError(self.name)

    def places(self, number: int, types: Sequence[Type]) -> list[range]:
        """Return, for operands of these types, the numbers of the parameters of region `number` that each becomes."""
        inside = [self.inside(number, operand) for operand in range(len(types))]
        return [range(0) if place is None else range(place, place + 1) for place in inside]

    @property
    def passed_operands(self) -> range:
        """Operands that may be results, whatever the regions do."""
        return range(0)

    def aliased_operands(self, count: int) -> Sequence[int]:
        """See `Op`; `mspc.analysis.aliasing` knows it more closely, from the regions."""
        return range(count)

    def compute(self, xp: Any, *inputs: Any) -> Any:
        raise NotImplementedError(f"{self.name} runs with the regions of its node")


class If(RegionOp):
    """Results of the first region if operand 0, a Bool of shape (), is true, else of the second. The other operands are
    the parameters of both regions."""

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
    """Results of the region, whose parameters are the operands; a tuple is passed as its elements. Calls in a stage's
    program pass each other's tensors as one tuple operand; elsewhere no operand is a tuple."""

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
    """Return the types of the parameters that an operand of a call becomes."""
    return type.elements if isinstance(type, TupleType) else (type,)


def spread(node: Node, operands: Sequence[Any]) -> list[Any]:
    """Flatten `operands`, one entry for each operand of a call, to one entry for each parameter of its region."""
    found: list[Any] = []
    for value, given in zip(node.inputs, operands, strict=True):
        if isinstance(value.type, TupleType):
            found += given
        else:
            found.append(given)
    return found


def emit_regions(b: Builder, op: RegionOp, inputs: Sequence[Value], regions: Sequence[Graph], name: str = "") -> Node:
    """Append a node that runs regions; its operator gets their overwritten operands and whether they must run. Raise
    MspcError if the regions do not fit the operands, at the builder's source line."""
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
"""Effects of a region: parameters that it overwrites, whether it has other side effects, whether it communicates."""


_NONE: Effects = (frozenset(), False, False)


def effects_of(region: Graph) -> Effects:
    """Return the effects of a region other than its results."""
    return (
        frozenset(overwritten_parameters(region)),
        any(node.op.has_side_effect for node in region.nodes),
        any(node.op.is_collective for node in region.nodes),
    )


def with_effects(
    op: RegionOp, inputs: Sequence[Value], regions: Sequence[Graph], known: dict[Graph, Effects] | None = None
) -> RegionOp:  # fmt: skip
    """Return the operator with the effects of these regions. known: effects of regions that several operators run."""
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
    """Return the type of a node that runs graphs, computed from its operands and graphs. Raise MspcError if they do not
    fit, or the node declares fewer effects than its graphs have: it would be left out, or run in another order."""
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
    """Return the numbers of the parameters that nodes of the region overwrite."""
    numbers: dict[Value, int] = {parameter: i for i, parameter in enumerate(region.parameters)}
    for node in region.nodes:
        for index in node.op.mutates:
            value = node.inputs[index]
            if value in numbers:
                yield numbers[value]


def result_types(region: Graph) -> tuple[TensorType, ...]:
    """Return the types of a region's results. Raise MspcError if one is a tuple."""
    found = [value.type for value in region.results]
    tensors = tuple(type for type in found if isinstance(type, TensorType))
    if len(tensors) != len(found):
        raise MspcError(f"@{region.name} returns a tuple among its results; it returns tensors one by one")
    return tensors


def check_count(op: RegionOp, regions: Sequence[Graph]) -> None:
    """Raise MspcError if these are not the operator's regions."""
    if len(regions) != len(op.region_names):
        wanted = " and ".join(op.region_names)
        raise MspcError(f"{op.name}: it has {len(regions)} regions; it takes {len(op.region_names)}: {wanted}")


def check_condition(op: RegionOp, type: Type | None) -> None:
    """Raise MspcError unless a condition is a Bool of shape ()."""
    if type != TensorType(BOOL, ()):
        raise MspcError(f"{op.name}: the condition is {type}, not {TensorType(BOOL, ())}")


def check_parameters(op: RegionOp, name: str, region: Graph, types: Sequence[Type]) -> None:
    """Raise MspcError if the parameters of a region have other types than these."""
    told = [parameter.type for parameter in region.parameters]
    if len(told) != len(types):
        raise MspcError(
            f"{op.name}: @{region.name} ({name}) takes {len(told)} operands, it is given {len(types)}", code="E0301"
        )
    for parameter, type in zip(region.parameters, types, strict=True):
        if parameter.type != type:
            raise MspcError(
                f"{op.name}: the parameter {parameter.name} of @{region.name} ({name}) is {parameter.type}, "
                f"it is given {type}"
            )


def check_alike(op: RegionOp, what: str, one: Sequence[Type], other: Sequence[Type]) -> None:
    """Raise MspcError if the types of two lists of results differ."""
    if len(one) != len(other):
        raise MspcError(f"{op.name}: one {what} returns {len(one)} tensors, the other {len(other)}")
    for number, (left, right) in enumerate(zip(one, other, strict=True)):
        if left != right:
            raise MspcError(f"{op.name}: result {number} is {left} from one {what} and {right} from the other")


def captured_values(nodes: Sequence[Node], results: Sequence[Value], own: Collection[Value] = ()) -> list[Value]:
    """Return the values from outside that the nodes and results read, except constants, in the order of reading.

    own: values that the region gets otherwise.
    """
    made = {*nodes, *own}
    read = [*(value for node in nodes for value in node.inputs), *results]
    return list(dict.fromkeys(value for value in read if value not in made and not isinstance(value, Constant)))


def outlined(
    name: str, nodes: Sequence[Node], results: Sequence[Value], own: Sequence[Value] = (),
    captured: Sequence[Value] | None = None,
) -> tuple[Graph, list[Value]]:  # fmt: skip
    """Return a region of these nodes, which are moved into it, and the values that it captures. Its parameters replace
    `own`, then the captured values: `captured` if given, possibly including values that the region does not read, else
    those that it reads. No other graph may read its nodes."""
    found = captured_values(nodes, results, own) if captured is None else list(captured)
    region = Graph(name)
    region.returns_tuple = True
    taken: set[str] = set()
    inside: dict[Value, Value] = {}
    for value in (*own, *found):
        wanted = value.name if isinstance(value, Parameter | Node) and value.name else "captured"
        made = Parameter(free_name(wanted, taken), value.type, "input")
        region.parameters.append(made)
        inside[value] = made
    region.nodes = list(nodes)
    region.results = list(results)
    region.replace(inside)
    return region, found


def make_names_unique(named: Iterable[Graph | Parameter]) -> None:
    """Give graphs or parameters unique names: a program may contain a graph and one derived from it."""
    taken: set[str] = set()
    for each in named:
        name, number = each.name, 1
        while each.name in taken:
            number += 1
            each.name = f"{name}_{number}"
        taken.add(each.name)

COUNT = TensorType(INT64, ())
"""Type of iteration numbers and counts."""


class Loop(RegionOp, abstract=True):
    """A loop. Its body is the last region.

    carried: values that go from iteration to iteration. scanned: operands of which every iteration gets one entry, from
    the last on with `reverse`. stacked: results of the body of which every iteration's is saved, in the order of the
    entries.
    """

    carried: int = 0
    scanned: int = 0
    stacked: int = 0
    reverse: bool = False
    leading: ClassVar[int] = 0
    """Parameters of the body before those for operands: the iteration number."""

    @property
    def first(self) -> int:
        """Number of operands before the carried ones."""
        return 0

    @property
    def carried_operands(self) -> range:
        return range(self.first, self.first + self.carried)

    @property
    def scanned_operands(self) -> range:
        return range(self.first + self.carried, self.first + self.carried + self.scanned)

    @property
    def passed_operands(self) -> range:
        return self.carried_operands

    def known_iterations(self, types: Sequence[Type]) -> int:
        """Return the number of iterations if it follows from operand types and attributes, else -1."""
        return -1

    def inside(self, number: int, operand: int) -> int | None:
        return operand - self.first + self.leading if operand >= self.first else None

    def body_types(self, types: Sequence[Type]) -> list[Type]:
        """Return the types of the body's parameters, from those of the operands. Raise MspcError if they do not fit."""
        turns = self.known_iterations(types)
        entries = [_entry(self, types[index], turns) for index in self.scanned_operands]
        behind = self.first + self.carried
        return [COUNT] * self.leading + [*types[self.first : behind], *entries, *types[behind + self.scanned :]]

    def results_of(self, regions: Sequence[Graph], types: Sequence[Type]) -> TupleType:
        check_count(self, regions)
        if len(types) < self.first + self.carried + self.scanned:
            raise MspcError(f"{self.name}: {len(types)} operands for {self.carried} carried and {self.scanned} scanned")
        body = regions[-1]
        check_parameters(self, "body", body, self.body_types(types))
        results = result_types(body)
        if len(results) != self.carried + self.stacked:
            wanted = f"{self.carried} carried and {self.stacked} stacked"
            raise MspcError(f"{self.name}: @{body.name} returns {len(results)} tensors, not {wanted}")
        for number, index in enumerate(self.carried_operands):
            if results[number] != types[index]:
                name = body.parameters[self.leading + number].name
                raise MspcError(
                    f"{self.name}: {name} is {types[index]} ahead of the loop, and {results[number]} behind a turn",
                    notes=["carried values keep their shape and element type in every iteration"],
                )
        return TupleType((*results[: self.carried], *self.kept(results[self.carried :], self.known_iterations(types))))

    def kept(self, entries: Sequence[TensorType], turns: int) -> tuple[TensorType, ...]:
        """Return the types of the results that hold the entries of all iterations."""
        return tuple(stacked_type(entry, turns) for entry in entries)


class While(Loop):
    """A loop that runs the body while the condition, of the same parameters, is true before an iteration. With
    `stacked` results, or with `counted`, it also returns the number of iterations, before the stacks."""

    counted: bool = False
    region_names = ("condition", "body")

    @property
    def returns_count(self) -> bool:
        """Whether the number of iterations is among the results."""
        return self.counted or self.stacked > 0

    def results_of(self, regions: Sequence[Graph], types: Sequence[Type]) -> TupleType:
        found = super().results_of(regions, types)
        check_parameters(self, "condition", regions[0], self.body_types(types))
        told = result_types(regions[0])
        check_condition(self, told[0] if len(told) == 1 else TupleType(told))
        return found

    def kept(self, entries: Sequence[TensorType], turns: int) -> tuple[TensorType, ...]:
        return (*([COUNT] if self.returns_count else []), *super().kept(entries, turns))


class For(Loop):
    """A loop that runs the body `turns` times, or, with -1, operand 0 times; its first parameter is the number of the
    iteration, from 0, or from the last one down to 0 with `reverse`."""

    turns: int = -1
    region_names = ("body",)
    leading = 1

    @property
    def first(self) -> int:
        return 1 if self.turns < 0 else 0

    def known_iterations(self, types: Sequence[Type]) -> int:
        return self.turns

    def results_of(self, regions: Sequence[Graph], types: Sequence[Type]) -> TupleType:
        if self.turns < 0 and (not types or types[0] != COUNT):
            raise MspcError(f"For: the number of turns is {types[0] if types else 'missing'}, not {COUNT}")
        return super().results_of(regions, types)


class Scan(Loop):
    """A loop that runs the body `turns` times, each on its entries of the scanned operands.

    micro_batches: the iterations are parts of a batch, which the stages of a pipeline pass on; values that an iteration
    saves for its gradient do not wait for the other iterations (`join_micro_batches`).
    """

    turns: int = 0
    micro_batches: bool = False
    region_names = ("body",)

    def known_iterations(self, types: Sequence[Type]) -> int:
        return self.turns


class MakeStack(Op):
    """Tensors of one type as the entries of a stack, one an iteration, without a copy: a loop that overwrites an entry
    overwrites the tensor."""

    takes_complex = True
    is_view = True
    widens = False
    bprop = NotDifferentiable("gradients are taken with respect to all of the stack")

    def infer(self, *types: Type) -> Type:
        first = types[0] if types else None
        if not isinstance(first, TensorType):
            raise MspcError("MakeStack: it takes tensors of one type, at least one")
        other = next((type for type in types if type != first), None)
        if other is not None:
            raise MspcError(f"MakeStack: its entries are {first} and {other}; they must be of one type")
        return StackType.of(first)

    def compute(self, xp: Any, *inputs: Any) -> Any:
        return list(inputs)

    def aliased_operands(self, count: int) -> Sequence[int]:
        return range(count)


class TurnCount(Op):
    """The number of iterations of a loop that have put something on a stack: Int64 of shape ()."""

    takes_complex = True
    bprop = NotDifferentiable("it is a number of turns")

    def infer(self, *types: Type) -> Type:
        if len(types) != 1 or not isinstance(types[0], StackType):
            raise MspcError(f"TurnCount: it takes a stack, not {', '.join(map(str, types)) or 'nothing'}")
        return COUNT

    def compute(self, xp: Any, *inputs: Any) -> Any:
        return np.asarray(len(inputs[0]), np.int64)


def is_stack_of_parameters(value: Value) -> TypeGuard[Node]:
    """Whether a value is a stack whose entries are parameters."""
    return isinstance(value, Node) and isinstance(value.op, MakeStack) and isinstance(value.inputs[0], Parameter)


def runs_known_times(node: Node) -> bool:
    """Whether a node is a loop of a known number of iterations."""
    return isinstance(node.op, For | Scan) and node.op.turns >= 0


def runs_layers(node: Node) -> bool:
    """Whether a node is a loop over the weights of equal layers, or over values that belong to each."""
    scanned = node.op.scanned_operands if isinstance(node.op, Loop) and runs_known_times(node) else ()
    return any(isinstance(node.inputs[i].type, StackType) for i in scanned)


def runs_micro_batches(node: Node) -> bool:
    """Whether a node is the loop over the micro-batches of a network in stages."""
    return isinstance(node.op, Scan) and node.op.micro_batches


def body_of(node: Node) -> Graph:
    """Return the body of a loop."""
    return node.regions[-1]


def stacked_type(entry: TensorType, turns: int) -> TensorType:
    """Return the type of the entries of all iterations: a tensor if the number of iterations is known and the entries
    are not stacks, else a stack."""
    if turns < 0 or isinstance(entry, StackType):
        return StackType.of(entry)
    return entry.with_shape((turns, *entry.shape))


def _entry(op: Loop, type: Type, turns: int) -> TensorType:
    """Return the type of one entry of a scanned operand. Raise MspcError if it cannot be scanned."""
    if isinstance(type, StackType):
        return type.entry
    if not isinstance(type, TensorType) or not type.shape or (turns >= 0 and type.shape[0] != turns):
        wanted = f"a tensor of {turns} entries" if turns >= 0 else "a stack"
        raise MspcError(f"{op.name}: it scans {type}, not {wanted}")
    return type.with_shape(type.shape[1:])


class Times(NamedTuple):
    """How often something runs in a step.

    count: the number if `known`, else that for each iteration of the loops whose iterations only the run counts.
    always: no condition decides; else the number is an upper bound.
    """

    count: int = 1
    known: bool = True
    always: bool = True

    def inside(self, node: Node, number: int) -> Times:
        """Return how often region `number` of a node that runs this often runs."""
        if isinstance(node.op, If):
            return self._replace(always=False)
        if not isinstance(node.op, Loop):
            return self
        turns = node.op.known_iterations([value.type for value in node.inputs])
        if turns < 0:
            return self._replace(known=False)
        return self._replace(count=self.count * (turns + (isinstance(node.op, While) and number == 0)))

    def __add__(self, other: object) -> Times:  # type: ignore[override]  # never a plain tuple
        """Return the sum, for a graph that runs in two places."""
        assert isinstance(other, Times)
        return Times(self.count + other.count, self.known and other.known, self.always and other.always)

    @property
    def text(self) -> str:
        """Return `3 times`, `once a turn` or `at most 2 times`; "" for one run."""
        if self == ONCE:
            return ""
        count = "once" if self.count == 1 else f"{self.count} times"
        return f"{'' if self.always else 'at most '}{count}{'' if self.known else ' a turn'}"


ONCE = Times()


def times_of(program: Graph) -> dict[Graph, Times]:
    """Return how often a step runs each graph of a program, the program itself first."""
    found = {program: ONCE}
    for graph in program.graphs():
        for node in graph.nodes:
            for number, region in enumerate(node.regions):
                times = found[graph].inside(node, number)
                found[region] = found[region] + times if region in found else times
    return found


def nodes_with_times(program: Graph) -> Iterator[tuple[Node, Times]]:
    """Yield every node of a program and of its graphs once, with how often a step runs it. The nodes of a graph follow
    the first node that runs it."""
    times = times_of(program)
    yield from _nodes(program, times, {program})


def _nodes(graph: Graph, times: dict[Graph, Times], seen: set[Graph]) -> Iterator[tuple[Node, Times]]:
    own = times[graph]
    for node in graph.nodes:
        yield node, own
        for region in node.regions:
            if region not in seen:
                seen.add(region)
                yield from _nodes(region, times, seen)
