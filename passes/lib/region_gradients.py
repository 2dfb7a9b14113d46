"""Gradients of nodes that run regions: calls, branches and loops."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from mspc.ir.graph import Builder, Constant, Graph, Node, Parameter, Value, copied_graph, copied_region
from mspc.ir.late_dataclass import dataclass
from mspc.ir.types import FLOAT32, StackType, TensorType, TupleType
from mspc.ops.control.regions import (
    COUNT,
    Call,
    For,
    If,
    Loop,
    RegionOp,
    Scan,
    While,
    emit_regions,
    make_names_unique,
    overwritten_parameters,
    with_effects,
)
from mspc.ops.control.structural import CALL, MakeTuple, TupleGetItem
from mspc.ops.op import Op
from mspc.ops.tensor.reshape import Cast, filled
from mspc.passes.autodiff.recompute import copy_for_gradients, handed_on, recomputed_values
from mspc.passes.base import live_values
from mspc.passes.lib.gradients import (
    Differentiate,
    Terms,
    add_term,
    backpropagate,
    depends_on,
    keep_overwritten,
    placeholder,
    summed,
    zeros_like,
)

# The gradient of `%3 = Call(%0, %para_w) {regions: @layer}`: the graph also returns the values its gradient reads, and
# `%9 = Call(%8, %7, %para_w) {regions: @layer_gradient}` takes the gradient of its result, the saved values, and the
# captured ones; its results are the gradients of %0 and %para_w. An `If` saves for both of its branches; the one that
# did not run saves zeros that take no memory.


def gradient_of_branches(request: GradientRequest, differentiate: Differentiate) -> RegionGradient | None:
    """Gradients of an `If`, whose operands are the condition and the parameters of both branches, or of a `Call`."""
    op, regions, wanted, given = request
    assert isinstance(op, If | Call)
    first = 1 if isinstance(op, If) else 0
    joints = [joint_of(region, [i - first for i in wanted], given, differentiate) for region in regions]
    numbers = sorted({number for joint in joints for number in joint.grads})
    if not numbers:
        return None
    savings = [saving_of(joint, joint.graph.parameters) for joint in joints]
    splits = [JointSplit(joint, again) for joint, (again, _) in zip(joints, savings, strict=True)]
    sources = [Source("gradient", k) for k in given]
    parameters: list[list[Parameter]] = [[split.given[k] for k in given] for split in splits]
    for split in splits:
        _share_saved(split, splits, sources, parameters)
    grads = [[split.gradient(n) for n in numbers] for split in splits]
    for number in range(len(regions[0].parameters)):
        if any(split.forward.parameters[number] in split.reads for split in splits):
            sources.append(Source("operand", number + first))
            for split, found in zip(splits, parameters, strict=True):
                found.append(split.placeholder(split.forward.parameters[number]))
    made = zip(splits, parameters, grads, strict=True)
    backward = tuple(split.backward(found, results) for split, found, results in made)
    if isinstance(op, If):
        sources.insert(0, Source("operand", 0))
    return RegionGradient(
        op,
        tuple(split.forward for split in splits),
        replace(op, mutates=(), has_side_effect=False),
        backward,
        tuple(sources),
        {number + first: place for place, number in enumerate(numbers)},
        "; ".join(note for _, note in savings),
    )


def _share_saved(
    split: JointSplit, splits: Sequence[JointSplit], sources: list[Source], parameters: Sequence[list[Parameter]]
) -> None:
    """Add the saved values of one branch to the results of all, and to the operands of their gradients."""
    captured = set(split.forward.parameters)
    for value in [value for value in split.reads if value not in captured]:
        if value in split.forward.results:
            number = split.forward.results.index(value)
        else:
            number = len(split.forward.results)
            for each in splits:
                own = value if each is split else placeholder(Builder(each.forward), value.tensor_type)
                each.forward.results.append(own)
                each.forward.returns_tuple = True
        sources.append(Source("result", number))
        for each, found in zip(splits, parameters, strict=True):
            found.append(split.reads[value] if each is split else Parameter(split.reads[value].name, value.type))


# The gradient of `%3 = For(%x, %para_w) {regions: @body} {turns: 5, carried: 1}`: the loop stacks the values that its
# gradient reads after its results, and
# `%9 = For(%8, %7, %6, %para_w) {regions: @body_gradient} {turns: 5, carried: 2, scanned: 1, reverse: true}`
# takes the gradients of carried values, zeros to which the iterations add the gradients of captured values, the saved
# values, and the captured ones. The backward loop runs in reverse; a `While` counts its iterations. Scanned values are
# scanned again; their gradients are stacked. If the gradient reads both the operands and the carried results of an
# iteration, only the operands are saved: the results are the operands of the next one.


def gradient_of_loop(request: GradientRequest, differentiate: Differentiate) -> RegionGradient | None:
    """Return how a loop is differentiated; None if nothing that is wanted has a gradient."""
    op, regions, _, given = request
    assert isinstance(op, Loop)
    body = regions[-1]
    carried, wanted, seeds = _flow(request)
    joint = joint_of(body, wanted, seeds, differentiate)
    parameters = joint.graph.parameters
    behind = op.leading + op.carried
    scanned, captured = parameters[behind : behind + op.scanned], parameters[behind + op.scanned :]
    handed_on = dict(zip(joint.graph.results[: op.carried], parameters[op.leading : behind], strict=True))
    turns = 0 if _of_micro_batches(op) else _turns(op)  # values saved by an iteration wait for no other
    again, note = saving_of(joint, captured, [*parameters[: op.leading], *scanned], handed_on, turns)
    split = JointSplit(joint, again)
    made = _Backward(op, split)
    for i in carried:
        source = Source("gradient" if i in given else "zero gradient", i)  # carried results come first
        made.grads[i + op.first] = len(made.carried)
        made.carried.append((split.given[i], split.gradient(op.leading + i), source))
    for number in range(behind + op.scanned, len(parameters)):
        if number in split.grads:
            made.add_up(number)
    for k in seeds:
        if k >= op.carried:
            made.scanned.append((split.given[k], Source("gradient", _result(op, k))))
    made.hand_on()
    forward = made.scan_saved(scanned, captured)
    for number in range(behind, behind + op.scanned):
        if number in split.grads:
            made.grads[made.operand(number)] = len(made.carried) + len(made.stacked)
            made.stacked.append(split.grads[number])
    if not made.grads:
        return None
    for number in range(behind + op.scanned, len(parameters)):
        if parameters[number] in split.reads:
            made.captured.append((split.reads[split.forward.parameters[number]], made.source(number)))
    return made.gradient(replace(forward, mutates=(), has_side_effect=False), regions[:-1], note)


def _of_micro_batches(op: Loop) -> bool:
    return isinstance(op, Scan) and op.micro_batches


def _turns(op: Loop) -> int:
    return op.turns if isinstance(op, For | Scan) else -1


def _result(op: Loop, number: int) -> int:
    """Return the place of a body's result among those of the node: a `While` counts before its stacks."""
    return number + 1 if isinstance(op, While) and number >= op.carried else number


def _flow(request: GradientRequest) -> tuple[list[int], list[int], list[int]]:
    """Return (the numbers of carried values with a gradient, parameters to differentiate by, results that have the
    gradients these come from): such values depend on wanted values, in this iteration or a later one, and something
    with a given gradient depends on them."""
    op, regions, wanted, given = request
    assert isinstance(op, Loop)
    body = regions[-1]
    inside = [op.inside(len(regions) - 1, operand) for operand in wanted]
    active = {number for number in inside if number is not None}
    count, depending = -1, set[Value]()
    while len(active) != count:
        count = len(active)
        depending = depends_on(body.nodes, [body.parameters[number] for number in sorted(active)])
        active |= {op.leading + i for i in range(op.carried) if body.results[i] in depending}
    found = {k for k in range(len(body.results)) if _result(op, k) in given}
    useful = live_values(body.nodes, [body.results[k] for k in found])
    count = -1
    while len(found) != count:
        count = len(found)
        found |= {i for i in range(op.carried) if body.parameters[op.leading + i] in useful}
        useful = live_values(body.nodes, [body.results[k] for k in found])
    carried = [i for i in range(op.carried) if i in found and op.leading + i in active]
    wanted_inside = [n for n in sorted(active) if body.parameters[n] in useful or n - op.leading in carried]
    seeds = [k for k in sorted(found) if k in carried or (k >= op.carried and body.results[k] in depending)]
    return carried, wanted_inside, seeds


class _Backward:
    """The backward loop as it is put together: its parameters and results in their order, and the operands for them."""

    def __init__(self, op: Loop, split: JointSplit) -> None:
        self.op = op
        self.split = split
        self.grads: dict[int, int] = {}
        # Gradients of carried values and totals, saved and stacked values, gradients of scanned ones, captured values.
        self.carried: list[tuple[Parameter, Value, Source]] = []
        self.scanned: list[tuple[Parameter, Source]] = []
        self.stacked: list[Value] = []
        self.captured: list[tuple[Parameter, Source]] = []

    def add_up(self, number: int) -> None:
        """Add up the gradients of a captured parameter over all iterations, in Float32 at least."""
        grad = self.split.grads[number]
        parameter = self.split.forward.parameters[number]
        b = self.split.builder()
        # The gradient of a stack is a tensor if the loop over it has a known number of iterations.
        own = grad.tensor_type if isinstance(parameter.type, StackType) else parameter.tensor_type
        wide = wide_type(own)
        if wide != own:
            grad = b.emit(Cast(wide.dtype), grad)
        total = Parameter(f"gradient_of_{parameter.name}", wide)
        operand = self.operand(number)
        self.grads[operand] = len(self.carried)
        self.carried.append((total, summed(b, [total, grad]), Source("wide zeros", operand)))

    def hand_on(self) -> None:
        """Read values that an iteration has carried on from the saved operands of the next one."""
        forward, op, reads = self.split.forward, self.op, self.split.reads
        for i, value in enumerate(forward.results[: op.carried]):
            given = forward.parameters[op.leading + i]
            if value in reads and given in reads and value is not given:
                self.carried.append((reads.pop(value), reads[given], Source("result", i)))

    def scan_saved(self, scanned: Sequence[Value], captured: Sequence[Value]) -> Loop:
        """Scan the values of every iteration that the gradient reads, and return the forward loop, which stacks
        them."""
        forward, op = self.split.forward, self.op
        more = 0
        index = forward.parameters[: op.leading]
        for value, parameter in list(self.split.reads.items()):
            if value in captured or value in index:
                continue
            if value in scanned:
                number = op.leading + op.carried + list(scanned).index(value)
                self.scanned.append((parameter, self.source(number)))
                continue
            stacked = forward.results[op.carried :]
            if value in stacked:
                number = op.carried + stacked.index(value)
            else:
                number = len(forward.results)
                forward.results.append(value)
                forward.returns_tuple = True
                more += 1
            self.scanned.append((parameter, Source("result", _result(op, number))))
        return replace(op, stacked=op.stacked + more)

    def operand(self, number: int) -> int:
        return number - self.op.leading + self.op.first

    def source(self, number: int) -> Source:
        return Source("operand", self.operand(number))

    def gradient(self, forward: Loop, others: tuple[Graph, ...], note: str) -> RegionGradient:
        op, split = self.op, self.split
        turn: list[Parameter] = []
        if not isinstance(op, Scan):
            read = next((split.reads[p] for p in split.forward.parameters[: op.leading] if p in split.reads), None)
            turn = [read or Parameter("turn", COUNT)]
        pairs = [*((p, s) for p, _, s in self.carried), *self.scanned, *self.captured]
        results = [*(result for _, result, _ in self.carried), *self.stacked]
        graph = split.backward([*turn, *(parameter for parameter, _ in pairs)], results)
        kind = Scan if isinstance(op, Scan) else For
        backward = kind(
            carried=len(self.carried), scanned=len(self.scanned), stacked=len(self.stacked),
            reverse=not op.reverse, turns=_turns(op),
        )  # fmt: skip
        if _of_micro_batches(op):
            backward = replace(backward, micro_batches=True)  # type: ignore[call-arg]  # a Scan
        count: list[Source] = []
        if isinstance(op, While):
            forward = replace(forward, counted=not forward.stacked)  # type: ignore[call-arg]  # a While
            count = [Source("result", op.carried)]
        elif op.first:
            count = [Source("operand", 0)]
        sources = (*count, *(source for _, source in pairs))
        return RegionGradient(forward, (*others, split.forward), backward, (graph,), sources, self.grads, note)


# Nodes that run the same graph, with the same wanted gradients, run the same gradient graphs too.


class RegionGradients:
    """Emits the gradients of nodes that run regions, and caches them by graph."""

    def __init__(self) -> None:
        self._known: dict[GradientRequest, RegionGradient | None] = {}

    def __call__(
        self, b: Builder, node: Node, douts: Sequence[Value | None], needed: set[Value]
    ) -> Sequence[Value | None]:
        """Return the gradients of the operands, as `Differentiate` does.

        Raise MspcError if a gradient with respect to an overwritten operand is wanted.
        """
        op = node.op
        assert isinstance(op, RegionOp)
        body = len(node.regions) - 1  # operands without a place in it decide about branches and iterations alone
        wanted = tuple(i for i, value in enumerate(node.inputs) if value in needed and op.inside(body, i) is not None)
        for number in set(wanted) & set(op.mutates):
            _refuse(node, number)
        given = tuple(k for k, dout in enumerate(douts) if dout is not None)
        request = GradientRequest(op, node.regions, wanted, given)
        if request not in self._known:
            make = gradient_of_loop if isinstance(op, Loop) else gradient_of_branches
            self._known[request] = make(request, self)
        made = self._known[request]
        return [None] * len(node.inputs) if made is None else _emitted(b, node, douts, made)


def _refuse(node: Node, number: int) -> None:
    value = node.inputs[number]
    name = value.name or f"operand {number}"
    raise node.error(
        f"{node.label}: a gradient with respect to {name} is asked for, which the node overwrites",
        notes=[f"{_writer(node, number)} overwrites it; carry the value from turn to turn in a variable instead"],
        kind=ValueError,
    )


def _writer(node: Node, number: int) -> str:
    """Return the operator inside of the node's regions that overwrites an operand, with its line."""
    op = node.op
    assert isinstance(op, RegionOp)
    for place, region in enumerate(node.regions):
        inside = op.inside(place, number)
        if inside is None or inside not in set(overwritten_parameters(region)):
            continue
        for inner in region.nodes:
            for index in inner.op.mutates:
                if inner.inputs[index] is region.parameters[inside]:
                    if inner.regions:
                        return _writer(inner, index)
                    line = f" in {inner.frames[0].file}:{inner.frames[0].line}" if inner.frames else ""
                    return f"{inner.label}{line}"
    raise AssertionError(f"nothing overwrites operand {number} of {node.label}")


def _emitted(b: Builder, node: Node, douts: Sequence[Value | None], made: RegionGradient) -> list[Value | None]:
    """Give the node its regions, and emit the backward one."""
    node.regions = made.regions
    op = with_effects(made.op, node.inputs, made.regions)
    node.op = op  # type: ignore[assignment]  # fields, see RegionOp
    node.type = op.results_of(made.regions, [value.type for value in node.inputs])
    node.attrs["saved"] = made.note
    operands: list[Value] = []
    for kind, number in made.sources:
        if kind == "gradient":
            dout = douts[number]
            assert dout is not None
            operands.append(dout)
        elif kind == "result":
            operands.append(b.emit(TupleGetItem(number), node))
        elif kind == "operand":
            operands.append(node.inputs[number])
        elif kind == "wide zeros":
            value = node.inputs[number]
            total = made.backward_regions[-1].parameters[made.backward.inside(0, len(operands)) or 0].tensor_type
            operands.append(filled(b, 0.0, total) if total != value.type else zeros_like(b, value))
        else:
            assert isinstance(node.type, TupleType)
            operands.append(filled(b, 0.0, node.type.elements[number]))
    backward = emit_regions(b, made.backward, operands, made.backward_regions)
    if CALL in node.attrs:
        backward.attrs[CALL] = node.attrs[CALL]
    found: list[Value | None] = [None] * len(node.inputs)
    for operand, result in made.grads.items():
        grad: Value = b.emit(TupleGetItem(result), backward)
        value = node.inputs[operand]
        found[operand] = grad if grad.type == value.type else b.emit(Cast(value.tensor_type.dtype), grad)
    return found


class Source(NamedTuple):
    """An operand of the backward node.

    kind: the "gradient" of a result of the node, a "result" of it, an "operand" of it, "wide zeros" for the sum of
    gradients of an operand, or the "zero gradient" of a result. number: of that result or operand.
    """

    kind: str
    number: int


@dataclass(frozen=True, eq=False)
class RegionGradient:
    """The gradient of a node.

    op, regions: of the node from now on. backward, backward_regions: of the node that computes gradients; sources: its
    operands. grads: for each of its results the operand of which it is the gradient. note: the saved values and the
    reason.
    """

    op: RegionOp
    regions: tuple[Graph, ...]
    backward: RegionOp
    backward_regions: tuple[Graph, ...]
    sources: tuple[Source, ...]
    grads: dict[int, int]
    note: str


class GradientRequest(NamedTuple):
    """The wanted gradients of a node: of operands, by number, for gradients of results."""

    op: RegionOp
    regions: tuple[Graph, ...]
    wanted: tuple[int, ...]
    given: tuple[int, ...]


def wide_type(type: TensorType) -> TensorType:
    """Return the type in which the gradients that all turns of a loop have of one value are added up."""
    narrow = type.dtype.is_float and type.dtype.itemsize < FLOAT32.itemsize
    return TensorType(FLOAT32, type.shape) if narrow and not isinstance(type, StackType) else type


# The gradient's operands are saved, except
# - views of other values, and in loops values that are the same in every iteration;
# - values of a marked cell (`Cell.recompute`), unless they read a parameter that the region overwrites;
# - all of a loop whose iterations, if their number is known, would save more than `MAX_SAVED` bytes: then every
#   iteration saves its operands, and its gradient starts with the iteration itself.
# Values that stages of a pipeline hand on are saved in any case (`recompute`).


MAX_SAVED = 2**30
"""Bytes that the iterations of one loop, if their number is known, may save for its gradient before the values inside
of an iteration are recomputed."""


def saving_of(
    joint: Joint, captured: Sequence[Value], by_turn: Sequence[Value] = (),
    next_turn: Mapping[Value, Value] | None = None, turns: int | None = None,
) -> tuple[set[Value], str]:  # fmt: skip
    """Return (nodes of the region that the gradient computes again, a note on the saved values and the reason).

    captured, by_turn: parameters that the gradient gets from elsewhere; the latter are those of a loop that differ
    between iterations: scanned ones and the count. next_turn: carried results, with their parameters in the next
    iteration. turns: of the loop that has the region as body, -1 if their number is unknown, or None.
    """
    in_loop = turns is not None
    through = {*captured, *by_turn}
    marked, between_stages = recomputed_values(joint.graph), handed_on(joint.graph)
    again = _views(joint) | (_same_in_all_turns(joint, captured) if in_loop else set())
    again |= {node for node in joint.forward if node in marked and _repeats(joint, node)}
    again = _with_elements(joint, again) - between_stages
    saved = _bytes(read_from(joint, again), through, next_turn or {})
    unit = " a turn" if in_loop else ""
    reason = "what gradients read, but for what is marked to be recomputed" if marked else "what gradients read"
    if turns is not None and saved * turns > MAX_SAVED:
        everything = _with_elements(joint, {node for node in joint.forward if _repeats(joint, node)}) - between_stages
        fewer = _bytes(read_from(joint, everything), through, next_turn or {})
        if fewer < saved:
            limit = f"{turns} turns of {saved} bytes are more than {MAX_SAVED}"
            return everything, f"{fewer} bytes{unit}: what a turn is given, since {limit}"
    return again, f"{saved} bytes{unit}: {reason}"


def _bytes(read: Collection[Value], through: Collection[Value], next_turn: Mapping[Value, Value]) -> int:
    return sum(v.type.nbytes for v in read if v not in through and next_turn.get(v) not in read)


def _repeats(joint: Joint, node: Node) -> bool:
    """Return whether a node may run again, in the gradient, and give the same."""
    if node.op.has_side_effect or node.op.mutates:
        return False
    return not any(value in joint.overwritten for value in node.inputs)


def _views(joint: Joint) -> set[Value]:
    """Return the views of one other value, and tuples."""
    return {
        node
        for node in joint.forward
        if _repeats(joint, node)
        and (isinstance(node.op, MakeTuple) or (node.op.is_view and len(node.inputs) == 1))
        and not isinstance(node.op, TupleGetItem)
    }


def _same_in_all_turns(joint: Joint, captured: Sequence[Value]) -> set[Value]:
    """Return the values that depend on captured values and constants alone, and are not drawn."""
    same: set[Value] = set(captured)
    found: set[Value] = set()
    for node in joint.forward:
        drawn = bool(node.regions) or (isinstance(node.op, Op) and node.op.draws)
        if _repeats(joint, node) and not drawn and all(isinstance(v, Constant) or v in same for v in node.inputs):
            same.add(node)
            found.add(node)
    return found


def _with_elements(joint: Joint, again: set[Value]) -> set[Value]:
    """Recompute an element of a tuple if and only if the tuple is."""
    found: set[Value] = set()
    for node in joint.forward:
        is_element = isinstance(node.op, TupleGetItem)
        if node.inputs[0] in found if is_element else node in again:
            found.add(node)
    return found


# The region and its gradient are first one graph, which then is split. The forward graph returns the values that the
# gradient reads after its own results, and the gradient gets them as parameters. It recomputes cheap, marked or too
# large values itself (`saving_of`). Both graphs read the node's captured values.


@dataclass(frozen=True, eq=False)
class Joint:
    """A region, copied, and its gradient as one graph.

    graph: its nodes are those of `forward` and then those of `backward`. overwritten: parameters that the region
    overwrites. given: the gradients of results, by the result's number. grads: the gradients of parameters, by the
    parameter's number.
    """

    graph: Graph
    forward: list[Node]
    backward: list[Node]
    overwritten: frozenset[Value]
    given: Mapping[int, Parameter]
    grads: Mapping[int, Value]


def joint_of(region: Graph, wanted: Sequence[int], seeds: Sequence[int], differentiate: Differentiate) -> Joint:
    """Return the region with the gradients of its parameters `wanted`, for gradients of its results `seeds`."""
    graph = copied_graph(region)
    parameters = [graph.parameters[number] for number in wanted]
    overwritten = frozenset(graph.parameters[number] for number in overwritten_parameters(graph))
    if overwritten:
        keep_overwritten(graph, overwritten, depends_on(graph.nodes, parameters))
    forward = list(graph.nodes)
    own: set[Value] = set(forward)
    given = {number: Parameter(f"gradient_{number}", graph.results[number].type) for number in seeds}
    terms: Terms = {}
    for number, parameter in given.items():
        add_term(terms, graph.results[number], parameter)
    b = Builder(graph)
    b.phase = "backward"
    backpropagate(b, list(forward), terms, parameters, differentiate)
    b.forward = None
    grads = {n: summed(b, terms[graph.parameters[n]]) for n in wanted if terms.get(graph.parameters[n])}
    backward: list[Node] = []
    for node in graph.nodes[len(forward) :]:
        source = node.inputs[0] if isinstance(node.op, TupleGetItem) else None
        if isinstance(source, Node) and source in own:
            node.phase, node.scope, node.forward, node.forward_input = source.phase, source.scope, None, -1
            if "recompute" in source.attrs:
                node.attrs["recompute"] = source.attrs["recompute"]
            forward.append(node)
            own.add(node)
        else:
            backward.append(node)
    graph.nodes = [*forward, *backward]
    live = live_values(backward, grads.values(), lambda node: node.op.has_side_effect)
    return Joint(graph, forward, [node for node in backward if node in live], overwritten, given, grads)


def read_from(joint: Joint, again: Collection[Value]) -> dict[Value, None]:
    """Return the values of the region that the gradient reads if it computes those of `again` itself."""
    own = {*joint.graph.parameters, *joint.forward}
    wanted = {value for node in joint.backward for value in node.inputs if value in own}
    wanted |= {value for value in joint.grads.values() if value in own}
    for node in reversed(joint.forward):
        if node in wanted and node in again:
            wanted.update(value for value in node.inputs if value in own)
    saved = wanted.difference(again)
    return {value: None for value in (*joint.graph.parameters, *joint.forward) if value in saved}


class JointSplit:
    """The two graphs of a joint one, which gives up its nodes.

    forward: the region; the maker of the node adds saved values to its results. nodes: of the gradient. reads: the
    parameters of the gradient for values of the region. grads: by number of a parameter.
    """

    def __init__(self, joint: Joint, again: Collection[Value]) -> None:
        self.forward = joint.graph
        self.forward.nodes = list(joint.forward)
        self.given = joint.given
        self.nodes: list[Node] = []
        self.reads: dict[Value, Parameter] = {}
        self._again = again
        self._own: set[Value] = {*joint.graph.parameters, *joint.forward}
        self._inside: dict[Value, Value] = {}
        self._copies: dict[Graph, Graph] = {}
        for node in joint.backward:
            node.inputs = [self._own_version(value) for value in node.inputs]
            self.nodes.append(node)
        self.grads = {number: self._own_version(value) for number, value in joint.grads.items()}

    def placeholder(self, value: Value) -> Parameter:
        """Return the parameter of the gradient that is for a value of the region, made if there is none yet."""
        if value not in self.reads:
            name = value.name or f"saved_{len(self.reads)}"
            parameter = self.reads[value] = Parameter(name, value.type)
            if isinstance(value, Parameter):
                parameter.attrs = dict(value.attrs)
        return self.reads[value]

    def gradient(self, number: int) -> Value:
        """Return the gradient of a parameter, zeros if nothing comes from it."""
        if number in self.grads:
            return self.grads[number]
        parameter = self.forward.parameters[number]
        like = self.placeholder(parameter) if isinstance(parameter.type, StackType) else parameter
        return zeros_like(self.builder(), like)

    def builder(self) -> Builder:
        """For further nodes of the gradient."""
        b = Builder(self.forward, self.nodes)
        b.phase, b.scope = "backward", f"Gradients/{b.scope}"
        return b

    def _own_version(self, value: Value) -> Value:
        """Return the gradient's own version of a value."""
        waiting = [value]
        while waiting:
            here = waiting[-1]
            if here not in self._own or here in self._inside:
                waiting.pop()
            elif not isinstance(here, Node) or here not in self._again:
                self._inside[here] = self._saved_parameter(here)
                waiting.pop()
            elif missing := [v for v in here.inputs if v in self._own and v not in self._inside]:
                waiting += missing
            else:
                copy = copy_for_gradients(here, [self._inside.get(v, v) for v in here.inputs])
                copy.regions = tuple(copied_region(region, known=self._copies) for region in here.regions)
                here.attrs.pop("saved", None)
                self._inside[here] = copy
                self.nodes.append(copy)
                waiting.pop()
        return self._inside.get(value, value)

    def _saved_parameter(self, value: Value) -> Value:
        """Return the parameter for a value; for a tuple one for each of its elements."""
        if not isinstance(value.type, TupleType):
            return self.placeholder(value)
        assert isinstance(value, Node)
        b = Builder(self.forward).like(value)
        elements = [b.emit(TupleGetItem(index), value) for index in range(len(value.type.elements))]
        return self.builder().emit(MakeTuple(), *map(self.placeholder, elements))

    def backward(self, parameters: Sequence[Parameter], results: Sequence[Value]) -> Graph:
        """Return the graph of the gradient, with parameters and results in the order that the node needs."""
        graph = Graph(f"{self.forward.name}_gradient")
        graph.parameters = list(parameters)
        make_names_unique(graph.parameters)
        graph.nodes = self.nodes
        graph.results, graph.returns_tuple = list(results), True
        return graph

