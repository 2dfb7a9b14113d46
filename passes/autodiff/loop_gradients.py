"""The gradients of loops.

Input:  `%3 = For(%x, %para_w) {regions: @body} {turns: 5, carried: 1}`
Output: the same with what its gradient reads stacked, turn by turn, behind its results, and
        `%9 = For(%8, %7, %6, %para_w) {regions: @body_gradient} {turns: 5, carried: 2, scanned: 1, reverse: true}` of
        the gradient of what was carried, zeros to which the turns add the gradient of what was captured, what was
        saved, and what was captured.

The backward loop runs the other way and has as many turns: a `While` counts its own. What was scanned is scanned again;
its gradients are stacked. Where the gradient reads what a turn was given and what it carries on, the former is saved:
the latter is what the next turn was given.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from mspc.ir.graph import Graph, Parameter, Value
from mspc.ir.late_dataclass import dataclass
from mspc.ir.types import StackType
from mspc.ops.control.loops import COUNT, For, Loop, Scan, While
from mspc.ops.tensor.cast import Cast
from mspc.passes.autodiff.region_plans import RegionGradient, Request, Source, wide_type
from mspc.passes.autodiff.reverse_mode import Differentiate, depends_on, summed
from mspc.passes.autodiff.saved_values import saving_of
from mspc.passes.autodiff.split_joint import Split, joint_of


@dataclass(frozen=True, eq=False)
class Flow:
    """Which gradients a loop's body has to compute, by numbers of its parameters and results.

    carried: numbers of carried values that have a gradient. wanted: parameters; seeds: results whose gradients they
    come from.
    """

    carried: tuple[int, ...]
    wanted: tuple[int, ...]
    seeds: tuple[int, ...]


def gradient_of_loop(request: Request, differentiate: Differentiate) -> RegionGradient | None:
    """How a loop is differentiated; None where nothing that is wanted has a gradient."""
    op, regions, _, given = request
    assert isinstance(op, Loop)
    body = regions[-1]
    flow = _flow(request)
    joint = joint_of(body, flow.wanted, flow.seeds, differentiate)
    parameters = joint.graph.parameters
    behind = op.leading + op.carried
    scanned, captured = parameters[behind : behind + op.scanned], parameters[behind + op.scanned :]
    handed_on = dict(zip(joint.graph.results[: op.carried], parameters[op.leading : behind], strict=True))
    turns = 0 if _of_micro_batches(op) else _turns(op)  # what a turn saves waits for no other
    saving = saving_of(joint, captured, [*parameters[: op.leading], *scanned], handed_on, turns)
    split = Split(joint, saving.again)
    made = _Backward(op, split)
    for i in flow.carried:
        made.carry(split.given[i], split.gradient(op.leading + i), _gradient_of_result(i, given))
    for number in range(behind + op.scanned, len(parameters)):
        if number in split.grads:
            made.add_up(number)
    for k in flow.seeds:
        if k >= op.carried:
            made.scan(split.given[k], Source("gradient", _result(op, k)))
    made.hand_on()
    forward = made.scan_saved(scanned, captured)
    for number in range(behind, behind + op.scanned):
        if number in split.grads:
            made.stack(number)
    if not made.grads:
        return None
    for number in range(behind + op.scanned, len(parameters)):
        if parameters[number] in split.reads:
            made.capture(number)
    return made.gradient(replace(forward, mutates=(), has_side_effect=False), regions[:-1], saving.note)


def _gradient_of_result(number: int, given: Sequence[int]) -> Source:
    """Where the gradient of a carried value begins: carried results come first."""
    return Source("gradient" if number in given else "zero gradient", number)


def _of_micro_batches(op: Loop) -> bool:
    return isinstance(op, Scan) and op.micro_batches


def _turns(op: Loop) -> int:
    return op.turns if isinstance(op, For | Scan) else -1


def _result(op: Loop, number: int) -> int:
    """The place that a result of the body has among those of the node: a `While` counts ahead of its stacks."""
    return number + 1 if isinstance(op, While) and number >= op.carried else number


def _flow(request: Request) -> Flow:
    """What is carried has a gradient where it depends on what is wanted, in this turn or a later one, and something
    whose gradient is given depends on it."""
    op, regions, wanted, given = request
    assert isinstance(op, Loop)
    body = regions[-1]
    inside = [op.inside(len(regions) - 1, operand) for operand in wanted]
    active = {number for number in inside if number is not None}
    count = -1
    depending: set[Value] = set()
    while len(active) != count:
        count = len(active)
        depending = depends_on(body.nodes, [body.parameters[number] for number in sorted(active)])
        active |= {op.leading + i for i in range(op.carried) if body.results[i] in depending}
    found = {k for k in range(len(body.results)) if _result(op, k) in given}
    useful = _sources(body, [body.results[k] for k in found])
    count = -1
    while len(found) != count:
        count = len(found)
        found |= {i for i in range(op.carried) if body.parameters[op.leading + i] in useful}
        useful = _sources(body, [body.results[k] for k in found])
    carried = tuple(i for i in range(op.carried) if i in found and op.leading + i in active)
    return Flow(
        carried,
        tuple(n for n in sorted(active) if body.parameters[n] in useful or n - op.leading in carried),
        tuple(k for k in sorted(found) if k in carried or (k >= op.carried and body.results[k] in depending)),
    )


def _sources(body: Graph, results: Sequence[Value]) -> set[Value]:
    """The results and all that they come from."""
    found: set[Value] = set(results)
    for node in reversed(body.nodes):
        if node in found:
            found.update(node.inputs)
    return found


class _Backward:
    """The backward loop as it is put together: its parameters and results in their order, and the operands for them."""

    def __init__(self, op: Loop, split: Split) -> None:
        self.op = op
        self.split = split
        self.grads: dict[int, int] = {}
        self._carried: list[tuple[Parameter, Value, Source]] = []
        self._scanned: list[tuple[Parameter, Source]] = []
        self._stacked: list[Value] = []
        self._captured: list[tuple[Parameter, Source]] = []

    def carry(self, parameter: Parameter, result: Value, source: Source) -> None:
        """The gradient of a carried value, from turn to turn."""
        number = source.number + self.op.first
        self.grads[number] = len(self._carried)
        self._carried.append((parameter, result, source))

    def add_up(self, number: int) -> None:
        """The gradient of a captured parameter: the sum of those of all turns, in Float32 at least."""
        grad = self.split.grads[number]
        parameter = self.split.forward.parameters[number]
        b = self.split.builder()
        # The gradient of a stack is a tensor where the loop over it has known turns.
        own = grad.tensor_type if isinstance(parameter.type, StackType) else parameter.tensor_type
        wide = wide_type(own)
        if wide != own:
            grad = b.emit(Cast(wide.dtype), grad)
        total = Parameter(f"gradient_of_{parameter.name}", wide)
        operand = self._operand(number)
        self.grads[operand] = len(self._carried)
        self._carried.append((total, summed(b, [total, grad]), Source("wide zeros", operand)))

    def scan(self, parameter: Parameter, source: Source) -> None:
        self._scanned.append((parameter, source))

    def hand_on(self) -> None:
        """Read what a turn has carried on in the place where the next one has saved what it was given."""
        forward, op, reads = self.split.forward, self.op, self.split.reads
        for i, value in enumerate(forward.results[: op.carried]):
            given = forward.parameters[op.leading + i]
            if value in reads and given in reads and value is not given:
                self._carried.append((reads.pop(value), reads[given], Source("result", i)))

    def scan_saved(self, scanned: Sequence[Value], captured: Sequence[Value]) -> Loop:
        """Scan what the gradient reads of every turn; the forward loop, which stacks what is saved of it."""
        forward, op = self.split.forward, self.op
        more = 0
        index = forward.parameters[: op.leading]
        for value, parameter in list(self.split.reads.items()):
            if value in captured or value in index:
                continue
            if value in scanned:
                number = op.leading + op.carried + list(scanned).index(value)
                self.scan(parameter, Source("operand", self._operand(number)))
                continue
            stacked = forward.results[op.carried :]
            if value in stacked:
                number = op.carried + stacked.index(value)
            else:
                number = len(forward.results)
                forward.results.append(value)
                forward.returns_tuple = True
                more += 1
            self.scan(parameter, Source("result", _result(op, number)))
        return replace(op, stacked=op.stacked + more)

    def stack(self, number: int) -> None:
        """The gradient of a scanned parameter, which is stacked."""
        self.grads[self._operand(number)] = len(self._carried) + len(self._stacked)
        self._stacked.append(self.split.grads[number])

    def capture(self, number: int) -> None:
        parameter = self.split.forward.parameters[number]
        self._captured.append((self.split.reads[parameter], Source("operand", self._operand(number))))

    def _operand(self, number: int) -> int:
        """The operand that a parameter of the body stands for."""
        return number - self.op.leading + self.op.first

    def gradient(self, forward: Loop, others: tuple[Graph, ...], note: str) -> RegionGradient:
        op, split = self.op, self.split
        turn: list[Parameter] = []
        if not isinstance(op, Scan):
            read = next((split.reads[p] for p in split.forward.parameters[: op.leading] if p in split.reads), None)
            turn = [read or Parameter("turn", COUNT)]
        pairs = [*((p, s) for p, _, s in self._carried), *self._scanned, *self._captured]
        results = [*(result for _, result, _ in self._carried), *self._stacked]
        graph = split.backward([*turn, *(parameter for parameter, _ in pairs)], results)
        kind = Scan if isinstance(op, Scan) else For
        backward = kind(
            carried=len(self._carried), scanned=len(self._scanned), stacked=len(self._stacked),
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
        return RegionGradient(
            forward, (*others, split.forward), backward, (graph,), sources, self.grads, note
        )
